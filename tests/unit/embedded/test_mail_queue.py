"""A handle on a store whose lock another process holds: its error where that owner is no use."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path, PurePath

import pytest

from crash.lossy import LossyFiles
from postroad import open_queue
from postroad.embedded.log.layout import Layout
from postroad.embedded.mail_queue import EmbeddedQueue
from postroad.embedded.store.engine import Engine
from postroad.embedded.store.maintenance import Maintenance
from postroad.errors import StoreUnavailable
from support.memory.clock import ManualClock

SECOND = timedelta(seconds=1)


class LockedFiles(LossyFiles):
    """Another process has the lock."""

    def lock(self, path: PurePath) -> None:
        return None


async def refused(root: Path) -> StoreUnavailable:
    """Open a handle on a store that is locked, until the handle's timeout; return its error."""

    async def never() -> tuple[Engine, Maintenance]:
        raise AssertionError("the lock was not ours")

    clock = ManualClock()
    handle = EmbeddedQueue("outgoing", LockedFiles(), Layout(root, root), clock, never)
    opening = asyncio.ensure_future(handle.open())
    while not opening.done():
        await clock.advance(SECOND)
        await asyncio.sleep(0.001)
    with pytest.raises(StoreUnavailable, match="the lock on outgoing is held") as found:
        await opening
    assert 30 * SECOND <= clock.elapsed() <= 31 * SECOND
    return found.value


@asynccontextmanager
async def hanging_up(path: Path) -> AsyncIterator[None]:
    """Accept connections and end each at once."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_unix_server(hang_up, path)
    yield
    server.close()


def abandoned(path: Path) -> None:
    """Leave a socket behind, as an owner that was killed does."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


@pytest.mark.parametrize("was_served", [False, True])
async def test_no_process_serves_and_a_receiver_may_hold_the_lock(
    tmp_path: Path, was_served: bool
) -> None:
    if was_served:
        abandoned(tmp_path / "socket")

    error = await refused(tmp_path)

    assert f"no process serves {tmp_path}" in str(error)
    assert "receiver" in error.hint


async def test_an_owner_that_cannot_be_reached_is_no_receiver_to_end(tmp_path: Path) -> None:
    (tmp_path / "socket").symlink_to("socket")

    error = await refused(tmp_path)

    assert "Too many levels of symbolic links" in str(error)
    assert "no process serves" not in str(error)
    assert "receiver" not in error.hint


async def test_an_owner_that_hangs_up_is_no_receiver_to_end(tmp_path: Path) -> None:
    async with hanging_up(tmp_path / "socket"):
        error = await refused(tmp_path)

    assert "the owner of the store went away" in str(error)
    assert "receiver" not in error.hint


async def test_only_the_owner_has_a_lock_for_other_processes_to_inherit(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    async with open_queue(url, create=True) as owner, open_queue(url) as client:
        assert isinstance(owner, EmbeddedQueue)
        assert isinstance(client, EmbeddedQueue)
        assert client.lock is None
        assert owner.lock is not None
        assert os.path.samestat(os.fstat(owner.lock), (tmp_path / "store" / "lock").stat())
