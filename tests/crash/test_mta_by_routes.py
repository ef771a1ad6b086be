"""`postroad mta` that delivers by routes, killed at random amid deliveries to several sites; with a
precaution undone, the same run finds it. `make kills` makes it larger."""

from __future__ import annotations

from pathlib import Path

import pytest

from kills.back_ends import Embedded
from kills.careless import BITES
from kills.check import check, summary
from kills.soak import Size, Soak


async def test_killed_at_random_it_repeats_only_what_was_transmitted_and_not_recorded(
    tmp_path: Path,
) -> None:
    soak = Soak(Embedded(tmp_path / "store"), tmp_path, Size(kills=5, mails=40, sites=5), seed=1)

    done = await soak.run()

    assert check(done) == []
    assert done.ledger.kills_in_transit > 0
    print(summary(done))


@pytest.mark.parametrize("bite", sorted(BITES))
async def test_one_of_ten_runs_finds_what_is_undone(tmp_path: Path, bite: str) -> None:
    """A kill at random meets the moment or misses it: about one run in ten finds nothing."""
    for seed in range(1, 11):
        folder = tmp_path / str(seed)
        folder.mkdir()
        soak = Soak(
            Embedded(folder / "store"),
            folder,
            Size(kills=1, mails=40, sites=5),
            seed,
            module="kills.careless",
            environment={"KILLS_BITE": bite},
        )
        if BITES[bite][1] in {each.kind for each in check(await soak.run())}:
            return
    pytest.fail(f"no run found what {bite} leaves undone")
