"""Withdrawn enqueues that are looked at again, because a consumer may have had the mail in flight
when it was withdrawn, without a claim yet. The caller has got its error, so a mail that is
delivered all the same is counted (invariant 1).
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from uuid import UUID

from postroad.distributed.engine.engine import Engine
from postroad.domain.queues.entries import Entry, EntryKey
from postroad.telemetry import metrics

MAX_FOLLOWED = 4096
"""Number that are kept, in about two megabytes: as many as RabbitMQ may leave unconfirmed."""

DROPPED = MAX_FOLLOWED // 8
"""Number of the oldest that go when there is no room for one more: one line of the log for all."""

AT_ONCE = 16
"""Number that are looked at at a time, by three requests each."""

NOT_WITHDRAWN, IN_FLIGHT, NOT_FOLLOWED = "not withdrawn", "in flight", "not followed"
"""Why a failed enqueue may be delivered once, in the metric. Not followed: to the end of a
consumer's lease."""


@dataclass(frozen=True, slots=True)
class WithdrawnEnqueue:
    """An entry whose enqueue failed and was withdrawn. `due`: when it is looked at next."""

    key: EntryKey
    mail_id: UUID
    due: timedelta
    is_last: bool = False
    """True if every consumer's lease is over then."""


class LaterLooks:
    """The withdrawn enqueues of one queue whose messages the broker may have.

    Each is looked at twice: after a redelivery delay, by which a consumer that reaches the view has
    claimed the entry or ended it, and at the end of the longest lease, because one that does not
    reach the view writes what it delivered as late as that. One task looks at all.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._owner: UUID | None = None
        self._waiting: dict[UUID, WithdrawnEnqueue] = {}
        """By enqueue id, oldest first."""
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, entry: Entry) -> None:
        if len(self) >= MAX_FOLLOWED:
            self._count_open(self._forget(self._oldest(DROPPED)))
        due = self._engine.clock.elapsed() + self._engine.timing.redelivery_delay
        self._waiting[entry.enqueue_id] = WithdrawnEnqueue(entry.key, entry.mail_id, due)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Look at each once more, for a redelivery delay at most and while the view answers. Count
        those that a consumer has or had, and those of which it stays open."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        clock, left_open, answers = self._engine.clock, 0, True
        give_up = clock.elapsed() + self._engine.timing.redelivery_delay
        while self and answers and clock.elapsed() < give_up:
            now = clock.elapsed()
            for each, taken in await self._look_at(self._oldest(AT_ONCE)):
                answers &= taken is not None
                is_over = taken is False and each.is_last and each.due <= now
                left_open += not taken and not is_over
                self._forget([each])
        self._count_open(left_open + self._forget(self._oldest(len(self))))

    async def _run(self) -> None:
        clock, timing = self._engine.clock, self._engine.timing
        while self:
            now = clock.elapsed()
            due = [each for each in self._waiting.values() if each.due <= now][:AT_ONCE]
            for each, taken in await self._look_at(due):
                if taken or each.is_last:
                    self._forget([each])
                    self._count_open(int(taken is None))
                else:
                    again = replace(each, due=each.due + timing.longest_mail_lease, is_last=True)
                    self._waiting[each.key.enqueue_id] = again
            if not due:
                # What is added meanwhile is due in a redelivery delay at the earliest.
                soonest = min(each.due for each in self._waiting.values()) - now
                await clock.sleep(min(soonest, timing.redelivery_delay))

    async def _look_at(
        self, portion: Sequence[WithdrawnEnqueue]
    ) -> list[tuple[WithdrawnEnqueue, bool | None]]:
        """Return those that were not dropped meanwhile, each with whether a consumer has or had it;
        None: the view did not show it. Count those that one has or had."""
        found = await asyncio.gather(*(self._is_taken(each) for each in portion))
        kept = [
            (each, taken)
            for each, taken in zip(portion, found, strict=True)
            if each.key.enqueue_id in self._waiting
        ]
        for each, taken in kept:
            if taken:
                count_unwithdrawn(
                    self._engine, each.key.enqueue_id, each.mail_id, IN_FLIGHT, IN_FLIGHT
                )
        return kept

    async def _is_taken(self, withdrawn: WithdrawnEnqueue) -> bool | None:
        """Return whether a consumer has claimed the entry, or delivered some of it; None: the view
        did not show it."""
        view, key = self._engine.view, withdrawn.key
        if self._owner is None:
            self._owner = UUID(int=self._engine.randomness.bits(128))
        try:
            free = await view.claim(key.enqueue_id, self._owner, self._engine.timing.claim)
            mark = await view.mark(key)
            records = await view.records(withdrawn.mail_id)
        except Exception as error:  # whatever it is, the queue has to close behind it
            self._engine.log.debug("a look at a failed enqueue failed", error=type(error).__name__)
            return None
        return not free or bool(records) or (mark is not None and mark.delivered_at is not None)

    def _oldest(self, most: int) -> list[WithdrawnEnqueue]:
        return list(islice(self._waiting.values(), most))

    def _forget(self, portion: Iterable[WithdrawnEnqueue]) -> int:
        return sum(self._waiting.pop(each.key.enqueue_id, None) is not None for each in portion)

    def _count_open(self, count: int) -> None:
        """Count mails of which it stays open whether a consumer delivers them."""
        if count:
            metrics.UNWITHDRAWN.labels(*self._engine.labels, NOT_FOLLOWED).inc(count)
            self._engine.log.warning(
                "failed enqueues were withdrawn, but not followed until a consumer's lease is over",
                count=count,
            )


def count_unwithdrawn(
    engine: Engine, enqueue_id: UUID, mail_id: UUID, reason: str, error: str
) -> None:
    """Count a failed enqueue that may be delivered once; `error` is for the log."""
    metrics.UNWITHDRAWN.labels(*engine.labels, reason).inc()
    engine.log.warning(
        "a failed enqueue could not be withdrawn and may be delivered once",
        enqueue_id=str(enqueue_id),
        mail_id=str(mail_id),
        error=error,
    )
