"""The client's side of the socket: the port over another process' store. wire.py says what is
spoken. When the connection ends every call under way raises StoreUnavailable; who holds the queue
(`handle.py`) then finds another owner, or becomes it.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from postroad.domain.mail import Envelope, Mail, Outcome
from postroad.domain.selectors import Selector
from postroad.errors import InvalidMail, PostroadError, QueueClosed, StoreUnavailable, TurnEnded
from postroad.ports.queue import NO_DELAY, MailView, Sizes
from postroad.spool import wire
from postroad.spool.contents import CHUNK
from postroad.spool.records import envelope_from, envelope_json
from postroad.spool.wire import Kind

Enclosed = AsyncIterator[bytes] | bytes | None
"""What goes with a call: in pieces, whole (at most CHUNK), or nothing."""


class _Call:
    """One call under way: what came of it so far, and its answer."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.arrived: asyncio.Queue[tuple[Kind, bytes]] = asyncio.Queue()


class Connection:
    """A connection to the owner."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._calls: dict[int, _Call] = {}
        self._abandoned: dict[int, str] = {}
        self._next = 0
        self.lost: PostroadError | None = None
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def open(cls, path: Path) -> Connection:
        """Connect. Raises: StoreUnavailable when nobody listens."""
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        connecting = socket.socket(socket.AF_UNIX)
        connecting.setblocking(False)
        try:
            address = f"/proc/self/fd/{directory}/{path.name}"
            await asyncio.get_running_loop().sock_connect(connecting, address)
            reader, writer = await asyncio.open_unix_connection(sock=connecting)
        except OSError as error:
            connecting.close()
            raise StoreUnavailable(f"nobody serves {path.parent} yet") from error
        finally:
            os.close(directory)
        return cls(reader, writer)

    async def _read(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(wire.HEAD.size)
                length, number, kind = wire.HEAD.unpack(head)
                body = await self._reader.readexactly(length - 5)
                self._take(number, Kind(kind), body)
        except (OSError, asyncio.IncompleteReadError, ValueError):
            self.fail(StoreUnavailable("the owner of the store went away"))

    def _take(self, number: int, kind: Kind, body: bytes) -> None:
        if (call := self._calls.get(number)) is not None:
            call.arrived.put_nowait((kind, body))
        elif kind in (Kind.RESULT, Kind.ERROR):
            operation = self._abandoned.pop(number, None)
            if operation == "next" and kind is Kind.RESULT:
                # An item for somebody who stopped waiting: nobody has it, it comes again.
                item = json.loads(body)["item"]
                self._next += 1
                self._abandoned[self._next] = "give_back"
                self._writer.write(
                    wire.json_frame(self._next, Kind.CALL, {"op": "give_back", "item": item})
                )

    def fail(self, error: PostroadError) -> None:
        """Let every call under way, and every later one, raise `error`."""
        self.lost = self.lost or error
        for call in self._calls.values():
            call.arrived.put_nowait((Kind.ERROR, b""))
        self._writer.close()

    async def call(self, operation: str, content: Enclosed = None, **arguments: object) -> Any:
        """Make a call and return its result. Raises: the owner's error, StoreUnavailable."""
        async for kind, body in self.stream(operation, content, **arguments):
            if kind is Kind.RESULT:
                return json.loads(body)
        raise AssertionError("a call has a result or an error")

    async def stream(
        self, operation: str, content: Enclosed = None, **arguments: object
    ) -> AsyncIterator[tuple[Kind, bytes]]:
        """Make a call and yield all that comes of it; the last is its result."""
        if self.lost is not None:
            raise self.lost
        self._next += 1
        number = self._next
        call = self._calls[number] = _Call(operation)
        is_answered = False
        try:
            request = wire.json_frame(number, Kind.CALL, {"op": operation, **arguments})
            if isinstance(content, bytes):  # at once: the owner is woken once
                request += wire.frame(number, Kind.DATA, content) + wire.frame(number, Kind.END)
            await self._send(request)
            if content is not None and not isinstance(content, bytes):
                async for piece in content:
                    await self._send(wire.frame(number, Kind.DATA, piece))
                await self._send(wire.frame(number, Kind.END))
            received = 0
            while not is_answered:
                kind, body = await call.arrived.get()
                is_answered = kind in (Kind.RESULT, Kind.ERROR)
                if kind is Kind.ERROR:
                    raise wire.error_from(json.loads(body)) if body else self._lost()
                yield kind, body
                received += 1
                if received % wire.BURST == 0 and not is_answered:
                    await self._send(wire.frame(number, Kind.MORE))
        finally:
            del self._calls[number]
            if not is_answered and self.lost is None:
                self._abandoned[number] = operation
                self._writer.write(wire.frame(number, Kind.CANCEL))
                self._give_back_late_item(number, call)

    def _give_back_late_item(self, number: int, call: _Call) -> None:
        while not call.arrived.empty():
            self._take(number, *call.arrived.get_nowait())

    async def _send(self, data: bytes) -> None:
        if self.lost is not None:
            raise self.lost
        self._writer.write(data)
        try:
            await self._writer.drain()
        except OSError as error:
            raise StoreUnavailable("the owner of the store went away") from error

    def _lost(self) -> PostroadError:
        return self.lost or StoreUnavailable()

    async def close(self) -> None:
        """Leave: the owner takes back what is leased."""
        self.fail(QueueClosed())
        self._reading.cancel()
        await asyncio.wait({self._reading})


