"""The client's side of the socket: the port over another process' store.

When the connection ends, `EmbeddedQueue` (mail_queue.py) finds another owner or becomes the owner
itself; items of the old connection are lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from postroad.contents import chunks_of
from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.delivery.retries import ItemEnding, check_named
from postroad.domain.mail.mail import Mail, Outcome, OutcomeKind
from postroad.domain.mail.shapes import Shape
from postroad.domain.queues.documents import LeasedMail, MailView, Sizes
from postroad.domain.queues.references import digest_of, token_of
from postroad.domain.queues.selection import Selector
from postroad.embedded.log.options import MAX_MAIL_LEASE
from postroad.embedded.log.spool_files import CHUNK
from postroad.embedded.rpc import rpc
from postroad.embedded.rpc.connection import OwnerConnection
from postroad.embedded.rpc.operations import CALLS, Leased
from postroad.embedded.rpc.rpc import FrameKind
from postroad.errors import (
    EntryEnded,
    EntryLost,
    StoreUnavailable,
)
from postroad.ports.clock import Clock
from postroad.ports.mail_queue import NO_DELAY, Administration, Operation, checked_ending


class RemoteItem(LeasedMail):
    """`Item` whose entry the owner of the store holds for this client."""

    def __init__(self, connection: OwnerConnection, leased: Leased, lease_until: timedelta) -> None:
        super().__init__(**leased.fields)
        self.lease_until = lease_until
        self._connection, self._number = connection, leased.number
        self._failures: dict[str, str] = dict(leased.failures)
        self._content: bytes | None = None
        self._fetching = asyncio.Lock()
        self._has_ended = False

    @property
    def failures(self) -> Mapping[str, str]:
        return dict(self._failures)

    async def content(self) -> bytes:
        async with self._fetching:
            if self._content is None:
                self._content = b"".join([chunk async for chunk in self._chunks()])
            return self._content

    def forget_content(self) -> None:
        self._content = None

    async def shape(self) -> Shape | None:
        with self._ending():
            shape: Shape | None = await self._connection.call("shape", item=self._number)
        return shape

    async def stream(self) -> AsyncIterator[bytes]:
        with self._ending():
            if self._content is not None or self.size_bytes <= CHUNK:
                yield await self.content()
                return
            async for chunk in self._chunks():
                yield chunk

    async def _chunks(self) -> AsyncIterator[bytes]:
        with self._ending():
            async for kind, body in self._connection.stream("content", item=self._number):
                if kind is FrameKind.DATA:
                    yield body

    async def record(self, outcomes: Mapping[str, Outcome]) -> None:
        check_named(outcomes, self.mail.recipients)
        await self._call("record", outcomes=outcomes)
        for recipient, outcome in outcomes.items():
            if outcome.kind is OutcomeKind.FAILED:
                self._failures[recipient] = outcome.text
            elif outcome.kind is OutcomeKind.DELIVERED:
                self._failures.pop(recipient, None)

    async def end(self, ending: ItemEnding, outcomes: AttemptOutcomes | None = None) -> None:
        try:
            await self._call("end", ending=checked_ending(ending), outcomes=outcomes)
        except asyncio.CancelledError:
            await self.give_back()  # else it stays leased until this process ends
            raise
        self._has_ended = True  # behind the answer: an ending that failed may be tried again
        self._connection.let_go(self._number)

    async def give_back(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._connection.tell("give_back", item=self._number)
            self._connection.let_go(self._number)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Raises: EntryEnded; EntryLost when the owner went: no other owner knows of this lease."""
        if self._has_ended:
            raise EntryEnded
        try:
            if isinstance(self._connection.lost, StoreUnavailable):
                raise self._connection.lost
            yield
        except StoreUnavailable as error:
            raise EntryLost(
                "the owner of the store went away: what it did not end is handed out again"
            ) from error

    async def _call(self, operation: str, **arguments: Any) -> None:
        with self._ending():
            await self._connection.call(operation, item=self._number, **arguments)


class RemoteQueue(Administration):
    """The port over a connection."""

    def __init__(self, connection: OwnerConnection, clock: Clock) -> None:
        self.connection, self._clock = connection, clock

    @classmethod
    async def open(cls, path: Path, clock: Clock) -> RemoteQueue:
        """Connect and agree on the protocol. Raises: StoreUnavailable, InvalidInput."""
        connection = await OwnerConnection.open(path)
        await connection.call("hello", protocol=rpc.PROTOCOL)
        return cls(connection, clock)

    async def enqueue(
        self, mail: Mail, delay: timedelta = NO_DELAY, *, key: str | None = None
    ) -> UUID:
        try:
            return await self._enqueue(mail, delay, key)
        except StoreUnavailable as error:
            raise self.connection.unknown(error) from error

    async def _enqueue(self, mail: Mail, delay: timedelta, key: str | None) -> UUID:
        if key is not None:
            token_of(key)  # both are refused here: JSON has no bytes, and the owner would take
            digest_of(mail)  # a stream for bytes
        content = mail.content
        whole = content if isinstance(content, bytes) and len(content) <= CHUNK else None
        enqueue_id: UUID = await self.connection.call(
            "enqueue", chunks_of(content, CHUNK) if whole is None else whole,
            mail=mail.envelope, delay=delay, whole=whole is not None, key=key,
        )  # fmt: skip
        return enqueue_id

    async def dequeue(self, prefetch: int = 10) -> AsyncIterator[RemoteItem]:
        consumer = await self.connection.call("consume", prefetch=prefetch)
        while True:
            leased = await self.connection.call("next", consumer=consumer)
            # At once: an owner that hands over would be left, and its successor repeats the mail.
            self.connection.hold(leased.number)
            yield RemoteItem(self.connection, leased, self._clock.elapsed() + MAX_MAIL_LEASE)

    async def browse(self, selector: Selector | None = None) -> AsyncIterator[MailView]:
        async for view in self._views("browse", selector):
            yield view

    async def dead_letters(self, selector: Selector | None = None) -> AsyncIterator[MailView]:
        async for view in self._views("dead_letters", selector):
            yield view

    async def _views(self, operation: str, selector: Selector | None) -> AsyncIterator[MailView]:
        view = CALLS[operation].element
        async for kind, body in self.connection.stream(operation, selector=selector):
            if kind is FrameKind.ELEMENT:
                yield view.decode(json.loads(body))

    async def content(self, enqueue_id: UUID) -> AsyncIterator[bytes]:
        call = self.connection.stream("mail_content", enqueue_id=enqueue_id)
        async for kind, body in call:
            if kind is FrameKind.DATA:
                yield body

    async def size(self) -> Sizes:
        sizes: Sizes = await self.connection.call("size")
        return sizes

    async def ages(self) -> Mapping[str, Mapping[timedelta, int]]:
        ages: Mapping[str, Mapping[timedelta, int]] = await self.connection.call("ages")
        return ages

    async def change(self, operation: Operation, selector: Selector) -> int:
        return int(await self.connection.call(operation, selector=selector))

    async def purge(self) -> int:
        return int(await self.connection.call("purge"))

    async def republish(self, older_than: timedelta) -> int:
        return int(await self.connection.call("republish", older_than=older_than))

    async def maintain(self) -> None:
        await self.connection.call("maintain")

    async def close(self) -> None:
        await self.connection.close()
