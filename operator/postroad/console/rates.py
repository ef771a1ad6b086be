"""Rates of queues, by what is read of them anyway: their sizes, and what workers publish."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from weakref import WeakKeyDictionary

from postroad.console.queues import ConsoleQueue
from postroad.domain.delivery.sites import mails_left
from postroad.domain.queues.documents import Sizes
from postroad.ports.clock import Clock
from postroad.ports.delivery import Topic
from postroad.ports.mail_queue import MailQueue

MIN_BETWEEN = timedelta(seconds=5)
"""Between two readings that are kept, however often a queue is looked at."""

OVER = timedelta(minutes=1)
"""Time over which rates are means, where a queue was looked at for so long: workers publish each 15
seconds."""

MAX_READINGS = 60
MAX_AGE = timedelta(minutes=10)
"""Of a reading."""


@dataclass(frozen=True, slots=True)
class QueueReading:
    """A reading of a queue. `left`: mails that left it by each worker; `size`: None where it was
    not counted exactly."""

    at: timedelta
    size: int | None
    left: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class QueueRates:
    """Mails a second, as means over some seconds; None where workers show nothing, or the size was
    not counted. `sizes`: those of the readings before, and this one."""

    over_seconds: float
    mails_in: float | None
    mails_out: float | None
    sizes: tuple[int, ...]


def rates_of(readings: deque[QueueReading]) -> QueueRates | None:
    """Return the rates up to the last reading; None where there is no other before it.

    What came is what left and what there is more: mail that an administrator removed meanwhile
    makes it too small, and it is not below zero."""
    now = readings[-1]
    before = [each for each in readings if each.at < now.at]
    if not before:
        return None
    recent = next((each for each in before if now.at - each.at <= OVER), before[-1])
    seconds = (now.at - recent.at).total_seconds()
    out = mails_in = None
    if now.left:
        out = sum(max(0, n - recent.left.get(worker, 0)) for worker, n in now.left.items())
    if out is not None and now.size is not None and recent.size is not None:
        mails_in = max(0, now.size - recent.size + out)
    return QueueRates(
        round(seconds, 3),
        None if mails_in is None else round(mails_in / seconds, 3),
        None if out is None else round(out / seconds, 3),
        tuple(each.size for each in readings if each.size is not None),
    )


class ObservedRates:
    """The last readings of the queues of a console."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._readings = WeakKeyDictionary[MailQueue, deque[QueueReading]]()
        """Not by ids: a queue that is closed leaves its id to another one, of another tenant."""

        self._busy = set[MailQueue]()

    async def observe(self, on: ConsoleQueue, sizes: Sizes) -> QueueRates | None:
        """Note the sizes of a queue, and return its rates. Raises: ServerError."""
        now, key = self._clock.elapsed(), on.queue
        readings = self._readings.setdefault(key, deque(maxlen=MAX_READINGS))
        if key not in self._busy and (not readings or now - readings[-1].at >= MIN_BETWEEN):
            self._busy.add(key)
            try:
                left = await _left(on)
            finally:
                self._busy.discard(key)
            while readings and now - readings[0].at > MAX_AGE:
                readings.popleft()
            readings.append(QueueReading(now, None if sizes.at_least else sizes.size, left))
        return rates_of(readings) if readings else None


async def _left(on: ConsoleQueue) -> Mapping[str, int]:
    shared = on.queue.shared_state
    if shared is None:
        return {}
    entries = await shared.published(Topic.WORKERS)
    found = {worker: mails_left(text) for worker, text in entries.items()}
    return {worker: left for worker, left in found.items() if left is not None}
