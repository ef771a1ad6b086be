"""What the owner does for one client: its calls, its consumers, and the mails that it stores.

wire.py says what is spoken. Whatever a client does, the owner goes on; the leases of a client that
leaves are given back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any
from uuid import UUID

from postroad.domain import documents
from postroad.domain.instants import duration, duration_us
from postroad.domain.mail import Mail, Outcome, OutcomeKind
from postroad.domain.mail_views import MailView
from postroad.domain.selection import Selector
from postroad.embedded import wire
from postroad.embedded.items import SpoolItem
from postroad.embedded.owner import Consumer, OwnedQueue
from postroad.embedded.wire import Kind
from postroad.errors import InvalidInput, PostroadError, StoreFailed
from postroad.ports.administration import Operation
from postroad.telemetry.logs import logger

log = logger("embedded")
Arguments = Mapping[str, Any]

MOST_LEASED_SLOTS = 32
"""Slots that are lent at a time."""

PIECES = 4
"""Pieces of a content that wait for the disk; behind them its connection is not read."""


class Serving:
    """One client: its calls under way, its consumers and the items it has."""

    def __init__(
        self, queue: OwnedQueue, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._queue, self._reader, self._writer = queue, reader, writer
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._input: dict[int, asyncio.Queue[bytes | None]] = {}
        self._credit: dict[int, asyncio.Semaphore] = {}
        self._consumers: dict[int, Consumer] = {}
        self._items: dict[int, SpoolItem] = {}
        self._leased_slots: set[int] = set()
        self._numbers = 0

    async def serve(self) -> None:
        """Answer until the client leaves."""
        try:
            frames = wire.FrameReader()
            while data := await self._reader.read(wire.READ):
                for call, kind, body in frames.feed(data):
                    await self._take(call, kind, body)
        finally:
            for task in list(self._calls.values()):
                task.cancel()
            if self._calls:
                await asyncio.wait(list(self._calls.values()))
            for item in list(self._items.values()):
                item.give_back()

    async def _take(self, call: int, kind: int, body: bytes) -> None:
        if kind == Kind.CALL:
            arguments = json.loads(body)
            if arguments["op"] == "enqueue":
                self._input[call] = asyncio.Queue(PIECES)
            self._calls[call] = asyncio.ensure_future(self._answer(call, arguments))
        elif kind == Kind.DATA and call in self._input:
            await self._hand_over(call, body)
        elif kind == Kind.END and call in self._input:
            await self._hand_over(call, None)
        elif kind == Kind.CANCEL and call in self._calls:
            self._calls[call].cancel()
        elif kind == Kind.STORED:
            self._accept(call, body)
        elif kind == Kind.MORE and call in self._credit:
            for _ in range(wire.BURST):
                self._credit[call].release()

    def _accept(self, call: int, payload: bytes) -> None:
        """Queue a mail that its process has stored; the answer follows when it is durable."""
        try:
            enqueue_id, queued = self._queue.accept_stored(payload, self._leased_slots)
        except PostroadError as error:
            return self._say(wire.json_frame(call, Kind.ERROR, wire.error_value(error)))
        return queued.add_done_callback(partial(self._accepted, call, enqueue_id))

    def _accepted(self, call: int, enqueue_id: UUID, queued: asyncio.Future[None]) -> None:
        error = queued.exception()
        if error is None:
            return self._say(wire.frame(call, Kind.RESULT, enqueue_id.bytes))
        assert isinstance(error, PostroadError)
        return self._say(wire.json_frame(call, Kind.ERROR, wire.error_value(error)))

    def _say(self, data: bytes) -> None:
        """Send what is short: nobody waits for it to leave."""
        if not self._writer.is_closing():
            self._writer.write(data)

    async def _hand_over(self, call: int, piece: bytes | None) -> None:
        """Give a call the next piece, or the end, of its content. Waits while it has enough of
        them, and no longer than it goes on: it needs nothing else of this connection, so either
        it takes one or it ends."""
        pieces = self._input[call]
        if not pieces.full():
            return pieces.put_nowait(piece)
        putting = asyncio.ensure_future(pieces.put(piece))
        try:
            await asyncio.wait({putting, self._calls[call]}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            putting.cancel()
        return None

    async def _answer(self, call: int, arguments: Arguments) -> None:
        operation = OPERATIONS.get(arguments["op"])
        try:
            if operation is None:
                raise InvalidInput(f"the owner knows no operation {arguments['op']!r}")
            result = await operation(self, call, arguments)
            await self.send(wire.json_frame(call, Kind.RESULT, result))
        except PostroadError as error:
            await self.send(wire.json_frame(call, Kind.ERROR, wire.error_value(error)))
        except (ConnectionError, asyncio.CancelledError):
            pass
        except Exception as error:
            log.exception("a client's call failed", error=type(error).__name__)
            failure = StoreFailed(f"an unforeseen {type(error).__name__}")
            await self.send(wire.json_frame(call, Kind.ERROR, wire.error_value(failure)))
        finally:
            for known in (self._calls, self._input, self._credit):
                known.pop(call, None)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    # -- operations ------------------------------------------------------------------------------

    async def hello(self, call: int, arguments: Arguments) -> object:
        if arguments["protocol"] != wire.PROTOCOL:
            raise InvalidInput(
                f"the owner speaks protocol {wire.PROTOCOL}, not {arguments['protocol']}"
            )
        return {"name": self._queue.name}

    async def enqueue(self, call: int, arguments: Arguments) -> object:
        pieces = self._input[call]

        async def content() -> AsyncIterator[bytes]:
            while (piece := await pieces.get()) is not None:
                yield piece

        envelope = documents.envelope_of_brief(arguments["mail"])
        body: bytes | AsyncIterator[bytes] = content()
        if arguments["whole"]:
            body = await pieces.get() or b""
        mail = Mail.of(envelope, body)
        return str(await self._queue.enqueue(mail, duration(arguments["delay"])))

    async def lease_slots(self, call: int, arguments: Arguments) -> object:
        slots = await self._queue.lease_slots(MOST_LEASED_SLOTS)
        self._leased_slots.update(slots)
        return slots

    async def refused(self, call: int, arguments: Arguments) -> object:
        self._queue.count_failure(arguments["reason"])
        return None

    async def browse(self, call: int, arguments: Arguments) -> object:
        return await self._stream(call, self._queue.browse(_selector(arguments)))

    async def dead_letters(self, call: int, arguments: Arguments) -> object:
        return await self._stream(call, self._queue.dead_letters(_selector(arguments)))

    async def _stream(self, call: int, views: AsyncIterator[MailView]) -> object:
        credit = self._credit[call] = asyncio.Semaphore(wire.BURST)
        async for view in views:
            await credit.acquire()
            await self.send(wire.json_frame(call, Kind.ELEMENT, documents.exact_view(view)))
        return None

    async def size(self, call: int, arguments: Arguments) -> object:
        return documents.sizes_value(await self._queue.size())

    async def ages(self, call: int, arguments: Arguments) -> object:
        found = await self._queue.ages()
        return {
            domain: [[duration_us(limit), count] for limit, count in counts.items()]
            for domain, counts in found.items()
        }

    async def change(self, call: int, arguments: Arguments) -> object:
        selector = _selector(arguments)
        assert selector is not None
        return await self._queue.change(Operation(arguments["op"]), selector)

    async def purge(self, call: int, arguments: Arguments) -> object:
        return await self._queue.purge()

    async def republish(self, call: int, arguments: Arguments) -> object:
        return await self._queue.republish(duration(arguments["older_than"]))

    async def maintain(self, call: int, arguments: Arguments) -> object:
        await self._queue.maintain()
        return None

    async def consume(self, call: int, arguments: Arguments) -> object:
        self._numbers += 1
        self._consumers[self._numbers] = self._queue.consumer(arguments["prefetch"])
        return self._numbers

    async def next(self, call: int, arguments: Arguments) -> object:
        item = await self._consumers[arguments["consumer"]].next()
        self._numbers += 1
        self._items[self._numbers] = item
        return {
            "item": self._numbers,
            **documents.leased_value(item),
            "failures": dict(item.failures),
        }

    async def content(self, call: int, arguments: Arguments) -> object:
        credit = self._credit[call] = asyncio.Semaphore(wire.BURST)
        async for chunk in self._items[arguments["item"]].stream():
            await credit.acquire()
            await self.send(wire.frame(call, Kind.DATA, chunk))
        return None

    async def shape(self, call: int, arguments: Arguments) -> object:
        shape = await self._items[arguments["item"]].shape()
        return None if shape is None else shape.as_text()

    async def record(self, call: int, arguments: Arguments) -> object:
        outcome = Outcome(OutcomeKind(arguments["kind"]), arguments["text"])
        await self._items[arguments["item"]].record(tuple(arguments["to"]), outcome)
        return None

    async def done(self, call: int, arguments: Arguments) -> object:
        return await self._end(arguments, lambda item: item.done())

    async def reject(self, call: int, arguments: Arguments) -> object:
        return await self._end(arguments, lambda item: item.reject(arguments["reason"]))

    async def retry(self, call: int, arguments: Arguments) -> object:
        remaining = arguments["remaining"]
        delay = duration(arguments["delay"])
        return await self._end(
            arguments,
            lambda item: item.retry(
                delay, None if remaining is None else tuple(remaining), arguments["error"]
            ),
        )

    async def give_back(self, call: int, arguments: Arguments) -> object:
        if (item := self._items.pop(arguments["item"], None)) is not None:
            item.give_back()
        return None

    async def _end(
        self, arguments: Arguments, ending: Callable[[SpoolItem], Awaitable[None]]
    ) -> object:
        await ending(self._items[arguments["item"]])
        del self._items[arguments["item"]]
        return None


def _selector(arguments: Arguments) -> Selector | None:
    return documents.selector_of(arguments["selector"])


Answer = Callable[[Serving, int, Arguments], Awaitable[object]]
OPERATIONS: dict[str, Answer] = {
    name: getattr(Serving, name)
    for name in (
        "hello",
        "enqueue",
        "refused",
        "browse",
        "dead_letters",
        "size",
        "ages",
        "purge",
        "republish",
        "maintain",
        "consume",
        "next",
        "content",
        "shape",
        "record",
        "done",
        "reject",
        "retry",
        "give_back",
    )
} | {"lend": Serving.lease_slots, **dict.fromkeys(map(str, Operation), Serving.change)}
