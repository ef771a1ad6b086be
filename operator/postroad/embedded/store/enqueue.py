"""Accepts a mail: stores and syncs its bytes, then its ENVELOPE, then returns.

The order of the lines is the argument of FORMAT.md 8 for R2.
Source: SP-7..9, SP-13 (a slow sender has a file of its own); LQ-29; FORMAT.md 4."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from postroad.contents import chunks_of
from postroad.domain.mail.envelope_documents import envelope_value
from postroad.domain.mail.mail import Content, Envelope, Mail
from postroad.domain.mail.shapes import Shape
from postroad.domain.queues.references import check_same, digest_of, token_of
from postroad.domain.values.text import to_json
from postroad.embedded.log.envelopes import (
    ENVELOPE_BYTES,
    MAX_DOMAINS,
    EnvelopeRecord,
    decode_new,
    with_enqueue_id,
)
from postroad.embedded.log.index import KeyIndex
from postroad.embedded.log.lanes import LaneLog, Written
from postroad.embedded.log.layout import KEYS, NEW, OWN_FILE, SpoolKind, file_of, kind_for
from postroad.embedded.log.records import ENVELOPE, KeyRecord
from postroad.embedded.log.spool_files import CHUNK, HEADER_BYTES, Filling, Kept, NewMail
from postroad.embedded.store.engine import Engine
from postroad.embedded.store.spool_writing import StoredShapes
from postroad.errors import InvalidInput, PostroadError, StoreFailed, StoreFull

Result = TypeVar("Result")


async def receive(
    engine: Engine, mail: Mail, delay: timedelta, key: str | None
) -> tuple[UUID, bool]:
    """Queue a mail. See `MailQueue.enqueue`. Returns whether it was queued by this call, too."""
    if key is None:
        return await _receive_new(engine, mail, delay, None), True
    engine.check()
    token, digest, keys = token_of(key), digest_of(mail), engine.keys
    await engine.indexed.wait()  # until then, keys may stand for mails that are not found yet
    engine.check()  # a stop sets `indexed`, too
    # No `await` between this look and `under_way`: two calls with one key would queue two mails.
    while (standing := keys.standing(token, engine.now_us())) is None:
        if (other := keys.under_way.get(token)) is not None:
            await asyncio.wait({other})
            continue
        work = _receive_new(engine, mail, delay, (token, digest))
        task = keys.under_way[token] = asyncio.ensure_future(work)
        task.add_done_callback(partial(_end, keys, token))
        # It goes on when the caller is cancelled: others with this key wait for it.
        return await asyncio.shield(task), True
    check_same(digest, standing.digest)
    return UUID(bytes=standing.enqueue_id), False


def _end(keys: KeyIndex, token: bytes, task: asyncio.Task[UUID]) -> None:
    del keys.under_way[token]
    if not task.cancelled():
        task.exception()  # retrieved here: a cancelled caller does not


async def _receive_new(
    engine: Engine, mail: Mail, delay: timedelta, key: tuple[bytes, bytes] | None
) -> UUID:
    engine.check()
    envelope = await _checked(engine, mail)
    engine.arrival_rate.under_way += 1
    try:
        return await _receive(engine, mail, envelope, delay, key)
    finally:
        engine.arrival_rate.under_way -= 1


async def _checked(engine: Engine, mail: Mail) -> bytes:
    """Return a mail's envelope in JSON. Raises: InvalidMail, MailTooLarge, StoreFull."""
    envelope = to_json(envelope_value(mail.envelope))
    size = len(mail.content) if isinstance(mail.content, bytes) else 0
    try:
        engine.limits.check(envelope, size)
    except StoreFull:
        if not await engine.make_room():
            raise
        engine.limits.check(envelope, size)
    return envelope


