"""Enqueue: bytes, then row, then message; a success only after all three (invariant 1).

An enqueue with a key: of several with one key, one mail is queued.

The first takes the key for its entry, queues the mail as any other, and then notes that it is
accepted. An enqueue that finds the key taken by an entry that is not accepted waits until that is
settled. When the other one can no longer succeed, the view decides: a row without an ending gets a
successor, which has a message for certain, and is accepted; an entry without a row is withdrawn, so
that a row or message that comes late meets a mark, and the key is taken over. Source: ADR 0045."""

from __future__ import annotations

import asyncio
from dataclasses import replace as copy
from datetime import datetime, timedelta
from uuid import UUID

from postroad import errors
from postroad.distributed.engine.engine import Engine
from postroad.distributed.engine.timing import persist
from postroad.distributed.enqueue.withdrawal import Withdrawal, delete_upload
from postroad.distributed.entries.endings import CLEANED
from postroad.distributed.entries.live_slices import rescue
from postroad.distributed.entries.replacement import is_removed, is_withdrawn, replace, withdraw
from postroad.domain.mail.mail import Mail
from postroad.domain.queues.entries import Change, Entry, Mark, UndecodableRow
from postroad.domain.queues.names import key_of_bytes, next_delay, redelivery_delay_after
from postroad.domain.queues.references import Reference, check_same, digest_of, encode, token_of
from postroad.domain.values.identifiers import moment_of
from postroad.ports.blobs import Stored
from postroad.ports.mail_queue import check_delay, check_mail
from postroad.ports.view import KeyedEntry
from postroad.telemetry import metrics

TRIES = 3
"""Attempts at the note that a mail is accepted, where the view does not answer."""


class EnqueueKey:
    """The key of one enqueue. `token` and `digest` are those of its key and mail."""

    def __init__(self, engine: Engine, token: bytes, digest: bytes) -> None:
        self._engine, self._token, self._digest = engine, token, digest
        self._mine: KeyedEntry | None = None
        self.began = engine.clock.elapsed()
        """When the id of the entry that has the key was about to be made."""

    @classmethod
    async def of(cls, engine: Engine, key: str, mail: Mail) -> EnqueueKey:
        """Return the key of an enqueue. Raises: InvalidInput, ViewError."""
        token_of(key)
        digest = digest_of(mail)
        identity = await engine.view.identity()
        scope = min((each.bytes for each in identity.incarnations), default=b"")
        return cls(engine, token_of(key, scope), digest)

    async def take(self, entry: Entry) -> Entry | UUID:
        """Take the key. Returns the entry, under an id that is just made; or the id of the entry
        that was accepted with this key before. Raises: KeyReused, ServerError, ClockSkew,
        ConfigurationStale, QueueClosed."""
        engine, backoff = self._engine, self._engine.backoff()
        instead_of: KeyedEntry | None = None
        while True:
            self.began = engine.clock.elapsed()
            entry = copy(entry, key=await engine.new_key())
            engine.check_open()
            mine = _keyed(entry, self._digest)
            standing = await self._write(mine, instead_of)
            instead_of = None
            if standing is mine:
                self._mine = mine
                return entry
            if standing is None:
                continue
            queued = standing.is_accepted or await self._was_queued(standing, entry)
            if queued:
                check_same(self._digest, standing.digest)
                await self._accept(standing)
                return standing.key.enqueue_id
            if queued is None:
                await backoff.wait()
            else:
                instead_of = standing

    async def _write(self, mine: KeyedEntry, instead_of: KeyedEntry | None) -> KeyedEntry | None:
        """Return what the key stands for; None where that is neither entry."""
        view = self._engine.view
        if instead_of is None:
            return await view.take_key(self._token, mine)
        return mine if await view.change_key(self._token, instead_of, mine) else None

    async def accept(self) -> None:
        """Note that the mail is queued. Raises: ServerError; the mail is queued all the same, which
        an enqueue with this key finds out."""
        if self._mine is not None:
            await self._accept(self._mine)

    async def _accept(self, keyed: KeyedEntry) -> None:
        if keyed.is_accepted:
            return
        view, accepted = self._engine.view, copy(keyed, is_accepted=True)
        await persist(
            self._engine.backoff(),
            TRIES,
            lambda: view.change_key(self._token, keyed, accepted),
        )

    async def _was_queued(self, keyed: KeyedEntry, mine: Entry) -> bool | None:
        """Return whether an entry that is not accepted was queued after all; None while it may be
        on its way. An entry that will not come is ended. Raises: as `replacement.replace`."""
        view = self._engine.view
        row = await view.row(keyed.key)
        mark = await view.mark(keyed.key)
        if mark is not None and is_withdrawn(mark):
            return False
        if row is not None and mark is not None and not mark.is_live:
            return True
        if not self._is_overdue(keyed):
            return None
        if row is None:
            return await self._is_accepted_without_row(keyed, mine)
        if isinstance(row, UndecodableRow):
            return True
        return await self._is_rescued(row)

    def _is_overdue(self, keyed: KeyedEntry) -> bool:
        """True if the enqueue that took the key has failed by its own clock, if it has not
        succeeded."""
        timing = self._engine.timing
        age = self._engine.clock.now() - moment_of(keyed.key.enqueue_id)
        return age >= timing.deadline + timing.apart

    async def _is_rescued(self, row: Entry) -> bool:
        """Give a row that may have no message a successor, unless it was ended; return whether the
        mail was queued."""
        engine = self._engine
        if (await engine.view.limits()).have_passed(row.key.slice_start):
            await rescue(engine, row)
            return True
        standing = await replace(engine, row, Change.nothing(row))
        return standing is None or not is_withdrawn(standing)

    async def _is_accepted_without_row(self, keyed: KeyedEntry, mine: Entry) -> bool:
        """Withdraw an entry that has no row; return whether it had ended otherwise. What was
        cleaned counts as not queued: a second mail is better than none."""
        ghost = copy(
            mine,
            key=keyed.key,
            mail_id=keyed.mail_id,
            blob_key=keyed.blob_key,
            accepted_at=keyed.accepted_at,
            enqueued_at=keyed.accepted_at,
        )
        standing: Mark | None = await withdraw(self._engine, ghost)
        if standing is None or is_withdrawn(standing):
            if standing is not CLEANED:
                await delete_upload(self._engine, keyed.blob_key)
            return False
        return not is_removed(standing)  # a purge ends what has no row, too


