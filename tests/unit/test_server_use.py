"""Tests of two runs beside one that kills a server that both use."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from support.server_use import server_use


class Use:
    """A use of the servers in a thread: `begun` while it lasts, until `end`."""

    def __init__(self, threads: ThreadPoolExecutor, folder: Path, *, alone: bool) -> None:
        self.begun, self._ends = threading.Event(), threading.Event()
        self._over: Future[None] = threads.submit(self._use, folder, alone)

    def _use(self, folder: Path, alone: bool) -> None:
        with server_use(folder, alone=alone):
            self.begun.set()
            self._ends.wait()

    def end(self) -> None:
        self._ends.set()
        self._over.result()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


def wait_until_one_waits(folder: Path) -> None:
    """Return when a process waits to be alone, because it keeps the turn."""
    with (folder / "servers.turn").open("w") as turn:
        while _is_free(turn.fileno()):
            pass


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True


def test_those_that_kill_no_server_share_the_use(
    threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    uses = [Use(threads, tmp_path, alone=False) for _ in range(2)]
    for each in uses:
        each.begun.wait()
    for each in uses:
        each.end()


def test_one_that_waits_to_be_alone_goes_before_those_that_come_later(
    threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    first = Use(threads, tmp_path, alone=False)
    first.begun.wait()
    killing = Use(threads, tmp_path, alone=True)
    wait_until_one_waits(tmp_path)
    later = Use(threads, tmp_path, alone=False)
    assert not killing.begun.is_set()

    first.end()
    killing.begun.wait()
    assert not later.begun.is_set()
    killing.end()
    later.begun.wait()
    later.end()
