"""Steps that the endings of an entry have in common: a mark, unless the entry is over; then the
bytes are deleted, where no other entry needs them; then the ack.

Mark, then bytes, then ack (invariant 2): a crash between is a redelivery that the mark filters. An
entry before browse start is over, and its mark may be cleaned away: no mark is written there
(invariant 4), unless its row came late.

Errors of single mails in maintenance: each affects only its mail, and is logged and counted.

A transient error may belong to a single mail too: one delay queue that is missing, one object that
is not deleted. Only many such errors in a row show that a server is away, which ends the round."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

from postroad.distributed.engine.engine import Engine
from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.queues.entries import Ending, EndingKind, Entry, EntryKey, Mark, UndecodableRow
from postroad.domain.queues.names import DELAY_SECONDS, next_delay
from postroad.domain.queues.references import Reference, encode
from postroad.domain.values.identifiers import EPOCH, moment_of
from postroad.errors import BlobsError, BrokerUnavailable, PostroadError, ServerError
from postroad.ports.broker import Delivery
from postroad.telemetry import metrics

MAX_DELETION_DELAY = timedelta(minutes=20)
"""Until bytes are tried again that could not be deleted. A message that comes when the mark is gone
has no bytes deleted: the audit does it."""

SERVER_RETRY_SECONDS = max(step for step in DELAY_SECONDS if step <= 60)
"""Seconds until a step that failed because a server is away is tried again."""

CLEANED = Mark(ending=Ending(EndingKind.WITHDRAWN, EPOCH))
"""Stands for the mark of an entry that is over and was cleaned, so that its ending is not known."""


async def mark_if_passed(engine: Engine, entry: Entry | UndecodableRow) -> Mark | None:
    """Return the mark of an entry before browse start, or `CLEANED`; None where it is not before,
    or where its row came late (`rescue_if_late`) and it is not over. Raises: ViewError."""
    if not (await engine.limits_cache.limits()).have_passed(entry.key.slice_start):
        return None
    mark = await engine.view.mark(entry.key)
    if mark is not None and mark.is_final:
        return mark
    return CLEANED if await engine.view.row(entry.key) is None else mark


async def end(
    engine: Engine,
    entry: Entry | UndecodableRow,
    ending: Ending,
    outcomes: AttemptOutcomes | None = None,
) -> Mark | None:
    """End an entry that is not over, after an attempt with these outcomes or after none. Returns
    None when it was ended, else the mark that decides. After the write it checks whether the entry
    was cleaned, before anything follows from the ending: a removal would delete the bytes that the
    entry's successor needs. `replacement.finish` checks that for a replacement. Raises:
    ViewError."""
    over = await mark_if_passed(engine, entry)
    if over is not None:
        return over
    standing = await engine.view.end(entry.key, ending, entry.traits, outcomes)
    if standing is None and ending.kind is not EndingKind.REPLACED:
        return CLEANED if await came_too_late(engine, entry.key) else None
    return standing


async def came_too_late(engine: Engine, key: EntryKey) -> bool:
    """True if the entry that was just ended had been cleaned before. Where the new ending is gone
    too, the cleanup came after it, and the ending counts. Raises: ViewError."""
    return await was_cleaned(engine, key) and await engine.view.mark(key) is not None


async def was_cleaned(engine: Engine, key: EntryKey) -> bool:
    """True if an entry's row was deleted with its slice, so that a mark that is missing, or that
    this process wrote, decides nothing. Call it after the mark was read or written. It reads the
    limits from the view: to a virtual machine that was paused its cached limits look fresh, and no
    clock of its own shows the pause (ADR 0016). A row that is there was not cleaned, because rows
    are deleted before marks. Raises: ViewError."""
    limits = await engine.view.limits()
    return limits.have_passed(key.slice_start) and await engine.view.row(key) is None


async def delete_bytes(engine: Engine, keys: list[str]) -> bool:
    """Delete the bytes of mails that were removed. Returns whether the object store did; where it
    did not, the mails' messages delete them when they come, or else the audit."""
    try:
        if len(keys) == 1:
            await engine.blobs.delete(keys[0])
        else:
            await engine.blobs.delete_together(keys)
    except BlobsError as error:
        engine.log.debug("bytes of a removed mail stay for now", error=type(error).__name__)
        return False
    return True