def _keyed(entry: Entry, digest: bytes) -> KeyedEntry:
    return KeyedEntry(entry.key, entry.mail_id, entry.blob_key, entry.accepted_at, digest)


async def enqueue(
    engine: Engine,
    mail: Mail,
    delay: timedelta,
    key: str | None,
    accepted_at: datetime | None = None,
) -> UUID:
    """Queue a mail. See `DistributedQueue.enqueue`."""
    started = engine.clock.elapsed()
    try:
        enqueue_id, is_new = await _enqueue(engine, mail, delay, key, accepted_at)
    except errors.PostroadError as error:
        metrics.ENQUEUE_FAILURES.labels(*engine.labels, _reason(error)).inc()
        raise
    if not is_new:
        return enqueue_id
    metrics.ENQUEUED.labels(*engine.labels).inc()
    seconds = (engine.clock.elapsed() - started).total_seconds()
    metrics.ENQUEUE_SECONDS.labels(*engine.labels).observe(seconds)
    return enqueue_id


async def _enqueue(
    engine: Engine,
    mail: Mail,
    delay: timedelta,
    key: str | None,
    accepted_at: datetime | None,
) -> tuple[UUID, bool]:
    """Return the enqueue id, and whether the mail was queued by this call."""
    check_mail(mail)
    check_delay(delay)
    engine.check_open()
    await engine.limits_cache.check_clock()
    engine.configuration.effective()
    enqueue_key = None if key is None else await EnqueueKey.of(engine, key, mail)
    mail_id = engine.ids.new()
    now = engine.clock.now()
    blob_key = key_of_bytes(engine.name, now, mail_id)
    stored = await _upload(engine, blob_key, mail)
    try:
        # Make the id after the upload, so that a slow upload does not use up the deadline.
        entry = Entry(
            key=await engine.new_key(),
            mail_id=mail_id,
            envelope=mail.envelope,
            blob_key=blob_key,
            size_bytes=stored.size_bytes,
            shape=stored.shape,
            accepted_at=min(accepted_at or now, now),
            enqueued_at=now,
            due_at=engine.moment_after(delay),
            held=mail.envelope.is_quarantined,
        )
        taken = entry if enqueue_key is None else await enqueue_key.take(entry)
        engine.check_open()  # behind the last wait: `close` waits for no work that begins later
    except BaseException:
        await delete_upload(engine, blob_key)
        raise
    if isinstance(taken, UUID):
        await delete_upload(engine, blob_key)
        return taken, False
    # The rest runs to its end if the caller is cancelled, so that no row waits without a message.
    await asyncio.shield(engine.in_background(_register(engine, taken, enqueue_key)))
    return taken.enqueue_id, True


async def _register(engine: Engine, entry: Entry, enqueue_key: EnqueueKey | None) -> None:
    if enqueue_key is None:
        return await _Registration(engine, entry, engine.clock.elapsed()).run()
    await _Registration(engine, entry, enqueue_key.began).run()
    # Behind all that may withdraw the entry: what is accepted stays.
    return await enqueue_key.accept()


