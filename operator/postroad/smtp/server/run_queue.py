"""The run queue: in which order clients that have sent much at once are served.

A client that sends more than one round processes waits here for its next round, so that clients
that send little wait for a few rounds of others, however many there are.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

CHUNK = 64 * 1024
"""Octets of content that are read at a time."""

PASS_SECONDS = 0.0003
"""For rounds of the queue in each pass of the event loop; new connections and clients that send
little have the rest of the pass."""

FEW_ROUNDS = 5
"""Rounds in a row after which a client waits behind those that had fewer."""


class RunQueue:
    """Runs rounds first come, first served, a few in each pass of the event loop. Of clients that
    had FEW_ROUNDS already, one is served in each pass: the others wait for one of them at most."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._few: deque[Callable[[], None]] = deque()
        self._many: deque[Callable[[], None]] = deque()
        self._is_due = False
        self.into = memoryview(bytearray(CHUNK))
        """Memory that all clients share: each copies its octets out of it before another client's
        arrive."""

    def append(self, run: Callable[[], None], rounds: int = 0) -> None:
        """Call `run` in a later pass. `rounds`: the client's rounds in a row before it."""
        (self._few if rounds < FEW_ROUNDS else self._many).append(run)
        self._pass_soon()

    def _pass(self) -> None:
        self._is_due = False
        ends = time.monotonic() + PASS_SECONDS  # uvloop's loop.time() stands still in a pass
        try:
            for _ in range(len(self._few)):
                self._few.popleft()()
                if time.monotonic() >= ends:
                    break
            if self._many:
                self._many.popleft()()
        finally:  # an exception of one round must not end the service of all clients
            if self._few or self._many:
                self._pass_soon()

    def _pass_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._pass)
