"""The event loop of commands that run until a signal ends them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
from collections.abc import Coroutine
from typing import Any

import uvloop

OBJECTS_BEFORE_SEARCH = 50_000
"""Net new objects before the garbage collector runs."""

THRESHOLDS = (OBJECTS_BEFORE_SEARCH, 10, 10)

MANY_KEPT = (5_000, 5, 5)
"""Thresholds for a program that keeps many objects, and comes to rest: what it had in hand while it
read them is found before it has as many again."""


def run_long(
    main: Coroutine[Any, Any, None], thresholds: tuple[int, int, int] = THRESHOLDS
) -> None:
    """Run a command to its end. `thresholds`: of the garbage collector."""
    allow_all_descriptors()
    collect_seldom(thresholds)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def collect_seldom(thresholds: tuple[int, int, int]) -> None:
    """Run the garbage collector seldom, because a mail creates thousands of objects and no cycles;
    exempt the objects of the imports."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*thresholds)


def allow_all_descriptors() -> None:
    """Raise the limit of open files to the hard limit: the soft one, often 1024, is for programs
    that use select(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # the soft limit stays, then
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