async def _upload(engine: Engine, blob_key: str, mail: Mail) -> Stored:
    """Store the bytes. An upload that took longer than `Timing.upload` is refused, since the audit
    deletes older objects without a row. Raises: DeadlineExceeded, MailTooLarge, BlobsError."""
    began = engine.clock.elapsed()
    try:
        stored = await engine.blobs.put(blob_key, mail.content, engine.largest_mail)
        if engine.clock.elapsed() - began > engine.timing.upload:
            raise errors.DeadlineExceeded(f"the upload took longer than {engine.timing.upload}")
    except BaseException:
        # The store may still carry out an upload that failed or was cancelled here. Deleting may
        # take as long as the upload that had no reply, so the caller does not wait for it.
        engine.in_background(delete_upload(engine, blob_key))
        raise
    return stored


class _Registration:
    """One entry on its way into the view and the broker. `began`: when its id was made, or
    before."""

    def __init__(self, engine: Engine, entry: Entry, began: timedelta) -> None:
        self._engine = engine
        self._entry = entry
        self._deadline = began + engine.timing.deadline
        self._owner = UUID(int=engine.randomness.bits(128))
        self._published: timedelta | None = None
        """When the last attempt ended that may have left a message; None: none can exist."""
        self._has_row = False

    async def run(self) -> None:
        """Insert and publish; withdraw after any error. Raises: ServerError, DeadlineExceeded."""
        try:
            await self._engine.view.insert(self._entry)
            self._has_row = True
            if not self._entry.held:  # a message would lead a consumer to it
                await self._publish()
            if self._engine.clock.elapsed() > self._deadline:
                raise errors.DeadlineExceeded
            await self._check_in_time()
        except asyncio.CancelledError:
            # The event loop closes, which leaves time for one attempt.
            await self._withdraw(timedelta(0))
            raise
        except Exception as error:
            if not await self._withdraw(self._engine.timing.deadline):
                raise
            self._engine.log.info(
                "a failed enqueue succeeds: a consumer was first", error=type(error).__name__
            )

    async def _check_in_time(self) -> None:
        """Raise where browse start has passed the entry meanwhile: it is withdrawn then, unless a
        consumer found it and gave it a new one. Raises: ClockSkew."""
        limits_cache = self._engine.limits_cache
        try:
            passed = (await limits_cache.limits()).have_passed(self._entry.key.slice_start)
        except errors.ServerError:
            return  # it is in all three stores; a consumer rescues it if it is late
        if passed:
            raise errors.ClockSkew("browse start passed the mail while it was queued")

    async def _publish(self) -> None:
        """Publish until confirmed or until the deadline. Only a first message without delay carries
        no claim: the delay queues may deliver one twice, and a repetition may meet the first. (The
        redelivery delay of a repetition only saves work: by its end the first has most often been
        delivered, and its mark settles the repetition.)"""
        engine, backoff = self._engine, self._engine.backoff()
        step = next_delay(self._entry.due_at, engine.clock.now())
        reference = Reference.to(self._entry, claim=step > 0)
        redelivery_delay = redelivery_delay_after(0, engine.timing.redelivery_delay, 0.0)
        while True:
            try:
                return await self._attempt(reference, step)
            except errors.BrokerUnavailable as error:
                if not isinstance(error, errors.NotPublished) and not reference.claim:
                    reference = Reference.repeating(self._entry)
                await backoff.wait()
                if engine.clock.elapsed() > self._deadline:
                    if self._published is None or not isinstance(error, errors.NotPublished):
                        raise
                    # An earlier attempt may have left a message, which the last one denies.
                    raise errors.BrokerUnavailable(str(error), hint=error.hint) from error
                step = next_delay(self._entry.due_at, engine.clock.now())
                if self._published is not None:
                    step = step or redelivery_delay

    async def _attempt(self, reference: Reference, step: int) -> None:
        """Publish once. A slow broker may store the message as late as it confirms it."""
        clock, before = self._engine.clock, self._published
        self._published = clock.elapsed()
        try:
            await self._engine.broker.publish(self._entry.enqueue_id, encode(reference), step)
        except (
            errors.NotPublished,
            errors.BrokerRefused,
            errors.CredentialsRefused,
            errors.Unroutable,
        ):
            self._published = before  # this attempt left no message
            raise
        except BaseException:
            self._published = clock.elapsed()
            raise
        self._published = clock.elapsed()

    async def _withdraw(self, longest: timedelta) -> bool:
        """Return whether a consumer was first, so that the mail was accepted after all."""
        failed = Withdrawal(
            self._engine,
            self._entry,
            self._owner,
            published=self._published,
            has_row=self._has_row,
            deadline=self._deadline,
        )
        return await failed.run(longest)


def _reason(error: errors.PostroadError) -> str:
    reasons: dict[str, tuple[type[errors.PostroadError], ...]] = {
        "broker": (errors.BrokerError,),
        "view": (errors.ViewError, errors.ClockSkew),
        "blobs": (errors.BlobsError,),
        "deadline": (errors.DeadlineExceeded,),
        "invalid": (errors.InvalidMail,),
    }
    return next((name for name, kinds in reasons.items() if isinstance(error, kinds)), "other")
