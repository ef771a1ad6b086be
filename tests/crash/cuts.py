"""The disks that a power cut may leave, and the check of all of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from crash.lossy import Disk, Fate, Journal, survivors
from crash.world import check, opened

FATES: tuple[Fate, ...] = ("lost", "whole", "torn")
FEW = 2
"""So many changes that nothing vouches for meet every combination of fates."""

LATEST = 4
"""So many of the latest changes are kept, and lost, each alone."""


def fates_of(cut: int, count: int) -> Iterator[tuple[Fate, ...]]:
    """Yield what may become of the changes that nothing vouches for: everything, when they are few;
    otherwise none, all, each of the latest alone, all but each, and some at random."""
    if count <= FEW:
        yield from itertools.product(FATES, repeat=count)
        return
    for fate in FATES:
        yield (fate,) * count
    for chosen in range(max(0, count - LATEST), count):
        yield tuple("whole" if each == chosen else "lost" for each in range(count))
        yield tuple("lost" if each == chosen else "whole" for each in range(count))
    for seed in range(3):
        randomness = random.Random(f"{cut} {seed}")
        yield tuple(randomness.choice(FATES) for _ in range(count))


def disks_after(journal: Journal, cut: int, most: int | None = None) -> list[Disk]:
    """Return disks that a cut at this point may leave; the last one met chance."""
    proven, pending = journal.unproven(cut)
    chosen = list(fates_of(cut, len(pending)))
    if most is not None and len(chosen) > most:
        chosen = random.Random(cut).sample(chosen, most)
    return [
        survivors(proven, pending, fates, f"{cut} {number}") for number, fates in enumerate(chosen)
    ]


async def check_cuts(journal: Journal, *, every: int = 1, first: int = 0) -> int:
    """Recover after every cut of a share of the journal; return how many disks that were.
    Raises: Broken, StoreDamaged."""
    count = 0
    for cut in journal.cuts():
        if cut % every == first:
            for disk in disks_after(journal, cut):
                async with opened(disk) as (_, queue):
                    await check(queue, journal.events(cut))
                count += 1
    return count
