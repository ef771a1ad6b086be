"""Proof that the checker finds violations: each bite undoes one precaution of the engine inside the
processes of a run, and a run with a bite has to fail. Some bites wrap a port, so that changes of
the engine leave them valid; the others replace a function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

from chaos.checker import Kind
from chaos.nemesis import Fault, birth_offset
from postroad.adapters.cassandra.view import view as cassandra_view
from postroad.adapters.memory import blobs as memory_blobs
from postroad.adapters.memory import view
from postroad.adapters.s3 import blobs as s3_blobs
from postroad.distributed import mail_queue
from postroad.distributed.administration import dead_queue
from postroad.distributed.dequeue import dispatch
from postroad.distributed.engine.engine import Engine
from postroad.distributed.engine.limits_cache import LimitsCache
from postroad.distributed.enqueue import enqueue
from postroad.distributed.entries import replacement
from postroad.distributed.maintenance import audit
from postroad.domain.mail.mail import Mail
from postroad.domain.queues.dispatch import Redeliver, ReferenceArrival, Verdict, decide
from postroad.domain.queues.entries import Entry, EntryKey, Mark, place, slice_of
from postroad.domain.queues.references import Reference
from postroad.intake.filters import chain
from postroad.intake.filters.decisions import FilterDecision, FilteredMail, FilterFailed
from postroad.intake.outbox.forwarder import Forwarder
from postroad.intake.outbox.outbox import Outbox
from postroad.ports.mail_queue import Item

Change = tuple[Any, str, Any]
"""Owner, name, replacement."""


@dataclass(frozen=True, slots=True)
class Bite:
    """What a bite undoes, by replacing attributes."""

    says: str
    finds: Kind
    """The violation by which the checker must find it."""
    changes: Callable[[], list[Change]]
    needs: Callable[[Sequence[Fault]], bool] = bool
    """Whether a drawn schedule has a fault without which the bite shows nothing. Schedules without
    one are not run."""
    backend: str = "memory"
    """The back end of its runs."""


async def _granted(self: Any, *arguments: Any) -> bool:
    return True


async def _nothing(self: Any, *arguments: Any) -> None:
    return None


async def _false(*arguments: Any, **more: Any) -> bool:
    return False


async def _own_now(self: Any) -> datetime:
    """Return the date of the process without comparing it with other clocks."""
    now: datetime = self._clock.now()
    return now


def _begin(now: Callable[[Engine], Awaitable[datetime]]) -> Callable[[Engine], Awaitable[None]]:
    """Return a function that sets a new queue's limits by the time that `now` returns, and checks
    no clock."""

    async def begin(engine: Engine) -> None:
        if (await engine.limits_cache.refresh()).browse_start is None:
            window = engine.configuration.effective().writing.slice_window
            start = slice_of(await now(engine) - mail_queue.MAX_RACING, window)
            await engine.view.advance(browse_start=start, content_start=start)
            await engine.limits_cache.refresh()

    return begin


_new_key = Engine.new_key


async def _any_key(self: Engine, after: UUID | None = None) -> EntryKey:
    """Make the key of a new mail's entry, even before browse start. The key of a successor is made
    as usual, because a replacement repeats until it gets a key that lies after browse start."""
    if after is not None:
        return await _new_key(self, after)
    await self.limits_cache.check_clock()
    writing = self.configuration.effective().writing
    return place(self.ids.new(), writing.slice_window, writing.bucket_count)


def _repeating(entry: Entry) -> Reference:
    return Reference.to(entry, claim=True)


def _decide_without_removals(
    reference: Reference, mark: Mark | None, arrival: ReferenceArrival
) -> Verdict | Redeliver:
    return decide(reference, None if replacement.is_removed(mark) else mark, arrival)


async def _nothing_found(*arguments: Any, **more: Any) -> tuple[None, list[Any]]:
    return None, []


NOT_RESCUED: tuple[Change, ...] = (
    (dispatch, "rescue_if_late", _false),
    (dead_queue, "rescue_if_late", _false),
)

BEHIND: tuple[Change, ...] = (
    *NOT_RESCUED,
    (Engine, "new_key", _any_key),
    (enqueue._Registration, "_check_in_time", _nothing),
)
"""The precautions that keep a mail whose entry lies before browse start from being lost."""

LONG = 600.0
"""Seconds by which a clock must be wrong to put browse start past mail that is still to come."""


A_WHILE = 30.0
"""Seconds in which mails come whose first message waits as long as its repetition."""


def _is_born_ahead(schedule: Sequence[Fault]) -> bool:
    return birth_offset(schedule) > LONG


def _is_unconfirmed_in_a_backlog(schedule: Sequence[Fault]) -> bool:
    unconfirmed, backlog = (
        [each for each in schedule if each.kind == kind] for kind in ("unconfirmed", "rollout")
    )
    return any(
        min(one.at + one.lasts, other.at + other.lasts) - max(one.at, other.at) > A_WHILE
        for one in unconfirmed
        for other in backlog
    )


def _has_pauses(schedule: Sequence[Fault]) -> bool:
    return any(each.kind == "vm pause" and each.lasts > LONG for each in schedule)


_send, _attempt, _decided = Outbox.send, Forwarder._attempt, chain._decided


async def _send_by_any_key(
    self: Outbox, mail: Mail, delay: timedelta, key: str, accepted_at: datetime | None
) -> UUID:
    return await _send(self, mail, delay, str(uuid4()), accepted_at)


async def _attempt_once(self: Forwarder, item: Item) -> bool:
    if not await _attempt(self, item):
        await item.done()
        self._outbox.left(item.mail_id, item.size_bytes, "refused")
    return True


async def _decided_or_accepted(filter_: chain.Filter, mail: FilteredMail) -> FilterDecision:
    try:
        return await _decided(filter_, mail)
    except FilterFailed:
        return FilterDecision()


def _has(*kinds: str) -> Callable[[Sequence[Fault]], bool]:
    return lambda schedule: any(each.kind in kinds for each in schedule)


BITES: Mapping[str, Bite] = {
    "claims": Bite(
        "every claim is granted",
        Kind.DUPLICATE,
        lambda: [
            (view.MemoryView, "claim", _granted),
            (cassandra_view.CassandraView, "claim", _granted),
        ],
    ),
    "bytes": Bite(
        "bytes are not deleted",
        Kind.LEFT,
        lambda: [
            (memory_blobs.MemoryBlobs, "delete", _nothing),
            (s3_blobs.S3Blobs, "delete", _nothing),
        ],
    ),
    "creation": Bite(
        "a queue is created by any clock, and late mail is neither refused nor rescued",
        Kind.LOST,
        lambda: [
            (mail_queue, "begin", _begin(lambda engine: _own_now(engine.limits_cache))),
            *BEHIND,
        ],
        _is_born_ahead,
    ),
    "browse start": Bite(
        "browse start follows the clock of its process, and late mail is not refused or rescued",
        Kind.LOST,
        lambda: [
            (mail_queue, "begin", _begin(lambda engine: engine.limits_cache.view_now())),
            (LimitsCache, "check_clock", _nothing),
            (LimitsCache, "earliest_now", _own_now),
            *BEHIND,
        ],
    ),
    "pauses": Bite(
        "mail that a paused machine stores behind browse start is not rescued",
        Kind.LOST,
        lambda: [*NOT_RESCUED],
        _has_pauses,
    ),
    "repetition": Bite(
        "a message that was not confirmed is repeated as one that only needs a claim",
        Kind.DUPLICATE,
        lambda: [(Reference, "repeating", _repeating)],
        _is_unconfirmed_in_a_backlog,
    ),
    "audit": Bite(
        "bytes without a mail are not looked for",
        Kind.LEFT,
        lambda: [(audit, "audit_portion", _nothing_found)],
    ),
    "withdrawal": Bite(
        "a failed enqueue is not withdrawn",
        Kind.UNCOUNTED,
        lambda: [(enqueue._Registration, "_withdraw", _false)],
    ),
    "removal": Bite(
        "a consumer does not obey the mark of a removal",
        Kind.RESURRECTED,
        lambda: [(dispatch, "decide", _decide_without_removals)],
    ),
    "outbox-keys": Bite(
        "an outbox hands on a mail under another key at each attempt",
        Kind.DUPLICATE,
        lambda: [(Outbox, "send", _send_by_any_key)],
        _has("cut", "silence"),
        backend="intake",
    ),
    "outbox": Bite(
        "an outbox forgets a mail after one attempt",
        Kind.LOST,
        lambda: [(Forwarder, "_attempt", _attempt_once)],
        _has("cut", "silence"),
        backend="intake",
    ),
    "filters": Bite(
        "mail goes on without a filter that fails",
        Kind.ALTERED,
        lambda: [(chain, "_decided", _decided_or_accepted)],
        _has("milter"),
        backend="intake",
    ),
}


@contextmanager
def undone(name: str | None) -> Iterator[None]:
    """Undo a precaution in this process, for as long as the context lasts; None: nothing."""
    if name is None:
        yield
        return
    patches = [patch.object(*change) for change in BITES[name].changes()]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()
