"""Every cut of a recorded run leaves a store that keeps its promises (P1 to P5, P8)."""

from __future__ import annotations

import pytest

from crash.cuts import check_cuts, disks_after
from crash.lossy import Journal
from crash.script import record_run
from crash.world import Outside, check, opened
from postroad.domain.queues.selection import Selector

ALL = Selector.all()

PARTS = 4


@pytest.fixture(scope="module")
def journals() -> dict[str, Journal]:
    return {}


@pytest.fixture
async def journal(journals: dict[str, Journal]) -> Journal:
    if "run" not in journals:
        journals["run"] = await record_run()
    return journals["run"]


@pytest.mark.parametrize("part", range(PARTS))
async def test_every_cut_of_a_run_recovers_to_what_was_promised(
    journal: Journal, part: int
) -> None:
    disks = await check_cuts(journal, every=PARTS, first=part)

    assert disks > 200


async def test_a_second_recovery_finds_what_the_first_one_found(journal: Journal) -> None:
    for cut in range(3, len(journal.steps), 17):
        disk = disks_after(journal, cut)[-1]
        async with opened(disk) as (files, queue):
            first = await check(queue, journal.events(cut))
        async with opened(files.disk, seed=1) as (_, queue):
            second = await check(queue, journal.events(cut))

        assert first == second, f"cut {cut}"


async def test_a_recovery_that_is_cut_recovers(journal: Journal) -> None:
    """Every cut of the recovery itself, for some cuts of the run."""
    disks = 0
    for cut in range(20, len(journal.steps), 29):
        async with opened(disks_after(journal, cut)[-1]) as (files, _):
            pass
        for again in files.journal.cuts():
            for disk in disks_after(files.journal, again, most=4):
                async with opened(disk, seed=1) as (_, queue):
                    await check(queue, journal.events(cut))
                disks += 1

    assert disks > 500


async def test_what_is_left_after_a_cut_can_be_delivered_and_the_store_drained(
    journal: Journal,
) -> None:
    """P7: nothing that was in doubt keeps the log or the spool from shrinking again."""
    for cut in range(40, len(journal.steps), 97):
        async with opened(disks_after(journal, cut)[-1]) as (files, queue):
            await queue.release(ALL)
            await queue.flush(ALL)
            outside = Outside(files, queue)
            while (await queue.size()).size:
                item = await outside.lease()
                await item.done()
            await queue.maintain()
            await queue.maintain()

            segments = [segment for segment in queue.engine.segments() if segment.live]
            dead = (await queue.size()).dead_letters
            assert sum(len(segment.live) for segment in segments) == dead
            assert len(queue.engine.lanes[0].segments) <= 2
