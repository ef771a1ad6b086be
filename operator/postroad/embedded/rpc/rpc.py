"""The socket between the owner of a store and its clients: frames, and one connection's calls.

`CALLS` has how values become JSON. What the operations do is the subclass's. Whatever a client
sends, the process goes on: a call that fails is answered with its error."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from struct import Struct
from typing import Any, ClassVar

from postroad import errors
from postroad.domain.values.text import to_json
from postroad.embedded.rpc.operations import CALLS
from postroad.errors import InvalidInput, PostroadError, StoreFailed, StoreUnavailable
from postroad.telemetry.logs import logger

PROTOCOL = 1
HEAD = Struct("<IIB")
_LENGTH_BYTES = 4
MAX_DATA = 1024 * 1024
"""Bytes of a piece of content."""

MAX_FRAME = 16 * 1024 * 1024
"""Bytes of any other frame behind its length, which has room for the largest envelope with the
outcomes of its recipients; a longer one is an error of the sender."""

MAX_HELD = 64 * 1024 * 1024
"""Bytes of frames that have not arrived whole, of all connections of a process together."""

READ = 256 * 1024
"""Bytes that are read at most at a time."""

BURST = 100
"""Elements of a stream that are sent before the client asks for more."""


class FrameKind(IntEnum):
    """Kinds of frames. One is the length of what follows (4 bytes, little-endian), the number of
    the call (4), its kind (1), and a body. A connection carries many calls at once; the client
    numbers them.

        client              owner
        CALL   JSON         what to do: {"op": …, …}
        DATA   bytes        DATA     a piece of content, at most 1 MiB
        END                 END      the content is complete
        CANCEL                       the caller does not want the answer any more
        MORE                         send the next BURST elements of a stream
        STORED ENVELOPE              a mail is in a leased slot: queue it (FORMAT.md 6)
                            ELEMENT  JSON, one of a stream
                            RESULT   JSON, the last answer of a call
                            ERROR    JSON: {"type", "message", "hint"}
                            GOING    this owner hands the store over

    Behind GOING, number 0, the owner answers on for a while. A client lets it finish the calls that
    it has begun, ends the items in its hands, then closes the connection and looks for the next
    owner.

    The first call is {"op": "hello", "protocol": 1}; another one ends the connection. When a
    connection ends, its leases are given back; slots that were leased to it are not, because the
    client's process may still be writing.
    The RESULT of STORED is the 16 bytes of the enqueue id. "lend" is only for processes that share
    the lock on the store (receiver.py)."""

    CALL = 1
    DATA = 2
    END = 3
    CANCEL = 4
    MORE = 5
    ELEMENT = 6
    RESULT = 7
    ERROR = 8
    STORED = 9
    GOING = 10


def frame(call: int, kind: FrameKind, body: bytes = b"") -> bytes:
    return HEAD.pack(len(body) + 5, call, kind) + body


def json_frame(call: int, kind: FrameKind, value: object) -> bytes:
    return frame(call, kind, to_json(value))


class FrameReader:
    """Cuts what arrives into frames: those that were sent together are read together."""

    _all_held: ClassVar[Counter[int]] = Counter()
    """Data of each reader of this process that is more than it reads at a time."""

    def __init__(self) -> None:
        self._held = bytearray()

    def close(self) -> None:
        """Drop what has not arrived whole."""
        self._held.clear()
        self._all_held.pop(id(self), None)

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield call, kind and body of each frame that is complete. To be read to its end. Raises:
        InvalidInput for a length that no frame has, and beyond MAX_HELD."""
        self._held += data
        start = 0
        while len(self._held) - start >= HEAD.size:
            length, call, kind = HEAD.unpack_from(self._held, start)
            longest = MAX_DATA + 5 if kind == FrameKind.DATA else MAX_FRAME
            if not HEAD.size - _LENGTH_BYTES <= length <= longest:
                raise InvalidInput("what arrived is no frame")
            end = start + _LENGTH_BYTES + length
            if end > len(self._held):
                break
            yield call, kind, bytes(self._held[start + HEAD.size : end])
            start = end
        del self._held[:start]
        if len(self._held) <= READ:
            self._all_held.pop(id(self), None)
            return
        self._all_held[id(self)] = len(self._held)
        if self._all_held.total() > MAX_HELD:
            raise InvalidInput("too much arrived in frames that are not whole yet")


def error_value(error: PostroadError) -> dict[str, str]:
    return {"type": type(error).__name__, "message": str(error), "hint": error.hint}


def error_from(value: Mapping[str, str]) -> PostroadError:
    """Return the error that was sent; an unknown one is transient, as all unexpected ones."""
    found = getattr(errors, value["type"], None)
    if isinstance(found, type) and issubclass(found, PostroadError):
        return found(value["message"], hint=value["hint"])
    return StoreUnavailable(value["message"], hint=value["hint"])


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
        frames = FrameReader()
        try:
            while data := await self._reader.read(READ):
                for call, kind, body in frames.feed(data):
                    await self._take(call, kind, body)
        finally:
            frames.close()
            for task in list(self._calls.values()):
                task.cancel()
            if self._calls:
                await asyncio.wait(list(self._calls.values()))
            self.left()  # behind the calls: one of them may lease an item until it is cancelled

    def _greet(self, call: int, kind: int, body: bytes) -> None:
        """Take the first call. Raises: InvalidInput, which ends the connection."""
        greeting = json.loads(body) if kind == FrameKind.CALL else {}
        if greeting.get("op") != "hello":
            error = InvalidInput("the first call is hello")
            self.say(json_frame(call, FrameKind.ERROR, error_value(error)))
            raise error
        self._is_greeted = greeting.get("protocol") == PROTOCOL

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
            for _ in range(BURST):
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
            await self.send(json_frame(call, FrameKind.RESULT, body))
        except PostroadError as error:
            await self.send(json_frame(call, FrameKind.ERROR, error_value(error)))
        except (ConnectionError, asyncio.CancelledError):
            pass
        except Exception as error:
            log.exception("a client's call failed", error=type(error).__name__)
            failure = StoreFailed(f"an unexpected {type(error).__name__}")
            await self.send(json_frame(call, FrameKind.ERROR, error_value(failure)))
        finally:
            for known in (self._calls, self._input, self._credit):
                known.pop(call, None)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def stream(self, call: int, frames: AsyncIterator[bytes]) -> None:
        """Send the parts of a stream, each a whole frame, as far as the client has asked for."""
        credit = self._credit[call] = asyncio.Semaphore(BURST)
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


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Name a socket in few bytes, as long as the context lasts, because a socket's path has at
    most 107: by a descriptor of its directory. Raises: OSError when there is no such directory."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
