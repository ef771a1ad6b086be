"""The durations of the distributed engine, and the relation that they must keep. Those that two
releases have to agree on come from `domain/configuration/history.py`.

Waiting for servers that are away: longer each time, with jitter.

Work on many mails: several at once, never all, begun in their order."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from postroad.domain.configuration.history import GRACE, MAX_READ_LEASE, READ_LEASE
from postroad.domain.values.instants import AGREEING
from postroad.errors import InvalidSettings, ViewUnavailable
from postroad.ports.clock import Clock, Randomness


@dataclass(frozen=True, slots=True)
class Timing:
    """Bounds on the time that things may take. Raises InvalidSettings when a late row could miss
    its slice, or a mark be deleted that a process still needs.

    A row is inserted at most `deadline` after its id was made, by a clock at most `skew` from the
    view's; a second clock decides that it is late; a third closes its slice. The view's time may
    differ by `AGREEING` between readings of different hosts. So three times the skew, that and the
    deadline must fit into the grace period (invariant 7)."""

    deadline: timedelta = timedelta(seconds=20)
    """From an id to its row (replacements) or to the confirm of its message (enqueue)."""

    skew: timedelta = timedelta(seconds=5)
    """Difference by which a producer's clock may be from the view's."""

    grace: timedelta = GRACE
    """Time after its end that a slice stays open."""

    read_lease: timedelta = READ_LEASE
    """Time that this process may use limits that it read."""

    longest_read_lease: timedelta = MAX_READ_LEASE
    """Time that any process may use them: cleanup waits so long after browse start moved."""

    redelivery_delay: timedelta = timedelta(seconds=8)
    """The first delay of a redelivered reference."""

    keep_after: timedelta = timedelta(seconds=4)
    """Items leased for longer are claimed, so that other consumers find them in flight. Shorter
    than the redelivery delay."""

    claim: timedelta = timedelta(minutes=2)
    """Lifetime of a claim; renewed while the item is leased."""

    upload: timedelta = timedelta(hours=6)
    """Time that an upload may take. The audit leaves younger objects alone, since their rows may
    still come."""

    backoff: timedelta = timedelta(milliseconds=200)
    """First wait after a server did not answer; doubles up to `longest_backoff`."""

    longest_backoff: timedelta = timedelta(seconds=10)

    wait: timedelta = timedelta(seconds=5)
    """Time that a reference waits in a consumer's prefetch for a server while other references are
    served; then it is deferred through the delay queues."""

    longest_wait: timedelta = timedelta(minutes=10)
    """The same, while none is served. Much shorter than RabbitMQ's consumer_timeout (30 minutes by
    default), after which the broker closes the channel and counts a failed delivery for every
    message of it."""

    longest_mail_lease: timedelta = timedelta(minutes=25)
    """Time that an item may be in flight, from the arrival of its message. RabbitMQ closes the
    channel of a consumer that acknowledges nothing for its consumer_timeout (30 minutes by
    default) and redelivers what it holds; what is left of that is for records and for the
    ending."""

    ages: timedelta = timedelta(seconds=60)
    """Age that a result of `ages` may be."""

    @property
    def apart(self) -> timedelta:
        """Difference by which the clocks of two processes may be from each other."""
        return 2 * self.skew

    def __post_init__(self) -> None:
        if self.deadline + 3 * self.skew + AGREEING >= self.grace:
            raise InvalidSettings(
                "the deadline, three times the skew and 5 s must be within the grace period"
            )
        if self.read_lease > self.longest_read_lease:
            raise InvalidSettings("no process may use what it read for longer than others wait")
        if self.keep_after >= self.redelivery_delay:
            raise InvalidSettings("items must be claimed before a redelivered reference is tried")


T = TypeVar("T")


class Backoff:
    """Waits between attempts: each time half to all of the present wait, which doubles."""

    def __init__(
        self, clock: Clock, randomness: Randomness, first: timedelta, longest: timedelta
    ) -> None:
        self._clock = clock
        self._randomness = randomness
        self._next = first
        self._longest = longest

    async def wait(self) -> None:
        duration = self._next * (0.5 + self._randomness.uniform() / 2)
        self._next = min(self._next * 2, self._longest)
        await self._clock.sleep(duration)


async def persist(backoff: Backoff, tries: int, work: Callable[[], Awaitable[T]]) -> T:
    """Do work that may be repeated, at most `tries` times, while the view does not answer in time.
    Raises: what the last try raised; any other error at once."""
    for _ in range(tries - 1):
        try:
            return await work()
        except ViewUnavailable:
            pass  # the view may have done it; the next try finds out
        await backoff.wait()
    return await work()


R = TypeVar("R")

AT_ONCE = 16
"""Mails changed at the same time: enough to hide the servers' latency, too few to crowd out
deliveries."""

TRIES = 5
"""Number of times that one mail is tried, with backoff, while the view does not answer: one timeout
among thousands of transactions must not end them all."""


on_change: ContextVar[Callable[[int, bool], None]] = ContextVar(
    "on_change", default=lambda changed, is_repeated: None
)
"""Gets the number of mails that an operation has changed since the last call, as it goes on, and
whether a repetition counts them once more."""


async def count(
    items: AsyncIterator[T], work: Callable[[T], Awaitable[int]], *, is_repeated: bool = False
) -> int:
    """Do `work` for every item; return the sum of its results, true as 1. Errors as `results`."""
    total = 0
    async for each in results(items, work):
        total += each
        on_change.get()(each, is_repeated)
    return total


async def each_of(items: Iterable[T]) -> AsyncIterator[T]:
    for each in items:
        yield each


async def results(
    items: AsyncIterator[T], work: Callable[[T], Awaitable[R]], at_once: int = AT_ONCE
) -> AsyncIterator[R]:
    """Do `work` for every item; yield its results as they come. The first error ends it and cancels
    what is under way, which every operation survives as it survives a stop between two steps."""
    running: set[asyncio.Future[R]] = set()
    done: set[asyncio.Future[R]] = set()
    try:
        async for item in items:
            if len(running) >= at_once:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    yield each.result()
            running.add(asyncio.ensure_future(work(item)))
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                yield each.result()
    finally:
        for each in running:
            each.cancel()
        if left := (*running, *done):  # retrieves each error, so that asyncio logs none
            await asyncio.gather(*left, return_exceptions=True)
