"""One run of the archive at a time: it keeps its claim while it runs, and commits only with it."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from postroad.adapters.memory.view import MemoryView
from postroad.errors import ArchiveUnderWay
from postroad.pipeline.archive.archive import CLAIM, CLAIM_ID, ArchiveClaim
from support.in_memory_cluster import InMemoryCluster

FIRST, SECOND = UUID(int=1), UUID(int=2)


@pytest.fixture
async def view(cluster: InMemoryCluster) -> MemoryView:
    process = await cluster.start()
    found = process.queue._engine.view
    assert isinstance(found, MemoryView)
    return found


async def test_a_second_run_is_refused_until_the_first_ended(
    cluster: InMemoryCluster, view: MemoryView
) -> None:
    async with ArchiveClaim(view, cluster.clock, FIRST):
        await cluster.pass_time(3 * CLAIM)
        with pytest.raises(ArchiveUnderWay) as error:
            async with ArchiveClaim(view, cluster.clock, SECOND):
                pytest.fail("two runs at once")
        assert error.value.transient

    async with ArchiveClaim(view, cluster.clock, SECOND) as claim:
        await claim.renew()


async def test_a_patient_run_begins_when_the_one_before_has_ended(
    cluster: InMemoryCluster, view: MemoryView
) -> None:
    """Also when that was killed, and gave nothing back."""
    killed = ArchiveClaim(view, cluster.clock, FIRST)
    await killed.renew()

    async def follow() -> bool:
        async with ArchiveClaim(view, cluster.clock, SECOND, patience=1.5 * CLAIM):
            return await view.claim(CLAIM_ID, FIRST, CLAIM)

    following = asyncio.create_task(follow())
    await cluster.pass_time(CLAIM / 2)
    assert not following.done()
    await cluster.pass_time(CLAIM)
    assert not await following


async def test_a_patient_run_gives_up_in_the_end(
    cluster: InMemoryCluster, view: MemoryView
) -> None:
    async with ArchiveClaim(view, cluster.clock, FIRST):
        second = ArchiveClaim(view, cluster.clock, SECOND, patience=2 * CLAIM)
        following = asyncio.create_task(second.__aenter__())
        await cluster.pass_time(2 * CLAIM + CLAIM / 4)
        with pytest.raises(ArchiveUnderWay):
            await following


async def test_a_claim_that_lapsed_is_lost_even_where_no_other_run_has_it(
    cluster: InMemoryCluster, view: MemoryView
) -> None:
    """Another run may have begun and ended since."""
    claim = ArchiveClaim(view, cluster.clock, FIRST)
    await claim.renew()
    cluster.clock.jump(CLAIM)

    with pytest.raises(ArchiveUnderWay, match="suspended"):
        await claim.renew()


async def test_a_run_whose_claim_lapsed_and_went_to_another_commits_nothing(
    cluster: InMemoryCluster, view: MemoryView
) -> None:
    """As of a process that was suspended for longer than its claim."""
    async with ArchiveClaim(view, cluster.clock, FIRST) as claim:
        await view.release_claim(CLAIM_ID, FIRST)
        assert await view.claim(CLAIM_ID, SECOND, 10 * CLAIM)
        await cluster.pass_time(CLAIM)
        await asyncio.sleep(0)

        with pytest.raises(ArchiveUnderWay):
            await claim.renew()

    assert not await view.claim(CLAIM_ID, FIRST, CLAIM)
