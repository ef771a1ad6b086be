"""Mail of some hours ago on a queue's servers, and faults between them, for audits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice

from postroad.domain.delivery.attempts import AttemptOutcomes, OutcomeCount
from postroad.domain.mail.mail import Envelope, OutcomeKind
from postroad.domain.queues.entries import Ending, EndingKind, Entry, EntryKey, Mark, place
from postroad.domain.queues.names import QueueName, key_of_bytes
from postroad.domain.queues.references import Reference, encode
from postroad.domain.values.identifiers import id_at
from postroad.ports.blobs import Blobs
from postroad.ports.broker import Broker
from postroad.ports.view import View

HOUR, MILLISECOND = timedelta(hours=1), timedelta(milliseconds=1)
BUCKETS = 3
TOGETHER = 256
"""Requests at once."""

OUTCOMES = AttemptOutcomes(
    (OutcomeCount("example.net", "mx.example.net", OutcomeKind.DELIVERED, 250, None, "", 1),), 0.5
)
"""Of mail that was delivered."""


class PlantedFaults:
    """Plants mail that was accepted from `at` on, so far `apart`."""

    def __init__(
        self,
        name: QueueName,
        view: View,
        blobs: Blobs,
        broker: Broker,
        at: datetime,
        apart: timedelta = MILLISECOND,
    ) -> None:
        self._name = name
        self._view = view
        self._blobs = blobs
        self._broker = broker
        self._at = at
        self._apart = apart

    def entry(self, number: int) -> Entry:
        accepted_at = self._at + number * self._apart
        mail_id = id_at(accepted_at, 0, number)
        return Entry(
            key=place(id_at(accepted_at, 1, number), HOUR, BUCKETS),
            mail_id=mail_id,
            envelope=Envelope("a@example.org", (f"b{number}@example.net",)),
            blob_key=key_of_bytes(self._name, accepted_at, mail_id),
            size_bytes=1,
            accepted_at=accepted_at,
            enqueued_at=accepted_at,
        )

    async def mails(self, numbers: Iterable[int]) -> None:
        """Whole ones, which wait."""
        await self._each(numbers, self._row, self._object, self._message)

    async def held(self, numbers: Iterable[int]) -> None:
        """Whole ones, which are held, and so have no message."""
        await self._each(numbers, self._held_row, self._object)

    async def objects(self, numbers: Iterable[int]) -> None:
        """Bytes of no mail."""
        await self._each(numbers, self._object)

    async def without_bytes(self, numbers: Iterable[int]) -> None:
        """Held, or the consumer that gets its message would find out first."""
        await self._each(numbers, self._held_row)

    async def without_message(self, numbers: Iterable[int]) -> None:
        await self._each(numbers, self._row, self._object)

    async def marks(self, numbers: Iterable[int]) -> None:
        """Marks of rows that are not there."""
        await self._each(numbers, self._removed)

    async def ended(self, numbers: Iterable[int]) -> None:
        """Rows whose mail was delivered, and its bytes deleted."""
        await self._each(numbers, self._row, self._delivered)

    async def misplaced(self, numbers: Iterable[int]) -> list[EntryKey]:
        """Whole mails that are held, but in another bucket than theirs."""
        entries = [self.misplaced_entry(each) for each in numbers]
        for entry in entries:
            await self._held_row(entry)
            await self._object(entry)
        return [each.key for each in entries]

    def misplaced_entry(self, number: int) -> Entry:
        entry = self.entry(number)
        bucket = (entry.key.bucket_id + 1) % BUCKETS
        return replace(entry, key=entry.key._replace(bucket_id=bucket))

    async def _each(
        self, numbers: Iterable[int], *steps: Callable[[Entry], Awaitable[object]]
    ) -> None:
        entries = map(self.entry, numbers)
        while some := list(islice(entries, TOGETHER)):
            for step in steps:
                await asyncio.gather(*map(step, some))

    async def _row(self, entry: Entry) -> None:
        await self._view.insert(entry)

    async def _held_row(self, entry: Entry) -> None:
        await self._view.insert(replace(entry, held=True))

    async def _object(self, entry: Entry) -> None:
        await self._blobs.put(entry.blob_key, b"x")

    async def _message(self, entry: Entry) -> None:
        body = encode(Reference.to(entry, claim=False))
        await self._broker.publish(entry.enqueue_id, body)

    async def _delivered(self, entry: Entry) -> None:
        await self._view.mark_delivered(entry.key, entry.accepted_at, entry.traits, OUTCOMES)

    async def _removed(self, entry: Entry) -> Mark | None:
        ending = Ending(EndingKind.REMOVED, entry.accepted_at)
        return await self._view.end(entry.key, ending, entry.traits)