async def _receive(
    engine: Engine,
    mail: Mail,
    envelope: bytes,
    delay: timedelta,
    key: tuple[bytes, bytes] | None,
) -> UUID:
    accepted_us = engine.now_us()
    mail_id = engine.identifiers.new().bytes
    slot = await engine.slots.take(_kind_for(mail, envelope))
    spooling = _Spooling(engine, slot, mail_id, accepted_us)
    # Synced before the ENVELOPE exists: the log may be durable first, and the 250 without content.
    size, shape = await spooling.store(mail.content, envelope, mail.shape)
    accepted_us = spooling.accepted_us
    record = _record_of(engine, mail.envelope, slot, mail_id, accepted_us, size)
    record = record._replace(due_us=engine.due_after(delay))
    kept = (mail.content, shape) if isinstance(mail.content, bytes) else None
    keyed = None if key is None else KeyRecord(mail_id, 0, record.enqueue_id, *key, accepted_us)
    await _accept(engine, record, envelope, kept, keyed)
    return UUID(bytes=record.enqueue_id)


def _record_of(
    engine: Engine,
    envelope: Envelope,
    slot: int,
    mail_id: bytes,
    accepted_us: int,
    size_bytes: int,
) -> EnvelopeRecord:
    return EnvelopeRecord(
        mail_id=mail_id,
        enqueue_id=engine.identifiers.new().bytes,
        slot=slot,
        entry_number=0,
        envelope=envelope,
        numbers=tuple(range(len(envelope.recipients))),
        accepted_us=accepted_us,
        enqueued_us=accepted_us,
        size_bytes=size_bytes,
        held=envelope.is_quarantined,
    )


async def _accept(
    engine: Engine,
    record: EnvelopeRecord,
    json: bytes,
    content: Kept | None,
    keyed: KeyRecord | None,
) -> None:
    """Append a new mail's ENVELOPE and return when it is durable (R2). `json`: its envelope's.
    `content`: that of its spool file, if it is in memory. `keyed`: the first KEY of its enqueue
    key, if it has one. Raises: QueueClosed, StoreFailed, StoreFull."""
    if keyed is not None:  # durable first: a cut would leave its mail, and a repetition a second
        await engine.lane(KEYS).commit(engine.append_key(keyed))
    lane, end = _append(engine, record, json, content, keyed)
    others = engine.arrival_rate.under_way - lane.waiters > 1  # their ENVELOPEs follow soon
    await lane.durable_at(end, engine.sync_wait * others)


def _append(
    engine: Engine,
    record: EnvelopeRecord,
    json: bytes,
    content: Kept | None,
    keyed: KeyRecord | None = None,
) -> tuple[LaneLog, int]:
    """Append a new mail's ENVELOPE. Returns where: the mail is queued when the lane is durable up
    to there. Raises: QueueClosed, StoreFailed."""
    written = engine.write(record, json)
    lane = engine.lanes[written.segment.lane]
    # Not behind the wait: a caller that is cancelled there leaves a mail in the log, which then no
    # consumer gets before the next start.
    lane.when_durable(written.end, partial(_admit, engine, record, written, content, keyed))
    return lane, written.end


def _admit(
    engine: Engine,
    record: EnvelopeRecord,
    written: Written,
    content: Kept | None,
    keyed: KeyRecord | None,
) -> None:
    if keyed is not None:
        # Before a consumer gets the mail: else a checkpoint could pass over its end without this.
        engine.append_key(keyed._replace(is_accepted=True))
    entry = engine.admit(record, written)
    if not record.due_us and not record.held:
        engine.content_cache.keep(entry, record, content)


async def receive_portion(engine: Engine, mails: Sequence[Mail]) -> list[UUID | Exception]:
    """Queue mails whose contents are in memory, by one sync of each spool file and one of the log.
    Returns the enqueue id of each mail, or why it is not queued: behind a mail that is refused,
    none is begun. Raises: QueueClosed, StoreFailed."""
    engine.check()
    engine.arrival_rate.under_way += len(mails)
    portion = _Portion(engine, mails)
    try:
        await portion.store()
        return await portion.queue()
    finally:
        engine.arrival_rate.under_way -= len(mails)


