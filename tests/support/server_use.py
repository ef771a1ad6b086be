"""Which tests of two runs may use the shared servers at the same time (`tests/run-all.sh`)."""

from __future__ import annotations

import fcntl
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SHARED = {"rabbitmq", "cassandra", "s3"}
"""Servers that the runs share, side by side."""

OWN_SERVERS = "own_stack"
"""The fixture of tests that start the programs of these servers for themselves."""


@contextmanager
def server_use(folder: Path, *, alone: bool) -> Iterator[None]:
    """Use the servers together with other processes, or `alone`. The turn is kept while a process
    waits to be alone: otherwise others would go on to share the use, and it would wait for ever."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "servers.lock").open("w") as use, (folder / "servers.turn").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        fcntl.flock(use, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(turn, fcntl.LOCK_UN)
        yield


class ServerUse:
    """Lets a test that kills a shared server run while no other one needs the servers: the test of
    another run would fail, for a reason that is not in it. A plugin around the whole of a test:
    fixtures of a module use the servers too, and the wait is no part of the test's timeout."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        needed = {name for each in item.iter_markers("needs") for name in each.args}
        if not needed & SHARED or OWN_SERVERS in getattr(item, "fixturenames", ()):
            return (yield)
        alone = item.get_closest_marker("kills_servers") is not None
        with server_use(self._folder, alone=alone):
            return (yield)
