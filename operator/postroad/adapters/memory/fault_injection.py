"""Where every call of a memory port passes, so that tests can make the world go wrong there.

A call is a *step* of its process: the smallest thing between two crashes. What can happen to it is
a `Fault`; a process that stopped never has an effect again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from postroad.errors import (
    BlobsUnavailable,
    BrokerUnavailable,
    ServerError,
    ViewUnavailable,
)

T = TypeVar("T")


class Stopped(BaseException):
    """The process was killed here. Not an `Exception`: nothing may handle it."""


class Fault(Enum):
    """What happens to one step."""

    STOP_BEFORE = "the process dies; the step has no effect"
    STOP_AFTER = "the process dies; the step had its effect"
    AWAY = "the server does not answer; the step has no effect"
    ANSWER_LOST = "the server does not answer; the step had its effect"


@dataclass(frozen=True, slots=True)
class Step:
    """One call: the how-manieth of its process, of which server, which operation."""

    number: int
    server: str
    operation: str


Plan = Callable[[Step], Fault | None]
"""Decides what happens to a step; None: it goes well."""

UNAVAILABLE: dict[str, type[ServerError]] = {
    "broker": BrokerUnavailable,
    "view": ViewUnavailable,
    "blobs": BlobsUnavailable,
}


def no_fault(step: Step) -> Fault | None:
    """All goes well."""
    return None


def at(number: int, fault: Fault) -> Plan:
    """Let the step with this number go wrong."""
    return lambda step: fault if step.number == number else None


def away(*servers: str) -> Plan:
    """Let whole servers be away: `broker`, `view`, `blobs`."""
    return lambda step: Fault.AWAY if step.server in servers else None


class FaultInjector:
    """The gate of one process. `plan` may be changed at any time; `before` is awaited at each step
    and lets a test choose which process goes on; `steps` lists what happened."""

    def __init__(self, plan: Plan = no_fault) -> None:
        self.plan = plan
        self.before: Callable[[Step], Awaitable[None]] | None = None
        self.steps: list[Step] = []
        self.stopped = False
        self.when_stopped: list[Callable[[], None]] = []

    def stop(self) -> None:
        """Kill the process: its connections break, its later calls raise Stopped."""
        if not self.stopped:
            self.stopped = True
            for each in self.when_stopped:
                each()

    async def __call__(self, server: str, operation: str, effect: Callable[[], T]) -> T:
        """Do one step. Raises: Stopped, or the server's unavailability."""
        step = self._begin(server, operation)
        if self.before is not None:
            await self.before(step)
        if self.stopped:
            raise Stopped(step)
        fault = self.plan(step)
        if fault is Fault.STOP_BEFORE:
            self.stop()
            raise Stopped(step)
        if fault is Fault.AWAY:
            raise UNAVAILABLE[server](f"{operation}: {server} is away")
        result = effect()
        if fault is Fault.STOP_AFTER:
            self.stop()
            raise Stopped(step)
        if fault is Fault.ANSWER_LOST:
            raise UNAVAILABLE[server](f"{operation}: the answer of {server} is lost")
        return result

    def _begin(self, server: str, operation: str) -> Step:
        if self.stopped:
            raise Stopped(operation)
        step = Step(len(self.steps), server, operation)
        self.steps.append(step)
        return step
