"""One run at a time writes the lake in a directory; another one waits for as long as its
option allows."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from postroad.adapters.memory.clock import ManualClock
from postroad.bootstrap.archived_store import TRIED_AGAIN, LakeLock
from postroad.errors import ArchiveUnderWay

MINUTE, AT_ONCE = timedelta(minutes=1), timedelta(0)


async def test_a_second_run_is_refused_until_the_first_ended(tmp_path: Path) -> None:
    clock = ManualClock()
    async with LakeLock(tmp_path, "/store", clock, AT_ONCE):
        with pytest.raises(ArchiveUnderWay):
            await LakeLock(tmp_path, "/store", clock, AT_ONCE).__aenter__()

    async with LakeLock(tmp_path, "/store", clock, AT_ONCE):
        pass


async def test_a_patient_run_begins_when_the_one_before_has_ended(tmp_path: Path) -> None:
    clock = ManualClock()
    async with LakeLock(tmp_path, "/store", clock, AT_ONCE):
        following = asyncio.create_task(LakeLock(tmp_path, "/store", clock, MINUTE).__aenter__())
        await clock.advance(MINUTE / 2)
        assert not following.done()

    await clock.advance(TRIED_AGAIN)
    await (await following).__aexit__(None, None, None)


async def test_a_patient_run_gives_up_in_the_end(tmp_path: Path) -> None:
    clock = ManualClock()
    async with LakeLock(tmp_path, "/store", clock, AT_ONCE):
        following = asyncio.create_task(LakeLock(tmp_path, "/store", clock, MINUTE).__aenter__())
        await clock.advance(MINUTE + TRIED_AGAIN)
        with pytest.raises(ArchiveUnderWay):
            await following
