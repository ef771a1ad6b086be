"""Fault injection: every call of a port in memory goes through a `FaultInjector`.

A call is a *step* of its process, the unit between two crashes. A `Fault` is what a test lets
happen to a step. A step of a stopped process has no effect.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from enum import Enum
from typing import NamedTuple, TypeVar

from postroad import errors
from postroad.adapters.memory.steps import InProcess, ProcessSteps

T = TypeVar("T")


class Stopped(BaseException):
    """The process was killed here. Not an `Exception`, because no code may handle it."""


class Fault(Enum):
    STOP_BEFORE = "the process dies; the step has no effect"
    STOP_AFTER = "the process dies; the step had its effect"
    AWAY = "the server is not reached; the step has no effect"
    LOST = "the server does not answer; the step has no effect, which the caller cannot know"
    ANSWER_LOST = "the server does not answer; the step had its effect"


class Step(NamedTuple):
    """One call: its number in its process from 0, the server, the operation."""

    number: int
    server: str
    operation: str


Plan = Callable[[Step], Fault | None]
"""Returns the fault of a step; None: it succeeds."""

UNAVAILABLE: dict[str, type[errors.ServerError]] = {
    "broker": errors.BrokerUnavailable,
    "view": errors.ViewUnavailable,
    "blobs": errors.BlobsUnavailable,
    "kubernetes": errors.KubernetesUnavailable,
}

WORDS = "the words of the API server"

ERRORS: Mapping[str, Callable[[], Exception]] = {
    "500, 429 or no answer": lambda: errors.KubernetesUnavailable(WORDS),
    "400, 403 or 422": lambda: errors.KubernetesRefused(WORDS),
    "409": lambda: errors.KubernetesConflict(WORDS),
    "an error without a name": lambda: LookupError(WORDS),
}
"""Errors of a request to the API server."""


def no_fault(step: Step) -> Fault | None:
    """Let every step succeed."""
    return None


def at(number: int, fault: Fault) -> Plan:
    """Return a plan in which the step of this number has the fault."""
    return lambda step: fault if step.number == number else None


def away(*servers: str) -> Plan:
    """Return a plan in which these servers are away: `broker`, `view`, `blobs`, `kubernetes`."""
    return lambda step: Fault.AWAY if step.server in servers else None


class FaultInjector(ProcessSteps):
    """The faults of one process. A test may set `plan` at any time; each step awaits `before`, by
    which a test chooses the process that goes on; `steps` has all steps so far."""

    def __init__(self, plan: Plan = no_fault) -> None:
        super().__init__()
        self.plan = plan
        self.before: Callable[[Step], Awaitable[None]] | None = None
        self.steps: list[Step] = []

    def stop(self) -> None:
        """Kill the process: its connections break, and later calls raise Stopped."""
        if not self.stopped:
            self.stopped = True
            for each in self.when_stopped:
                each()

    async def __call__(self, server: str, operation: str, effect: Callable[[], T]) -> T:
        """Run one step. Raises: Stopped, or the error of a server that is away."""
        if self.stopped:
            raise Stopped(operation)
        step = Step(len(self.steps), server, operation)
        self.steps.append(step)
        if self.before is not None:
            await self.before(step)
        if self.stopped:
            raise Stopped(step)
        fault = self.plan(step)
        if fault is None:
            return effect()
        if fault is Fault.STOP_BEFORE:
            self.stop()
            raise Stopped(step)
        if fault is Fault.AWAY:
            unreached = errors.NotPublished if operation == "publish" else UNAVAILABLE[server]
            raise unreached(f"{operation}: {server} is away")
        if fault is Fault.LOST:
            raise UNAVAILABLE[server](f"{operation}: {server} does not answer")
        with suppress(errors.PostroadError):  # the answer does not arrive
            effect()
        if fault is Fault.STOP_AFTER:
            self.stop()
            raise Stopped(step)
        assert fault is Fault.ANSWER_LOST
        raise UNAVAILABLE[server](f"{operation}: the answer of {server} is lost")


def faults_of(adapter: InProcess) -> FaultInjector:
    """Return the faults of an adapter's process."""
    assert isinstance(adapter.steps, FaultInjector)
    return adapter.steps