class _Portion:
    """Mails that are stored together. `found` has what became of each, by its number."""

    def __init__(self, engine: Engine, mails: Sequence[Mail]) -> None:
        self._engine, self._mails = engine, mails
        self._by_file: dict[int, list[tuple[int, NewMail]]] = {}
        self._stored: dict[int, StoredShapes] = {}
        self._found: dict[int, UUID | Exception] = {}

    async def store(self) -> None:
        """Store all mails, durably."""
        try:
            await self._give_slots()
            writer = self._engine.spool_writer
            for file, mails in self._by_file.items():
                self._stored[file] = writer.store(*(mail for _, mail in mails))
            if self._stored:
                await asyncio.wait(self._stored.values())
        except BaseException:
            for file in self._by_file:
                if (stored := self._stored.get(file)) is None:
                    self._release(file)
                else:  # at once, the thread would write on in the files of the next mails
                    stored.add_done_callback(partial(self._abandon, file))
            raise

    async def _give_slots(self) -> None:
        engine, now_us = self._engine, self._engine.now_us()
        for number, mail in enumerate(self._mails):
            assert isinstance(mail.content, bytes)
            try:
                json = await _checked(engine, mail)
                slot = await engine.slots.take(_kind_for(mail, json))
            except PostroadError as error:
                rest = range(number, len(self._mails))
                self._found |= dict.fromkeys(rest, error)
                return
            new = NewMail(
                slot, engine.identifiers.new().bytes, mail.content, json, now_us, mail.shape
            )
            self._by_file.setdefault(file_of(slot), []).append((number, new))

    async def queue(self) -> list[UUID | Exception]:
        """Append the ENVELOPEs of the mails that were stored, and return when they are durable."""
        engine, ends = self._engine, dict[LaneLog, int]()
        shapes: dict[int, tuple[NewMail, Shape]] = {}
        for file, mails in self._by_file.items():
            error = self._stored[file].exception()
            if isinstance(error, Exception):
                self._abandon(file, self._stored[file])
                self._found |= dict.fromkeys((number for number, _ in mails), error)
                continue
            for (number, mail), shape in zip(mails, self._stored[file].result(), strict=True):
                shapes[number] = mail, shape
        for number, (mail, shape) in sorted(shapes.items()):
            record = _record_of(
                engine,
                self._mails[number].envelope,
                mail.slot,
                mail.mail_id,
                mail.accepted_us,
                len(mail.content),
            )
            lane, end = _append(engine, record, mail.envelope, (mail.content, shape))
            ends[lane] = end
            self._found[number] = UUID(bytes=record.enqueue_id)
        for lane, end in ends.items():
            await lane.durable_at(end)
        return [self._found[number] for number in range(len(self._mails))]

    def _abandon(self, file: int, stored: StoredShapes) -> None:
        """Release slots that no ENVELOPE names, unless the disk failed."""
        if stored.cancelled() or not isinstance(stored.exception(), StoreFailed):
            self._release(file)

    def _release(self, file: int) -> None:
        for _, mail in self._by_file[file]:
            self._engine.slots.release(mail.slot)


def accept_stored(
    engine: Engine, payload: bytes, leased: set[int]
) -> tuple[UUID, asyncio.Future[None]]:
    """Queue a mail that a receiver has stored and synced in a slot leased to it (receiver.py).
    `payload`: the mail's ENVELOPE, without an enqueue id. `leased`: the receiver's slots. Returns
    the enqueue id, and a future that is done when the mail is durable and queued. Raises:
    InvalidInput when it is no new mail in such a slot, StoreFailed, QueueClosed."""
    engine.check()
    if len(payload) > engine.options.largest_envelope + MAX_DOMAINS + ENVELOPE_BYTES:
        raise InvalidInput("the envelope is too large for one record")
    enqueue_id = engine.identifiers.new()
    record = with_enqueue_id(payload, enqueue_id.bytes)
    mail = decode_new(record)  # checked before the append: recovery refuses a bad ENVELOPE
    if mail.slot not in leased:
        raise InvalidInput(f"slot {mail.slot} is not leased to this receiver")
    leased.remove(mail.slot)  # a second mail in it would be written over the first
    lane = engine.lane(NEW)
    written = lane.append(ENVELOPE, record)
    lane.when_durable(written.end, partial(_admit, engine, mail, written, None, None))
    is_crowded = engine.arrival_rate.announce(lane.loop.time(), engine.sync_wait)
    return enqueue_id, lane.durable_at(written.end, engine.sync_wait * is_crowded)


