"""Moves the mail of a James queue into a queue of postroad, also while James consumes it.

The messages of his broker decide whose a mail is, because his consumer writes its mark only after
its work: a mail is taken by moving its message, in one transaction, from his work queue to a queue
that he does not read. Then each is enqueued with his enqueue id as its key, marked in his table,
and acked, in this order: whatever stops the process, the message comes again, the key finds what
was enqueued, and the next run goes on. Rows without a message are ghosts of his: reported, and
moved when the caller wants hidden rows. Source: ADR 0093."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

from postroad.adapters.cassandra.session import Row
from postroad.adapters.rabbitmq.transfers import HeldMessage, Transfers
from postroad.distributed.engine.timing import each_of, results
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.entries import Partition
from postroad.errors import BlobMissing, InvalidInput, QueueInUse
from postroad.james.blobs import JamesBlobs, LargeBlob
from postroad.james.hiding import configurations_of, hidden_by
from postroad.james.mails import QueuedMail, id_in, of_message, of_row
from postroad.james.properties import as_in
from postroad.james.tables import JamesTables
from postroad.ports.mail_queue import MailQueue

LANES = 4
"""Channels of his broker that are used at once: RabbitMQ hands one message at a time to each."""

TAKEN = 64
"""Messages that one transaction takes; what a migration that is given up leaves, by lane."""

TOGETHER = 8
"""Mails in flight by lane: their contents are in memory."""

IN_FLIGHT = LANES * TOGETHER

WORK_QUEUE, TAKEN_QUEUE = "JamesMailQueue-workqueue-", "postroad-migration-"
GHOST = "no message of it is in his work queue"

OF_THE_MAIL = (InvalidInput, BlobMissing)
"""Errors that other mails need not have: the mail stays, and they move."""


@dataclass(slots=True)
class MigrationCounts:
    """Counts of what a migration did, and what it left."""

    moved: int = 0
    octets: int = 0
    dropped: int = 0
    """Messages of mails that James had ended already."""

    his: int = 0
    """Rows whose mail a consumer of James has, or may have."""

    came: int = 0
    """Rows that came while the migration ran."""

    failed: dict[str, str] = field(default_factory=dict)
    """Reason by enqueue id."""

    hidden: dict[str, str] = field(default_factory=dict)
    """The same of rows that were not moved because his consumer would never have delivered them."""


@dataclass(slots=True)
class SliceTotals:
    """Mails of a slice that wait, and how many of them his browse does not read."""

    mails: int = 0
    octets: int = 0
    hidden: int = 0
    unreadable: int = 0


class Migration:
    """One run over one queue. `queue` None: only `survey` is called. `transfers`: one for each
    lane; without, his broker is left alone. `progress` is called as mails move."""

    def __init__(
        self,
        name: str,
        tables: JamesTables,
        blobs: JamesBlobs,
        transfers: Sequence[Transfers],
        queue: MailQueue | None,
        progress: Callable[[MigrationCounts, int], None],
    ) -> None:
        self._tables, self._blobs, self._transfers = tables, blobs, transfers
        self._queue = queue
        self._work, self._taken = WORK_QUEUE + name, TAKEN_QUEUE + name
        self._progress = progress
        self._browse_start: datetime | None = None
        self._configuration: ViewConfiguration | None = None
        self._remaining = 0
        self._alone = asyncio.Lock()
        self.tally = MigrationCounts()

    async def survey(self) -> dict[datetime, SliceTotals]:
        """Return what waits by slice. Changes nothing. Raises: ViewError, BlobsError."""
        totals: dict[datetime, SliceTotals] = {}
        async for place, rows in self._waiting():
            found = totals.setdefault(place.slice_start, SliceTotals())
            found.mails += len(rows)
            found.hidden += len(rows) if self._hides(place) else 0
            async for size in results(each_of(rows), self._size, IN_FLIGHT):
                found.octets += size or 0
                found.unreadable += size is None
        return totals

    async def copy(self, *, with_hidden: bool) -> None:
        """Enqueue what waits, and change nothing at James. Errors as `move`."""
        started = datetime.now(UTC)
        self._remaining = sum([len(rows) async for _, rows in self._waiting()])
        async for place, rows in self._waiting():
            reason = None if with_hidden else self._hides(place)
            await self._take_rows(rows, started, reason, marking=False)
            self._report(len(rows))

    async def move(self, *, with_hidden: bool) -> None:
        """Move what waits. Raises: QueueInUse, where hidden rows are wanted while James consumes:
        a row without a message may be a mail that he has in flight; BrokerError, ViewError,
        BlobsError, CredentialsRefused, and as `MailQueue.enqueue`: a further run goes on."""
        started = datetime.now(UTC)
        if with_hidden and await self._consumers():
            raise QueueInUse(
                "James consumes the queue, so that a row without a message may be in flight",
                hint="stop James for hidden rows",
            )
        with as_in("rabbitmq.properties"):
            taken = await self._transfers[0].declare(self._taken)
        self._remaining = taken.messages if taken else 0
        lanes = results(each_of(self._transfers), self._move_messages, LANES)
        kept = [each async for each in lanes]
        is_consumed = await self._consumers() > 0
        async for place, rows in self._waiting():
            reason = self._hides(place)
            others = [row for row in rows if str(row["enqueueid"]) not in self.tally.failed]
            if is_consumed and reason is None:
                self.tally.his += len(others)
                continue
            reason = None if with_hidden else reason or GHOST
            await self._take_rows(others, started, reason, marking=True)
        await self._forget_marked()
        for lane, messages in kept:
            await lane.move(messages, self._work)  # a later James may read what this process cannot

    async def _consumers(self) -> int:
        found = await self._transfers[0].declare(self._work, passive=True)
        return found.consumers if found else 0

    async def _move_messages(self, lane: Transfers) -> tuple[Transfers, list[HeldMessage]]:
        """Move mails that have a message until none is left; return the lane with the messages of
        those that stay. Lanes share the queues as several runs do."""
        kept, ended = list[HeldMessage](), list[HeldMessage]()
        moving = results(self._messages(lane), self._move_message, TOGETHER)
        async for message, has_ended in moving:
            (ended if has_ended else kept).append(message)
            if len(ended) == TOGETHER:
                await lane.ack(ended)
                ended.clear()
            self._report(1)
        await lane.ack(ended)
        return lane, kept

    async def _messages(self, lane: Transfers) -> AsyncIterator[HeldMessage]:
        """Yield messages that were taken, and take more, until there are none."""
        while True:
            found = await lane.get(self._taken, TOGETHER)
            if not found and not await self._take(lane):
                return
            for each in found:
                yield each

    def _report(self, done: int) -> None:
        self._remaining = max(self._remaining - done, 0)
        self._progress(self.tally, self._remaining)

    async def _take(self, lane: Transfers) -> bool:
        """Take messages from his work queue; return whether there were any."""
        if (depth := await lane.declare(self._work, passive=True)) is None:
            return False
        self._remaining = depth.messages
        found = await lane.get(self._work, TAKEN)
        await lane.move(found, self._taken)
        return bool(found)

    async def _move_message(self, message: HeldMessage) -> tuple[HeldMessage, bool]:
        """Return whether the mail of a message has ended at James, here or before."""
        try:
            queued = of_message(message.body)
        except InvalidInput as error:
            key = id_in(message.body) or f"message {len(self.tally.failed) + 1}"
            self.tally.failed[key] = error.explain()
            return message, False
        if await self._tables.is_marked(queued.enqueue_id):
            self.tally.dropped += 1
            return message, True
        return message, await self._move(str(queued.enqueue_id), lambda: queued, marking=True)

    async def _take_rows(
        self, rows: Iterable[Row], started: datetime, reason: str | None, *, marking: bool
    ) -> None:
        chosen = []
        for row in rows:
            enqueued = row["enqueuedtime"]
            if enqueued is not None and enqueued.replace(tzinfo=UTC) >= started:
                self.tally.came += 1
            elif reason is not None:
                self.tally.hidden[str(row["enqueueid"])] = reason
            else:
                chosen.append(row)

        def moved(row: Row) -> Awaitable[bool]:
            return self._move(str(row["enqueueid"]), partial(of_row, row), marking=marking)

        async for _ in results(each_of(chosen), moved, IN_FLIGHT):
            pass

    async def _move(self, key: str, read: Callable[[], QueuedMail], *, marking: bool) -> bool:
        """Enqueue a mail, then mark it: a crash in between leaves it to be enqueued by its key
        again. The other order would lose it, where his consumer meets the mark."""
        try:
            queued = read()
            size = await self._read(queued, key)
        except OF_THE_MAIL as error:
            self.tally.failed[key] = error.explain()
            return False
        if marking:
            await self._tables.mark(queued.enqueue_id)
        self.tally.moved += 1
        self.tally.octets += size
        return True

    async def _read(self, queued: QueuedMail, key: str | None, *, is_alone: bool = False) -> int:
        """Read a mail, and enqueue it where there is a key; return its octets. Large ones are in
        memory one at a time: a sender makes one of a frame of a few kilobytes."""
        blobs = queued.header_blob, queued.body_blob
        content = None
        with suppress(LargeBlob):
            content = await self._blobs.content(*blobs, is_alone=is_alone)
        if content is None:  # not where it is caught: while that waits, the error holds octets
            async with self._alone:
                return await self._read(queued, key, is_alone=True)
        mail = queued.mail(content)
        if key is not None:
            assert self._queue is not None
            await self._queue.enqueue(mail, key=key)
        return len(content)

    async def _forget_marked(self) -> None:
        """Forget the ghosts that another migration had in flight."""
        for key in list(self.tally.hidden):
            if await self._tables.is_marked(UUID(key)):
                del self.tally.hidden[key]

    async def _waiting(self) -> AsyncIterator[tuple[Partition, list[Row]]]:
        """Yield the rows that James has not marked, by pages, oldest slice first."""
        self._browse_start = await self._tables.browse_start()
        events = configurations_of(await self._tables.events())
        self._configuration = events[-1] if events else None
        for place in await self._tables.places():
            async for page in self._tables.rows(place):
                marks = await asyncio.gather(
                    *(self._tables.is_marked(row["enqueueid"]) for row in page)
                )
                if rows := [
                    row for row, is_marked in zip(page, marks, strict=True) if not is_marked
                ]:
                    yield place, rows

    def _hides(self, place: Partition) -> str | None:
        return hidden_by(place, self._browse_start, self._configuration)

    async def _size(self, row: Row) -> int | None:
        try:
            return await self._read(of_row(row), None)
        except OF_THE_MAIL as error:
            self.tally.failed[str(row["enqueueid"])] = error.explain()
            return None
