"""A connection to the process that owns a store: calls, and what comes of each.

rpc.py has the protocol. When the connection ends every call under way raises StoreUnavailable."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from postroad import errors
from postroad.embedded.rpc import rpc
from postroad.embedded.rpc.operations import CALLS
from postroad.embedded.rpc.rpc import FrameKind, short_path
from postroad.telemetry.logs import logger

log = logger("embedded")

Enclosed = AsyncIterator[bytes] | bytes | None
"""Values beside a call: in pieces, whole (at most CHUNK), or nothing."""


class NoOwner(errors.StoreUnavailable):
    """No process serves the store: there is no socket, or none that a process listens on."""


class CallRefused(errors.StoreUnavailable):
    """The owner did not get the whole call, so it did nothing: it went away, or hands over."""


class _PendingCall:
    """One call under way: what came of it so far, and its answer."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.arrived: asyncio.Queue[tuple[FrameKind, bytes]] = asyncio.Queue()


class OwnerConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._calls: dict[int, _PendingCall] = {}
        self._abandoned: dict[int, str | None] = {}
        """Calls whose callers stopped waiting, with the operation that undoes each."""
        self._stored: dict[int, asyncio.Future[bytes]] = {}
        self._next = 0
        self.lost: errors.PostroadError | None = None
        self._is_going = False
        """True if the owner hands over."""
        self._left = asyncio.Event()
        self._in_flight: set[int] = set()
        """The items that consumers here have."""
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def open(cls, path: Path) -> OwnerConnection:
        """Connect. Raises: NoOwner, StoreUnavailable."""
        try:
            return cls(*await asyncio.open_unix_connection(sock=await _connected(path)))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NoOwner(f"no process serves {path.parent} yet") from error
        except OSError as error:
            raise errors.StoreUnavailable(
                f"cannot reach the process that serves {path.parent}: {error.strerror}"
            ) from error

    async def _read(self) -> None:
        frames = rpc.FrameReader()
        try:
            while data := await self._reader.read(rpc.READ):
                for number, kind, body in frames.feed(data):
                    self._take(number, FrameKind(kind), body)
        except OSError:
            pass
        except Exception as error:  # what cannot be understood is as good as gone
            log.warning("the owner was not understood", error=f"{type(error).__name__}: {error}")
        finally:
            frames.close()
            self.fail(errors.StoreUnavailable("the owner of the store went away"))

    @property
    def is_usable(self) -> bool:
        """True if calls may be made. To an owner that hands over, those who have items make them:
        they may depend on each other."""
        return self.lost is None and (not self._is_going or bool(self._in_flight))

    def _check(self) -> None:
        """Raises: CallRefused; QueueClosed."""
        if isinstance(self.lost, errors.QueueClosed):
            raise self.lost
        if not self.is_usable:
            raise CallRefused

    def hold(self, item: int) -> None:
        """Take note of an item that a consumer has now."""
        self._in_flight.add(item)

    def let_go(self, item: int) -> None:
        """Take note that an item has ended."""
        self._in_flight.discard(item)
        self._leave_if_idle()

    def _go(self) -> None:
        """Begin to leave an owner that hands over: no consumer waits for items any more."""
        self._is_going = True
        for call in self._calls.values():
            if call.operation == "next":
                call.arrived.put_nowait((FrameKind.ERROR, b""))
        self._leave_if_idle()

    def _leave_if_idle(self) -> None:
        if self._is_going and not (self._calls or self._stored or self._in_flight):
            self.fail(errors.StoreUnavailable("the owner of the store handed it over"))

    def _take(self, number: int, kind: FrameKind, body: bytes) -> None:
        if kind is FrameKind.GOING:
            self._go()
        elif (stored := self._stored.pop(number, None)) is not None:
            _settle(stored, kind, body)
            self._leave_if_idle()
        elif (call := self._calls.get(number)) is not None:
            call.arrived.put_nowait((kind, body))
        elif kind in (FrameKind.RESULT, FrameKind.ERROR):
            undone_by = self._abandoned.pop(number, None)
            if undone_by is not None and kind is FrameKind.RESULT:
                self.tell(undone_by, item=json.loads(body)["item"])

    def fail(self, error: errors.PostroadError) -> None:
        """Let every call under way, and every later one, raise `error`."""
        self.lost = self.lost or error
        for call in self._calls.values():
            call.arrived.put_nowait((FrameKind.ERROR, b""))
        for stored in self._stored.values():
            if not stored.done():
                stored.set_exception(self.lost)
        self._stored.clear()
        self._left.set()
        self._writer.close()

    async def call(self, operation: str, content: Enclosed = None, **arguments: Any) -> Any:
        """Make a call and return its result. Raises: as `stream`."""
        async for kind, body in self.stream(operation, content, **arguments):
            if kind is FrameKind.RESULT:
                return CALLS[operation].result.decode(json.loads(body))
        raise AssertionError("a call has a result or an error")

    def tell(self, operation: str, **arguments: Any) -> None:
        """Make a call and pass over its answer."""
        if self.lost is None:
            self._next += 1
            self._writer.write(_request(self._next, operation, arguments))

    async def store(self, envelope: bytes) -> bytes:
        """Announce a mail that lies in a leased slot; return the enqueue id that the owner gave it.
        Raises: the owner's error, CallRefused, EnqueueUnknown."""
        self._check()
        self._next += 1
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._stored[self._next] = answer  # before it is sent: an answer to no call is dropped
        self._writer.write(rpc.frame(self._next, FrameKind.STORED, envelope))
        try:
            return await answer
        except errors.StoreUnavailable as error:
            raise self.unknown(error) from error

    def unknown(self, error: errors.StoreUnavailable) -> errors.StoreUnavailable:
        """Return the error of an enqueue, of which it may be unknown whether it was made."""
        is_known = self.lost is None or isinstance(error, CallRefused)
        return error if is_known else errors.EnqueueUnknown()

    async def stream(
        self, operation: str, content: Enclosed = None, **arguments: Any
    ) -> AsyncIterator[tuple[FrameKind, bytes]]:
        """Make a call and yield all that comes of it; the last is its result. Raises: the owner's
        error, CallRefused, StoreUnavailable."""
        if operation == "next" and self._is_going:
            await self._left.wait()
        self._check()
        self._next += 1
        number = self._next
        request = _request(number, operation, arguments)
        call = self._calls[number] = _PendingCall(operation)
        is_answered = False
        try:
            if isinstance(content, bytes):  # at once: the owner is woken once
                request += rpc.frame(number, FrameKind.DATA, content) + rpc.frame(
                    number, FrameKind.END
                )
            await self._send(request)
            if content is not None and not isinstance(content, bytes):
                async for piece in content:
                    await self._send(rpc.frame(number, FrameKind.DATA, piece))
                await self._send(rpc.frame(number, FrameKind.END))
            received = 0
            while not is_answered:
                kind, body = await call.arrived.get()
                is_answered = kind is FrameKind.RESULT or (kind is FrameKind.ERROR and bool(body))
                if kind is FrameKind.ERROR:
                    raise rpc.error_from(json.loads(body)) if body else self._lost()
                yield kind, body
                received += 1
                if received % rpc.BURST == 0 and not is_answered and self.lost is None:
                    self._writer.write(rpc.frame(number, FrameKind.MORE))
        finally:
            del self._calls[number]
            if not is_answered and self.lost is None:
                # Before what has arrived is looked at: an item among it is given back by this.
                self._abandoned[number] = CALLS[operation].undone_by
                self._writer.write(rpc.frame(number, FrameKind.CANCEL))
                while not call.arrived.empty():
                    self._take(number, *call.arrived.get_nowait())
            self._leave_if_idle()

    async def _send(self, data: bytes) -> None:
        if self.lost is not None:
            raise self.lost if isinstance(self.lost, errors.QueueClosed) else CallRefused()
        self._writer.write(data)
        try:
            await self._writer.drain()
        except OSError as error:
            raise errors.StoreUnavailable("the owner of the store went away") from error

    def _lost(self) -> errors.PostroadError:
        return self.lost or errors.StoreUnavailable()

    async def close(self) -> None:
        """Leave: the owner takes back what is leased."""
        self.fail(errors.QueueClosed())
        self._reading.cancel()
        await asyncio.wait({self._reading})


async def _connected(path: Path) -> socket.socket:
    """Return a connected socket. Raises: OSError."""
    with short_path(path) as address:
        connecting = socket.socket(socket.AF_UNIX)
        connecting.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connecting, address)
        except BaseException:
            connecting.close()
            raise
    return connecting


def _settle(answer: asyncio.Future[bytes], kind: FrameKind, body: bytes) -> None:
    if answer.done():
        return  # the caller stopped waiting
    if kind is FrameKind.RESULT:
        answer.set_result(body)
    else:
        answer.set_exception(rpc.error_from(json.loads(body)))


def _request(number: int, operation: str, arguments: Mapping[str, Any]) -> bytes:
    """Raises: InvalidMail for what the owner would take for no frame: it would end the connection,
    and with it all other calls and leases of this process."""
    value = {"op": operation, **CALLS[operation].encoded(arguments)}
    request = rpc.json_frame(number, FrameKind.CALL, value)
    if len(request) > rpc.MAX_FRAME:
        raise errors.InvalidMail("the envelope is too large for one record")
    return request
