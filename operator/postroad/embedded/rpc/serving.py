"""Service of the owner for other processes on this machine: the socket where it listens, and for
each client its calls, its consumers, and the mails that it stores."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from postroad.domain.mail.mail import Mail
from postroad.domain.queues.documents import MailView
from postroad.embedded.rpc import rpc
from postroad.embedded.rpc.operations import CALLS, leased_value
from postroad.embedded.rpc.rpc import Answering, Arguments, FrameKind, frame, short_path
from postroad.embedded.store.items import SpoolItem
from postroad.embedded.store.owner import Consumer, OwnedQueue
from postroad.errors import InvalidInput, PostroadError
from postroad.ports.mail_queue import Operation
from postroad.telemetry.logs import logger

MAX_LEASED_SLOTS = 32
"""Slots that are lent at a time."""


class Serving(Answering):
    """One client: its consumers and the items it has."""

    def __init__(
        self, queue: OwnedQueue, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        super().__init__(reader, writer)
        self._queue = queue
        self._consumers: dict[int, Consumer] = {}
        self._items: dict[int, SpoolItem] = {}
        self._leased_slots: set[int] = set()
        self._numbers = 0

    def left(self) -> None:
        for item in list(self._items.values()):
            item.end_lease()

    async def answer(self, call: int, operation: str, arguments: Arguments) -> object:
        return await OPERATIONS[operation](self, call, arguments)

    def accept(self, call: int, payload: bytes) -> None:
        """Queue a mail that its process has stored; the answer follows when it is durable."""
        try:
            enqueue_id, queued = self._queue.accept_stored(payload, self._leased_slots)
        except PostroadError as error:
            return self.say(rpc.json_frame(call, FrameKind.ERROR, rpc.error_value(error)))
        return queued.add_done_callback(partial(self._accepted, call, enqueue_id))

    def _accepted(self, call: int, enqueue_id: UUID, queued: asyncio.Future[None]) -> None:
        error = queued.exception()
        if error is None:
            return self.say(rpc.frame(call, FrameKind.RESULT, enqueue_id.bytes))
        assert isinstance(error, PostroadError)
        return self.say(rpc.json_frame(call, FrameKind.ERROR, rpc.error_value(error)))

    # -- operations ------------------------------------------------------------------------------

    async def hello(self, call: int, arguments: Arguments) -> None:
        if arguments["protocol"] != rpc.PROTOCOL:
            raise InvalidInput(
                f"the owner serves protocol {rpc.PROTOCOL}, not {arguments['protocol']}"
            )

    async def enqueue(self, call: int, arguments: Arguments) -> object:
        body: bytes | AsyncIterator[bytes] = self.content_of(call)
        if arguments["whole"]:
            body = await self.whole_content_of(call)
        elif arguments["key"] is not None:  # its digest is that of bytes
            body = b"".join([piece async for piece in self.content_of(call)])
        mail = Mail.of(arguments["mail"], body)
        return await self._queue.enqueue(mail, arguments["delay"], key=arguments["key"])

    async def lease_slots(self, call: int, arguments: Arguments) -> object:
        slots = await self._queue.lease_slots(MAX_LEASED_SLOTS, arguments["kind"])
        self._leased_slots.update(slots)
        return slots

    async def refused(self, call: int, arguments: Arguments) -> object:
        self._queue.count_failure(arguments["reason"])
        return None

    async def browse(self, call: int, arguments: Arguments) -> object:
        return await self._views(call, self._queue.browse(arguments["selector"]))

    async def dead_letters(self, call: int, arguments: Arguments) -> object:
        return await self._views(call, self._queue.dead_letters(arguments["selector"]))

    async def _views(self, call: int, views: AsyncIterator[MailView]) -> object:
        encode = CALLS["browse"].element.encode
        frames = (rpc.json_frame(call, FrameKind.ELEMENT, encode(view)) async for view in views)
        await self.stream(call, frames)
        return None

    async def size(self, call: int, arguments: Arguments) -> object:
        return await self._queue.size()

    async def ages(self, call: int, arguments: Arguments) -> object:
        return await self._queue.ages()

    async def change(self, call: int, arguments: Arguments) -> object:
        return await self._queue.change(Operation(arguments["op"]), arguments["selector"])

    async def purge(self, call: int, arguments: Arguments) -> object:
        return await self._queue.purge()

    async def republish(self, call: int, arguments: Arguments) -> object:
        return await self._queue.republish(arguments["older_than"])

    async def maintain(self, call: int, arguments: Arguments) -> object:
        await self._queue.maintain()
        return None

    async def consume(self, call: int, arguments: Arguments) -> object:
        self._numbers += 1
        self._consumers[self._numbers] = self._queue.consumer(arguments["prefetch"])
        return self._numbers

    async def next(self, call: int, arguments: Arguments) -> object:
        # No `await` behind this one: a client that leaves in it would keep the item leased.
        item = await self._consumers[arguments["consumer"]].next()
        self._numbers += 1
        self._items[self._numbers] = item
        return leased_value(self._numbers, item, item.failures)

    async def content(self, call: int, arguments: Arguments) -> object:
        return await self._chunks(call, self._items[arguments["item"]].stream())

    async def mail_content(self, call: int, arguments: Arguments) -> object:
        return await self._chunks(call, self._queue.content(arguments["enqueue_id"]))

    async def _chunks(self, call: int, chunks: AsyncIterator[bytes]) -> object:
        frames = (rpc.frame(call, FrameKind.DATA, chunk) async for chunk in chunks)
        await self.stream(call, frames)
        return None

    async def shape(self, call: int, arguments: Arguments) -> object:
        return await self._items[arguments["item"]].shape()

    async def record(self, call: int, arguments: Arguments) -> object:
        await self._items[arguments["item"]].record(arguments["outcomes"])
        return None

    async def end(self, call: int, arguments: Arguments) -> object:
        number = arguments["item"]
        await self._items[number].end(arguments["ending"], arguments["outcomes"])
        del self._items[number]  # behind the end: one that failed is still to be given back
        return None

    async def give_back(self, call: int, arguments: Arguments) -> object:
        if (item := self._items.pop(arguments["item"], None)) is not None:
            item.end_lease()
        return None


CallAnswer = Callable[[Serving, int, Arguments], Awaitable[object]]
_OTHER_NAMES: dict[str, Any] = {
    "lend": Serving.lease_slots,
    "mail_content": Serving.mail_content,
    **{operation.value: Serving.change for operation in Operation},
}
OPERATIONS: dict[str, CallAnswer] = {
    name: _OTHER_NAMES.get(name) or getattr(Serving, name) for name in CALLS
}
"""Effect of each operation: the method of its name, where it has no other."""


log = logger("embedded")

MAX_HANDOVER = timedelta(seconds=5)
"""Time that an owner that closes waits for its clients to end what they have begun."""


GOING = frame(0, FrameKind.GOING)


class Server:
    """Serves an owned queue on a Unix socket."""

    def __init__(self, queue: OwnedQueue) -> None:
        self._queue = queue
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], Serving] = {}
        self._is_closing = False

    async def listen(self, path: Path) -> None:
        """Begin to serve. Only this user can connect."""
        self._server = await asyncio.start_unix_server(self._connected, sock=_bind(path))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving = self._connections[task] = Serving(self._queue, reader, writer)
        try:
            if self._is_closing:
                serving.say(GOING)
            await serving.serve()
        except (ConnectionError, asyncio.CancelledError):
            pass  # The client left, or we do: its leases are given back, and that is all.
        except Exception as error:  # whatever it said: others go on
            log.warning("a client was cut off", error=f"{type(error).__name__}: {error}")
        finally:
            del self._connections[task]
            writer.close()

    async def close(self) -> None:
        """Stop serving: let clients end what they have begun, then cut off those that are left."""
        self._is_closing = True  # first: `_connected` says GOING to clients that come meanwhile
        if self._server is not None:
            self._server.close()
        for serving in self._connections.values():
            serving.say(GOING)
        if self._connections:
            await asyncio.wait(self._connections, timeout=MAX_HANDOVER.total_seconds())
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)


def _bind(path: Path) -> socket.socket:
    """Bind a socket; one that an earlier owner left is replaced. Raises: OSError."""
    listening = socket.socket(socket.AF_UNIX)
    with short_path(path) as address:
        path.unlink(missing_ok=True)  # by the owner alone: who has the lock
        listening.bind(address)
        path.chmod(0o600)  # before it listens: until then no other user can connect
    return listening
