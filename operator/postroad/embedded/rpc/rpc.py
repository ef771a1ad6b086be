"""Calls that are answered on a connection: their frames, content, streams and credit.

wire.py has the frames, `CALLS` how values become JSON. What the operations do is the subclass's.
Whatever a client sends, the process goes on: a call that fails is answered with its error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from postroad.embedded.rpc import wire
from postroad.embedded.rpc.operations import CALLS
from postroad.embedded.rpc.wire import FrameKind
from postroad.errors import InvalidInput, PostroadError, StoreFailed
from postroad.telemetry.logs import logger

log = logger("embedded")
Arguments = Mapping[str, Any]

PIECES = 4
"""Pieces of a content that wait for the disk; behind them its connection is not read."""


class Answering:
    """One connection: its calls under way. The subclass has a method `answer`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._input: dict[int, asyncio.Queue[bytes | None]] = {}
        self._credit: dict[int, asyncio.Semaphore] = {}
        self._is_greeted = False

    async def answer(self, call: int, operation: str, arguments: Arguments) -> object:
        """Do an operation and return its result, as it is sent. Raises: PostroadError."""
        raise NotImplementedError

    def accept(self, call: int, payload: bytes) -> None:
        """Take a mail that its process has stored."""
        raise NotImplementedError

    def left(self) -> None:
        """Clean up behind the client, whose calls have ended."""

    async def serve(self) -> None:
        """Answer until the client leaves."""
        frames = wire.FrameReader()
        try:
            while data := await self._reader.read(wire.READ):
                for call, kind, body in frames.feed(data):
                    await self._take(call, kind, body)
        finally:
            frames.close()
            for task in list(self._calls.values()):
                task.cancel()
            if self._calls:
                await asyncio.wait(list(self._calls.values()))
            self.left()

    def _greet(self, call: int, kind: int, body: bytes) -> None:
        """Take the first call. Raises: InvalidInput, which ends the connection."""
        greeting = json.loads(body) if kind == FrameKind.CALL else {}
        if greeting.get("op") != "hello":
            error = InvalidInput("the first call is hello")
            self.say(wire.json_frame(call, FrameKind.ERROR, wire.error_value(error)))
            raise error
        self._is_greeted = greeting.get("protocol") == wire.PROTOCOL

    async def _take(self, call: int, kind: int, body: bytes) -> None:
        if not self._is_greeted:
            self._greet(call, kind, body)
        if kind == FrameKind.CALL:
            arguments = json.loads(body)
            operation = CALLS.get(arguments["op"])
            if operation is not None and operation.takes_content:
                self._input[call] = asyncio.Queue(PIECES)
            self._calls[call] = asyncio.ensure_future(self._answer(call, arguments))
        elif kind == FrameKind.DATA and call in self._input:
            await self._hand_over(call, body)
        elif kind == FrameKind.END and call in self._input:
            await self._hand_over(call, None)
        elif kind == FrameKind.CANCEL and call in self._calls:
            self._calls[call].cancel()
        elif kind == FrameKind.STORED:
            self.accept(call, body)
        elif kind == FrameKind.MORE and call in self._credit:
            for _ in range(wire.BURST):
                self._credit[call].release()

    def say(self, data: bytes) -> None:
        """Send what is short, without waiting until it has left."""
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

    async def _answer(self, call: int, sent: Arguments) -> None:
        name, operation = sent["op"], CALLS.get(sent["op"])
        try:
            if operation is None:
                raise InvalidInput(f"the owner knows no operation {name!r}")
            result = await self.answer(call, name, operation.decoded(sent))
            body = operation.result.encode(result)
            await self.send(wire.json_frame(call, FrameKind.RESULT, body))
        except PostroadError as error:
            await self.send(wire.json_frame(call, FrameKind.ERROR, wire.error_value(error)))
        except (ConnectionError, asyncio.CancelledError):
            pass
        except Exception as error:
            log.exception("a client's call failed", error=type(error).__name__)
            failure = StoreFailed(f"an unforeseen {type(error).__name__}")
            await self.send(wire.json_frame(call, FrameKind.ERROR, wire.error_value(failure)))
        finally:
            for known in (self._calls, self._input, self._credit):
                known.pop(call, None)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def stream(self, call: int, frames: AsyncIterator[bytes]) -> None:
        """Send the parts of a stream, each a whole frame, as far as the client has asked for."""
        credit = self._credit[call] = asyncio.Semaphore(wire.BURST)
        async for frame in frames:
            await credit.acquire()
            await self.send(frame)

    async def content_of(self, call: int) -> AsyncIterator[bytes]:
        """Yield the pieces of the content that comes with a call."""
        pieces = self._input[call]
        while (piece := await pieces.get()) is not None:
            yield piece

    async def whole_content_of(self, call: int) -> bytes:
        """Return a content that comes in one piece."""
        return await self._input[call].get() or b""