def _kind_for(mail: Mail, envelope: bytes) -> SpoolKind:
    if not isinstance(mail.content, bytes):
        return OWN_FILE
    return kind_for(HEADER_BYTES + len(mail.content) + len(envelope))


class _Spooling:
    """Stores one mail in its slot. After an error it releases the slot."""

    def __init__(self, engine: Engine, slot: int, mail_id: bytes, accepted_us: int) -> None:
        self._engine, self._slot = engine, slot
        self._mail_id, self.accepted_us = mail_id, accepted_us
        self._filling: Filling | None = None
        self._call: asyncio.Future[Any] | None = None

    async def store(
        self, content: Content, envelope: bytes, shape: Shape | None
    ) -> tuple[int, Shape]:
        """Store content and envelope; return the content's size and shape. Durable when it
        returns. `shape`: that of a content in memory, where it is known."""
        try:
            if isinstance(content, bytes):
                mail = self._mail(content, envelope, shape)
                (shape,) = await self._wait(self._engine.spool_writer.store(mail))
                return len(content), shape
            return await self._store_stream(chunks_of(content, CHUNK), envelope)
        except BaseException as error:
            self._abandon(is_sound=not isinstance(error, StoreFailed))
            raise

    def _mail(self, content: bytes, envelope: bytes, shape: Shape | None = None) -> NewMail:
        return NewMail(self._slot, self._mail_id, content, envelope, self.accepted_us, shape)

    async def _run(self, work: Callable[..., Result], *arguments: object) -> Result:
        """Run in a thread."""
        return await self._wait(
            asyncio.ensure_future(self._engine.mail_threads.run(work, *arguments))
        )

    async def _wait(self, call: asyncio.Future[Result]) -> Result:
        """Wait for a call that goes on when the caller is cancelled."""
        self._call = call  # before the wait: `_abandon` has to know the thread that still writes
        return await asyncio.shield(call)

    async def _store_stream(
        self, chunks: AsyncIterator[bytes], envelope: bytes
    ) -> tuple[int, Shape]:
        """Store chunk by chunk, because a stream may be larger than memory."""
        engine = self._engine
        filling = self._filling = await self._run(engine.spool_files.begin, self._slot)
        async for chunk in chunks:
            engine.limits.check_size(filling.length + len(chunk))
            engine.limits.check_room(len(chunk))
            await self._run(filling.add, chunk)
        self.accepted_us = engine.now_us()  # a stream may have taken hours
        shape = await self._run(_finish, filling, self._mail(b"", envelope))
        filling.close()
        return filling.length, shape

    def _abandon(self, *, is_sound: bool) -> None:
        """Release the slot, which no ENVELOPE names."""
        if self._call is None or self._call.done():
            self._release(is_sound)
        else:  # at once, the thread would write on in the file of the next mail
            self._call.add_done_callback(lambda _: self._release(is_sound))

    def _release(self, is_sound: bool) -> None:
        call, filling = self._call, self._filling
        if call is not None and not call.cancelled() and call.exception() is None:
            # Looked at here, as is the error: a cancelled caller does not.
            result = call.result()
            filling = result if isinstance(result, Filling) else filling
        if filling is not None:
            filling.close()
        # A slot in which the disk failed waits for the next start. One on a disk that is full does
        # not: what was stored of a large mail has the space that others lack.
        if is_sound:
            self._engine.slots.release(self._slot)


def _finish(filling: Filling, mail: NewMail) -> Shape:
    shape = filling.finish(mail)
    filling.sync()
    return shape
