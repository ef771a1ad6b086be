"""A receiver: a process beside the owner that fills spool files, while the owner writes the log.

The owner leases slots to the receiver. The receiver stores a mail in one of them, syncs it, and
then announces it to the owner, which queues it (FORMAT.md 4 and 8, R2). The receiver inherited the
owner's lock on the store, so the next owner starts only when no receiver writes any more. A slot
in which the disk failed, or whose announcement got no reply, waits for the next start.
Source: SP-7..9; ADR 0015."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from uuid import UUID

from postroad.domain.mail.envelope_documents import envelope_value
from postroad.domain.mail.mail import Mail
from postroad.domain.values.identifiers import Identifiers
from postroad.domain.values.instants import microseconds
from postroad.domain.values.text import to_json
from postroad.embedded.log.envelopes import domains_of, encode_new
from postroad.embedded.log.layout import SpoolKind, kind_for
from postroad.embedded.log.options import StoreLimits, reason_of
from postroad.embedded.log.spool_files import HEADER_BYTES, SMALL, NewMail, SpoolFiles
from postroad.embedded.rpc.connection import OwnerConnection
from postroad.errors import PostroadError, StoreFull
from postroad.ports.clock import Clock, Randomness
from postroad.ports.files import Threads

FEW = 8
"""With fewer free slots than this, the receiver requests more."""

QUICK_SECONDS = 0.002
"""On a disk that stores a mail faster than this, the event loop does it, because a thread would
cost more than the wait. On a slower one threads do it, many at a time."""

STALL_SECONDS = 0.1
"""When a recent mail took so long, threads wait for the disk."""

LATELY = 8
"""Number of recent mails."""


class SpoolReceiver:
    """Stores mails for the owner at the other end of a connection."""

    def __init__(
        self,
        spool_files: SpoolFiles,
        limits: StoreLimits,
        clock: Clock,
        randomness: Randomness,
        threads: Threads,
    ) -> None:
        self._spool_files, self._limits, self._clock, self._threads = (
            spool_files,
            limits,
            clock,
            threads,
        )
        self._identifiers = Identifiers(clock.now, randomness.bits)
        self._leases: dict[SpoolKind, SlotLease] = {}
        self._seconds = deque([0.0], maxlen=LATELY)
        """Times that recent mails took. The minimum is the speed of the disk, because the rest is
        waiting for a processor, which threads do too. The maximum shows a disk that stalls."""

    async def enqueue(self, connection: OwnerConnection, mail: Mail) -> UUID:
        """Store a mail whose content is in memory, and return when the owner has queued it; as
        `MailQueue.enqueue`."""
        try:
            record = await self._store(connection, mail)
        except PostroadError as error:
            connection.tell("refused", reason=reason_of(error))
            raise
        # Behind the sync of its file: the owner's 250 would be for a mail without content.
        return UUID(bytes=await connection.store(record))

    def has_room(self, size_bytes: int, *, is_taken: bool = False) -> bool:
        return self._limits.has_room(size_bytes, is_taken=is_taken)

    async def _store(self, connection: OwnerConnection, mail: Mail) -> bytes:
        content, envelope = mail.content, mail.envelope
        assert isinstance(content, bytes)
        json = to_json(envelope_value(envelope))
        self._limits.check(json, len(content))
        # Slots of an owner before are never used: the present one may have given them to another.
        kind = kind_for(HEADER_BYTES + len(content) + len(json))
        lease = self._leases.get(kind)
        if lease is None or lease.connection is not connection:
            lease = self._leases[kind] = SlotLease(connection, kind)
        slot = await lease.take()
        mail_id, now_us = self._identifiers.new().bytes, microseconds(self._clock.now())
        new_mail = NewMail(slot, mail_id, content, json, now_us, mail.shape)
        work = partial(self._store_timed, new_mail)
        try:
            await self._run(work, lease, slot, is_small=len(content) <= SMALL)
        except StoreFull:
            lease.give_back(slot)  # the next mail overwrites its file
            raise
        return encode_new(mail_id, slot, now_us, len(content), domains_of(envelope), json)

    async def _run(
        self, work: Callable[[], None], lease: SlotLease, slot: int, *, is_small: bool
    ) -> None:
        if is_small and min(self._seconds) < QUICK_SECONDS and max(self._seconds) < STALL_SECONDS:
            return work()
        call = asyncio.ensure_future(self._threads.run(work))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            # Not at once: the thread writes on, in what would be the file of the next mail.
            call.add_done_callback(partial(_left_behind, lease, slot))
            raise

    def _store_timed(self, mail: NewMail) -> None:
        began = self._clock.elapsed()
        self._spool_files.store(mail)
        self._seconds.append((self._clock.elapsed() - began).total_seconds())

    async def close(self) -> None:
        for lease in self._leases.values():
            await lease.close()
        await self._threads.close()
        self._spool_files.close()


class SlotLease:
    """The slots of one kind that the owner has leased to one connection."""

    def __init__(self, connection: OwnerConnection, kind: SpoolKind) -> None:
        self.connection, self._kind = connection, kind
        self._free: list[int] = []
        self._requesting: asyncio.Task[None] | None = None

    async def take(self) -> int:
        """Return a slot. Raises: StoreFull, StoreFailed, StoreUnavailable."""
        if len(self._free) < FEW:
            self._start_request()
        while not self._free:
            await asyncio.shield(self._start_request())
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """Free a slot whose mail was not announced, when no thread writes to it any more."""
        self._free.append(slot)

    def _start_request(self) -> asyncio.Task[None]:
        if self._requesting is None:
            self._requesting = asyncio.get_running_loop().create_task(self._request())
            self._requesting.add_done_callback(_seen)
        return self._requesting

    async def _request(self) -> None:
        try:
            self._free[:0] = reversed(await self.connection.call("lend", kind=self._kind))
        finally:
            self._requesting = None

    async def close(self) -> None:
        """Request no more slots."""
        if self._requesting is not None:
            self._requesting.cancel()
            await asyncio.wait({self._requesting})


def _left_behind(lease: SlotLease, slot: int, call: asyncio.Future[None]) -> None:
    """Free the slot of a mail whose caller was cancelled, unless the disk failed."""
    if not call.cancelled() and call.exception() is None:
        lease.give_back(slot)


def _seen(request: asyncio.Task[None]) -> None:
    """Retrieve the error of a request without a caller: the next `take` requests again."""
    if not request.cancelled():
        request.exception()
