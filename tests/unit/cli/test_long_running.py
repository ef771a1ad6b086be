"""What every long-running command begins with."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
from collections.abc import Iterator

import pytest

from postroad.cli.processes.event_loop import OBJECTS_BEFORE_SEARCH
from postroad.cli.processes.long_running import process, run
from postroad.settings import Settings
from postroad.telemetry import logs


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    """Begin with the thresholds of a new process; the tests after these have the collector as it
    was."""
    threshold = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*threshold)


def test_a_long_running_command_searches_for_cyclic_garbage_seldom_and_still_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "configure", lambda _: None)
    threshold, frozen = gc.get_threshold(), gc.get_freeze_count()
    found = []

    async def main() -> None:
        found.append((gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()))

    run(Settings(), main())

    ((is_enabled, (young, *older), frozen_then),) = found
    assert is_enabled
    assert young == OBJECTS_BEFORE_SEARCH > threshold[0]
    assert tuple(older) == threshold[1:]
    assert frozen_then > frozen


def test_a_long_running_command_may_open_all_the_files_that_the_system_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "configure", lambda _: None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    found = []

    async def main() -> None:
        found.append(resource.getrlimit(resource.RLIMIT_NOFILE))

    try:
        run(Settings(), main())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert found == [(hard, hard)]


async def test_a_hangup_ends_no_long_running_command() -> None:
    async with process(Settings(health_port=0), "memory://q", create=True) as this:
        os.kill(os.getpid(), signal.SIGHUP)  # the action of a process without a handler is its end
        await asyncio.sleep(0)
        assert this is not None
        assert not this.stop.is_set()
