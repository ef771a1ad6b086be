"""The protocol of the socket between the owner of a store and its clients. Pure.

A frame is the length of what follows (4 bytes, little-endian), the number of the call (4), its kind
(1), and a body. A connection carries many calls at once; the client numbers them.

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

Behind GOING, number 0, the owner answers on for a while. A client lets it finish the calls that it
has begun, ends the items in its hands, then closes the connection and looks for the next owner.

The first call is {"op": "hello", "protocol": 1}; another one ends the connection. When a connection
ends, its leases are given back; slots that were leased to it are not, because the client's process
may still be writing.
The RESULT of STORED is the 16 bytes of the enqueue id. "lend" is only for processes that share the
lock on the store (receiver.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import IntEnum
from struct import Struct
from typing import ClassVar

from postroad import errors
from postroad.domain.values.text import to_json
from postroad.errors import InvalidInput, PostroadError, StoreUnavailable

PROTOCOL = 1
HEAD = Struct("<IIB")
_LENGTH_BYTES = 4
LONGEST_DATA = 1024 * 1024
"""Bytes of a piece of content."""

LONGEST = 16 * 1024 * 1024
"""Bytes of any other frame behind its length, which has room for the largest envelope with the
outcomes of its recipients; a longer one is an error of the sender."""

MAX_HELD = 64 * 1024 * 1024
"""Bytes of frames that have not arrived whole, of all connections of a process together."""

READ = 256 * 1024
"""Bytes that are read at most at a time."""

BURST = 100
"""Elements of a stream that are sent before the client asks for more."""


class FrameKind(IntEnum):
    """Kinds of frames."""

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
    """Return a frame."""
    return HEAD.pack(len(body) + 5, call, kind) + body


def json_frame(call: int, kind: FrameKind, value: object) -> bytes:
    """Return a frame with JSON in it."""
    return frame(call, kind, to_json(value))


class FrameReader:
    """Cuts what arrives into frames: those that were sent together are read together."""

    _all_held: ClassVar[Counter[int]] = Counter()
    """What each reader of this process holds that is more than it reads at a time."""

    def __init__(self) -> None:
        self._held = bytearray()

    def close(self) -> None:
        """Drop what has not arrived whole."""
        self._held.clear()
        self._all_held.pop(id(self), None)

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield call, kind and body of each frame that is complete. To be read to its end.

        Raises: InvalidInput for a length that no frame has, and beyond MAX_HELD.
        """
        self._held += data
        start = 0
        while len(self._held) - start >= HEAD.size:
            length, call, kind = HEAD.unpack_from(self._held, start)
            longest = LONGEST_DATA + 5 if kind == FrameKind.DATA else LONGEST
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
    """Return an error as it is sent."""
    return {"type": type(error).__name__, "message": str(error), "hint": error.hint}


def error_from(value: Mapping[str, str]) -> PostroadError:
    """Return the error that was sent; an unknown one is transient, as all unforeseen ones."""
    found = getattr(errors, value["type"], None)
    if isinstance(found, type) and issubclass(found, PostroadError):
        return found(value["message"], hint=value["hint"])
    return StoreUnavailable(value["message"], hint=value["hint"])
