"""A failed enqueue is withdrawn: its entry ends, so that no consumer delivers a mail whose sender
has got an error and sends it again.

A consumer that was first makes the enqueue succeed. What cannot be withdrawn is counted, because it
may be delivered once beside what the sender sends again (invariant 1).

Withdrawn enqueues that are looked at again, because a consumer may have had the mail in flight
when it was withdrawn, without a claim yet. The caller has got its error, so a mail that is
delivered all the same is counted (invariant 1)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from uuid import UUID

from postroad.distributed.engine.engine import Engine
from postroad.distributed.entries.endings import CLEANED
from postroad.distributed.entries.replacement import is_withdrawn, withdraw, withdraw_row
from postroad.domain.queues.entries import Entry, EntryKey, Mark
from postroad.errors import ServerError
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
    """The withdrawn enqueues of one queue whose messages the broker may have. Each is looked at
    twice: after a redelivery delay, by which a consumer that reaches the view has claimed the entry
    or ended it, and at the end of the longest lease, because one that does not reach the view
    writes what it delivered as late as that. One task looks at all."""

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
        """Return whether a consumer claimed the entry or delivered some of it; None: unknown."""
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


End = Callable[[Engine, Entry], Awaitable[Mark | None]]

TAKEN = Mark()
"""Stands for the mark of an entry that a consumer has claimed: the mail was accepted."""


class Withdrawal:
    """The withdrawal of one entry. `owner` is that of its claim; `published` is when the last
    attempt to publish ended, None where no message can exist; `deadline`, by which the enqueue had
    to end."""

    def __init__(
        self,
        engine: Engine,
        entry: Entry,
        owner: UUID,
        *,
        published: timedelta | None,
        has_row: bool,
        deadline: timedelta,
    ) -> None:
        self._engine = engine
        self._entry = entry
        self._published = published
        self._has_row = has_row
        self._deadline = deadline
        self._owner = owner

    async def run(self, longest: timedelta) -> bool:
        """Withdraw the entry, trying for `longest`; return whether a consumer (or an administrator)
        was first, so that the mail was accepted after all."""
        engine, backoff = self._engine, self._engine.backoff()
        if longest and self._published is not None:
            # By the end of a redelivery delay, a consumer that got the message has claimed the
            # entry or ended it.
            await engine.clock.sleep(
                self._published + engine.timing.redelivery_delay - engine.clock.elapsed()
            )
        give_up = engine.clock.elapsed() + longest
        while True:
            try:
                standing = await self._end(withdraw_row if self._has_row else withdraw)
                break
            except Exception as error:
                is_transient = isinstance(error, ServerError) and error.transient
                if not is_transient or engine.clock.elapsed() >= give_up:
                    self._leave(type(error).__name__)
                    if longest:
                        engine.until_closed(self._withdraw_late())
                    return False
            await backoff.wait()
        if standing is CLEANED and not self._has_row:
            self._leave("cleaned")  # whether its row came in time is not known
            return False
        if not await self._is_withdrawn(standing):
            return True
        if longest and self._published is not None:
            engine.on_withdrawn(self._entry)
        return False

    async def _end(self, withdraw: End) -> Mark | None:
        """Withdraw under a claim. Returns the mark that was there first, if any, or `TAKEN`."""
        if self._published is None:
            return await withdraw(self._engine, self._entry)
        view, enqueue_id = self._engine.view, self._entry.enqueue_id
        if not await view.claim(enqueue_id, self._owner, self._engine.timing.claim):
            return TAKEN
        try:
            return await withdraw(self._engine, self._entry)
        finally:
            await view.release_claim(enqueue_id, self._owner)

    def _leave(self, error: str) -> None:
        entry = self._entry
        count_unwithdrawn(self._engine, entry.enqueue_id, entry.mail_id, NOT_WITHDRAWN, error)

    async def _withdraw_late(self) -> None:
        """Withdraw once the view is back: the row would wait without a message."""
        engine, backoff = self._engine, self._engine.backoff()
        while True:
            await backoff.wait()
            try:
                standing = await self._end(withdraw_row)
                if standing is None and await self._may_get_its_row():
                    if engine.clock.elapsed() > self._deadline + engine.timing.grace:
                        return  # it was counted; the audit deletes the bytes if no row comes
                    continue
            except Exception as error:
                engine.log.debug("a withdrawal waits for the view", error=type(error).__name__)
                continue
            if await self._is_withdrawn(standing):
                engine.log.info(
                    "a failed enqueue was withdrawn late", enqueue_id=str(self._entry.enqueue_id)
                )
            return

    async def _may_get_its_row(self) -> bool:
        """True if the entry has neither row nor mark: its insert had no reply, and a host of the
        view that stands still may carry it out when it continues. Then the mail waits without a
        mark, and without bytes, if they were deleted. Raises: ViewError."""
        return not self._has_row and await self._engine.view.mark(self._entry.key) is None

    async def _is_withdrawn(self, standing: Mark | None) -> bool:
        """Return whether the withdrawal ended the entry; its bytes are deleted then. A cleaned
        entry had ended otherwise, and its successor may need the bytes."""
        withdrawn = standing is None or (standing is not CLEANED and is_withdrawn(standing))
        if withdrawn:
            await delete_upload(self._engine, self._entry.blob_key)
        return withdrawn


async def delete_upload(engine: Engine, blob_key: str) -> None:
    """Delete the bytes of a mail that is not queued. Best effort."""
    try:
        await engine.blobs.delete(blob_key)
    except Exception as error:  # the audit deletes what stays
        engine.log.debug("bytes of a mail that was not queued stay", error=type(error).__name__)
