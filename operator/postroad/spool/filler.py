"""Receiving in another process than the owner's: it fills spool files, the owner writes the log.

The owner lends slots. A mail is stored in one of them and synced here, and only then announced to
the owner, who queues it (FORMAT.md 4 and 8, R2). What makes this safe is the lock on the store: the
process inherited it from the owner and holds it too, so whoever owns the store next knows that
nobody writes to its files any more. A slot with which anything went wrong is not used again before
the next start.
Source: SP-7..9; ADR 0013.
"""

from __future__ import annotations

import asyncio
from collections import deque
from uuid import UUID

from postroad.domain.identifiers import Identifiers
from postroad.domain.mail import Mail
from postroad.ports.clock import Chance, Clock
from postroad.ports.files import Threads
from postroad.spool.connection import Connection
from postroad.spool.contents import Contents
from postroad.spool.limits import Limits
from postroad.spool.moments import microseconds
from postroad.spool.records import domains_of, encode_new, envelope_json, to_json
from postroad.spool.storing import store_whole

LENT = 32
"""Slots that are asked for at a time."""

FEW = 8
"""With fewer free slots than this, more are asked for."""

QUICK_SECONDS = 0.002
"""A mail that is stored faster than this is stored by the event loop itself: a thread would cost
more than the wait. Where storing takes longer, threads do it, many at a time."""

LATELY = 8
"""Mails whose storing is looked at."""

SMALL = 256 * 1024
"""Bytes of a content; a larger one is always stored by a thread."""


class Filler:
    """Stores mails for the owner at the other end of a connection."""

    def __init__(
        self, contents: Contents, limits: Limits, clock: Clock, chance: Chance, threads: Threads
    ) -> None:
        self._contents, self._limits, self._clock, self._threads = contents, limits, clock, threads
        self._identifiers = Identifiers(clock.now, chance.bits)
        self._connection: Connection | None = None
        self._free: list[int] = []
        self._borrowing: asyncio.Task[None] | None = None
        self._seconds = deque([0.0], maxlen=LATELY)
        """What storing a mail took lately. The least of it tells how fast the disk is: the rest is
        waiting for a processor, which a thread would have to do as well."""

    async def enqueue(self, connection: Connection, mail: Mail) -> UUID:
        """Store a mail and have it queued; as `MailQueue.enqueue`. Its content is in memory."""
        content = mail.content
        assert isinstance(content, bytes)
        envelope = mail.envelope
        json = to_json(envelope_json(envelope))
        self._limits.check(json, len(content))
        slot = await self._take(connection)
        mail_id, now_us = self._identifiers.new().bytes, microseconds(self._clock.now())
        await self._store(slot, mail_id, content, json, now_us)
        record = encode_new(mail_id, slot, now_us, len(content), domains_of(envelope), json)
        return UUID(bytes=await connection.store(record))

    async def _store(
        self, slot: int, mail_id: bytes, content: bytes, envelope: bytes, now_us: int
    ) -> None:
        if min(self._seconds) < QUICK_SECONDS and len(content) <= SMALL:
            self._store_timed(slot, mail_id, content, envelope, now_us)
        else:
            await self._threads.run(self._store_timed, slot, mail_id, content, envelope, now_us)

    def _store_timed(
        self, slot: int, mail_id: bytes, content: bytes, envelope: bytes, now_us: int
    ) -> None:
        began = self._clock.elapsed()
        store_whole(self._contents, slot, mail_id, content, envelope, now_us)
        self._seconds.append((self._clock.elapsed() - began).total_seconds())

    async def _take(self, connection: Connection) -> int:
        """Return a slot that this connection's owner has lent. Raises: StoreFull, StoreFailed,
        StoreUnavailable."""
        if connection is not self._connection:
            self._connection, self._free = connection, []
        if len(self._free) < FEW:
            self._begin_to_borrow(connection)
        while not self._free:
            await asyncio.shield(self._begin_to_borrow(connection))
        return self._free.pop()

    def _begin_to_borrow(self, connection: Connection) -> asyncio.Task[None]:
        if self._borrowing is None:
            self._borrowing = asyncio.get_running_loop().create_task(self._borrow(connection))
            self._borrowing.add_done_callback(_seen)
        return self._borrowing

    async def _borrow(self, connection: Connection) -> None:
        try:
            slots = await connection.call("lend", count=LENT)
            if connection is self._connection:
                self._free[:0] = reversed(slots)
        finally:
            self._borrowing = None

    async def close(self) -> None:
        """Let go of threads and files."""
        if self._borrowing is not None:
            self._borrowing.cancel()
            await asyncio.wait({self._borrowing})
        await self._threads.close()
        self._contents.close()


def _seen(borrowing: asyncio.Task[None]) -> None:
    """Take note of a failure that nobody may be waiting for: who needs a slot asks again."""
    if not borrowing.cancelled():
        borrowing.exception()