async def publish_again(
    engine: Engine, delivery: Delivery, reference: Reference, delay_seconds: int
) -> None:
    """Publish a reference again, to come after a delay, and ack the message it came in. Raises:
    BrokerError; the message is then still leased."""
    body = encode(reference)
    await engine.broker.publish(reference.key.enqueue_id, body, delay_seconds)
    await ack(engine, delivery)


async def delete_and_ack(engine: Engine, delivery: Delivery, reference: Reference) -> None:
    """Delete the bytes of a mail that is over, then ack. While the object store is away, the
    reference is published again with a delay, and meets the mark. The delay grows with the entry's
    age: a store that refuses deletions (retention, a missing right) keeps all that is delivered
    meanwhile. Raises: BrokerError."""
    try:
        await engine.blobs.delete(reference.blob_key)
    except ServerError as error:
        engine.log.debug("bytes are deleted later", error=type(error).__name__)
        now, began = engine.limits_cache.now(), moment_of(reference.key.enqueue_id)
        age = now - max(began, reference.due_at or began)
        step = max(SERVER_RETRY_SECONDS, next_delay(now + min(age, MAX_DELETION_DELAY), now))
        await publish_again(engine, delivery, reference.again(), step)
    else:
        await ack(engine, delivery)


async def ack(engine: Engine, delivery: Delivery) -> None:
    """Ack. Where that fails, the broker redelivers the message, and the mark stops it."""
    try:
        await delivery.ack()
    except BrokerUnavailable:
        engine.log.debug("ack failed; the message will be redelivered and ignored")


MAX_LOGGED = 20
"""Log at most this many mails in a round; further ones, likely of one cause, are only counted."""


IN_A_ROW = 32
"""Transient errors in a row that end a round: twice as many as mails that are maintained at once,
since those all meet a server's absence together."""


class MailErrors:
    """The mails of one round for which maintenance failed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._count = 0
        self._first: Exception | None = None
        self._transient: Exception | None = None
        self._in_a_row = self._succeeded = 0

    @contextmanager
    def of(self, enqueue_id: UUID) -> Iterator[None]:
        """Catch the error of one mail, count it and, for the first `MAX_LOGGED`, log it. Raises: a
        transient error that follows many others."""
        try:
            yield
        except Exception as error:
            if is_common(error):
                self._transient = self._transient or error
                self._in_a_row += 1
                if self._in_a_row >= IN_A_ROW:
                    raise
            self._count += 1
            self._first = self._first or error
            note(self._engine, enqueue_id, is_logged=self._count <= MAX_LOGGED)
        else:
            self._in_a_row = 0
            self._succeeded += 1

    def check(self) -> None:
        """Raises: a transient error, when no mail succeeded: the round is to be repeated."""
        if self._transient is not None and not self._succeeded:
            raise self._transient

    def end(self) -> None:
        """End the round. Raises: the first error, when there were more than are logged."""
        if self._first is not None and self._count > MAX_LOGGED:
            self._engine.log.error(
                "maintenance failed for many mails", count=self._count, logged=MAX_LOGGED
            )
            raise self._first


def is_common(error: BaseException) -> bool:
    """Return whether an error may affect every other mail too."""
    return isinstance(error, PostroadError) and error.transient


def note(engine: Engine, enqueue_id: UUID, *, is_logged: bool = True) -> None:
    """Count and log the error that is being handled."""
    metrics.MAINTENANCE_ERRORS.labels(*engine.labels).inc()
    error = sys.exception()
    if not is_logged:
        return
    if error is not None and is_common(error):
        name = type(error).__name__
        engine.log.warning("maintenance failed for a mail", enqueue_id=str(enqueue_id), error=name)
    else:
        engine.log.exception("maintenance failed for a mail", enqueue_id=str(enqueue_id))