class RemoteItem:
    """`Item` whose turn another process holds for us."""

    def __init__(self, connection: Connection, value: Mapping[str, Any]) -> None:
        self._connection, self._value = connection, value
        self._mail = envelope_from(value["mail"])
        self._failures: dict[str, str] = dict(value["failures"])
        self._content: bytes | None = None
        self._has_ended = False

    def __repr__(self) -> str:
        return f"<Item {self.enqueue_id}>"

    @property
    def enqueue_id(self) -> UUID:
        return UUID(self._value["enqueue_id"])

    @property
    def mail_id(self) -> UUID:
        return UUID(self._value["mail_id"])

    @property
    def mail(self) -> Envelope:
        return self._mail

    @property
    def accepted_at(self) -> datetime:
        return wire.moment_of(self._value["accepted_at"])

    @property
    def enqueued_at(self) -> datetime:
        return wire.moment_of(self._value["enqueued_at"])

    @property
    def attempt(self) -> int:
        return int(self._value["attempt"])

    @property
    def size_bytes(self) -> int:
        return int(self._value["size_bytes"])

    @property
    def failures(self) -> Mapping[str, str]:
        return dict(self._failures)

    async def content(self) -> bytes:
        if self._content is None:
            self._content = b"".join([chunk async for chunk in self.stream()])
        return self._content

    async def stream(self) -> AsyncIterator[bytes]:
        if self._has_ended:
            raise TurnEnded
        if self._content is not None:
            yield self._content
            return
        async for kind, body in self._connection.stream("content", item=self._value["item"]):
            if kind is Kind.DATA:
                yield body

    async def record(self, recipients: tuple[str, ...], outcome: Outcome) -> None:
        await self._call("record", to=recipients, kind=outcome.kind.value, text=outcome.text)
        for each in recipients:
            self._failures.pop(each, None)
            if outcome.kind == "failed" and each in self._mail.recipients:
                self._failures[each] = outcome.text

    async def done(self) -> None:
        await self._end("done")

    async def retry(
        self,
        delay: timedelta,
        remaining: tuple[str, ...] | None = None,
        error: str | None = None,
    ) -> None:
        await self._end("retry", delay=wire.us_of(delay), remaining=remaining, error=error)

    async def reject(self, reason: str) -> None:
        await self._end("reject", reason=reason)

    async def _end(self, operation: str, **arguments: object) -> None:
        await self._call(operation, **arguments)
        self._has_ended = True

    async def _call(self, operation: str, **arguments: object) -> None:
        if self._has_ended:
            raise TurnEnded
        await self._connection.call(operation, None, item=self._value["item"], **arguments)


class RemoteQueue:
    """The port over a connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @classmethod
    async def open(cls, path: Path) -> RemoteQueue:
        """Connect and agree on the protocol. Raises: StoreUnavailable, InvalidInput."""
        connection = await Connection.open(path)
        await connection.call("hello", protocol=wire.PROTOCOL)
        return cls(connection)

    async def enqueue(self, mail: Mail, delay: timedelta = NO_DELAY) -> UUID:
        content = mail.content
        whole = content if isinstance(content, bytes) and len(content) <= CHUNK else None
        found = await self.connection.call(
            "enqueue", _pieces(mail) if whole is None else whole,
            mail=envelope_json(mail.envelope), delay=wire.us_of(delay), whole=whole is not None,
        )  # fmt: skip
        return UUID(found)

    async def dequeue(self, prefetch: int = 10) -> AsyncIterator[RemoteItem]:
        consumer = await self.connection.call("consume", prefetch=prefetch)
        while True:
            value = await self.connection.call("next", consumer=consumer)
            yield RemoteItem(self.connection, value)

    async def browse(self, selector: Selector | None = None) -> AsyncIterator[MailView]:
        async for view in self._views("browse", selector):
            yield view

    async def dead_letters(self, selector: Selector | None = None) -> AsyncIterator[MailView]:
        async for view in self._views("dead_letters", selector):
            yield view

    async def _views(self, operation: str, selector: Selector | None) -> AsyncIterator[MailView]:
        value = wire.selector_value(selector)
        async for kind, body in self.connection.stream(operation, selector=value):
            if kind is Kind.ELEMENT:
                yield wire.view_from(json.loads(body))

    async def size(self) -> Sizes:
        return Sizes(**await self.connection.call("size"))

    async def ages(self) -> Mapping[str, Mapping[timedelta, int]]:
        found = await self.connection.call("ages")
        return {
            domain: {wire.duration_of(limit): count for limit, count in counts}
            for domain, counts in found.items()
        }

    async def change(self, operation: str, selector: Selector) -> int:
        """Remove, flush, hold, release or requeue; return how many."""
        value = wire.selector_value(selector)
        return int(await self.connection.call(operation, selector=value))

    async def purge(self) -> int:
        return int(await self.connection.call("purge"))

    async def republish(self, older_than: timedelta) -> int:
        age = wire.us_of(older_than)
        return int(await self.connection.call("republish", older_than=age))

    async def maintain(self) -> None:
        await self.connection.call("maintain")

    async def close(self) -> None:
        await self.connection.close()


async def _pieces(mail: Mail) -> AsyncIterator[bytes]:
    """Yield a content in pieces that fit into frames."""
    content = mail.content
    if isinstance(content, bytes):
        for offset in range(0, len(content), CHUNK):
            yield content[offset : offset + CHUNK]
        return
    if isinstance(content, Path):
        try:
            file = await asyncio.to_thread(content.open, "rb")
        except OSError as error:
            raise InvalidMail(f"the content cannot be read: {error.strerror}") from error
        with file:
            while piece := await asyncio.to_thread(file.read, CHUNK):
                yield piece
        return
    async for piece in content:
        for offset in range(0, len(piece), CHUNK):
            yield piece[offset : offset + CHUNK]
