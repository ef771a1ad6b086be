"""What the owner of a store and its clients say to each other on the socket. Pure.

A frame is the length of what follows (4 bytes, little-endian), the number of the call (4), its kind
(1), and a body. A connection carries many calls at once; the client numbers them.

    client              owner
    CALL   JSON         what to do: {"op": …, …}
    DATA   bytes        DATA     a piece of content, at most 1 MiB
    END                 END      the content is complete
    CANCEL                       the caller does not want the answer any more
    MORE                         send the next BURST elements of a stream
    STORED ENVELOPE              a mail is in a slot that was lent: queue it (FORMAT.md 6)
                        ELEMENT  JSON, one of a stream
                        RESULT   JSON, the last answer of a call
                        ERROR    JSON: {"type", "message", "hint"}

The first call is {"op": "hello", "protocol": 1}. When a connection ends, its leases are given back;
slots that were lent to it are not, for who has them may still be writing.
The RESULT of STORED is the 16 bytes of the enqueue id. "lend" is only for processes that share the
lock on the store (filler.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from enum import IntEnum
from struct import Struct
from typing import Any
from uuid import UUID

from postroad import errors
from postroad.domain.identifiers import EPOCH
from postroad.domain.selection import Selector
from postroad.embedded.envelopes import envelope_from, envelope_json, to_json
from postroad.errors import InvalidInput, PostroadError, StoreUnavailable
from postroad.ports.mail_queue import MailView

PROTOCOL = 1
HEAD = Struct("<IIB")
_LENGTH_BYTES = 4
LONGEST = 64 * 1024 * 1024
"""Bytes of a frame behind its length; a longer one is an error of whoever sent it."""

READ = 256 * 1024
"""Bytes that are read at most at a time."""

BURST = 100
"""Elements of a stream that are sent before the client asks for more."""

MICROSECOND = timedelta(microseconds=1)


class Kind(IntEnum):
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


def frame(call: int, kind: Kind, body: bytes = b"") -> bytes:
    """Return a frame."""
    return HEAD.pack(len(body) + 5, call, kind) + body


def json_frame(call: int, kind: Kind, value: object) -> bytes:
    """Return a frame with JSON in it."""
    return frame(call, kind, to_json(value))


class FrameReader:
    """Cuts what arrives into frames: those that were sent together are read together."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield call, kind and body of each frame that is complete. To be read to its end.

        Raises: InvalidInput for a length that no frame has.
        """
        self._held += data
        start = 0
        while len(self._held) - start >= HEAD.size:
            length, call, kind = HEAD.unpack_from(self._held, start)
            if not HEAD.size - _LENGTH_BYTES <= length <= LONGEST:
                raise InvalidInput("what arrived is no frame")
            end = start + _LENGTH_BYTES + length
            if end > len(self._held):
                break
            yield call, kind, bytes(self._held[start + HEAD.size : end])
            start = end
        del self._held[:start]


def error_value(error: PostroadError) -> dict[str, str]:
    """Return an error as it is sent."""
    return {"type": type(error).__name__, "message": str(error), "hint": error.hint}


def error_from(value: Mapping[str, str]) -> PostroadError:
    """Return the error that was sent; an unknown one is transient, as all unforeseen ones."""
    found = getattr(errors, value["type"], None)
    if isinstance(found, type) and issubclass(found, PostroadError):
        return found(value["message"], hint=value["hint"])
    return StoreUnavailable(value["message"], hint=value["hint"])


def us_of(duration: timedelta) -> int:
    return duration // MICROSECOND


def duration_of(us: int) -> timedelta:
    return timedelta(microseconds=us)


def moment_us(moment: datetime | None) -> int | None:
    return None if moment is None else (moment - EPOCH) // MICROSECOND


def moment_of(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


def selector_value(selector: Selector | None) -> dict[str, Any] | None:
    """Return a selector as it is sent; None stands for no selector at all."""
    if selector is None:
        return None
    age = selector.older_than
    return {
        "enqueue_id": None if selector.enqueue_id is None else str(selector.enqueue_id),
        "name": selector.name,
        "sender": selector.sender,
        "recipient": selector.recipient,
        "domain": selector.domain,
        "older_than": None if age is None else us_of(age),
        "attribute": selector.attribute,
        "everything": selector.everything,
    }


def selector_from(value: Mapping[str, Any] | None) -> Selector | None:
    """Return the selector that was sent."""
    if value is None:
        return None
    fields = dict(value)
    if fields["enqueue_id"] is not None:
        fields["enqueue_id"] = UUID(fields["enqueue_id"])
    if fields["older_than"] is not None:
        fields["older_than"] = duration_of(fields["older_than"])
    if fields["attribute"] is not None:
        name, text = fields["attribute"]
        fields["attribute"] = (name, text)
    return Selector(**fields)


def view_value(view: MailView) -> dict[str, Any]:
    """Return a mail's view as it is sent."""
    return {
        "enqueue_id": str(view.enqueue_id),
        "mail_id": str(view.mail_id),
        "mail": envelope_json(view.mail),
        "accepted_at": moment_us(view.accepted_at),
        "enqueued_at": moment_us(view.enqueued_at),
        "due_at": moment_us(view.due_at),
        "held": view.held,
        "attempt": view.attempt,
        "size_bytes": view.size_bytes,
        "last_error": view.last_error,
        "reason": view.reason,
    }


def view_from(value: Mapping[str, Any]) -> MailView:
    """Return the view that was sent."""
    fields = dict(value)
    fields["enqueue_id"], fields["mail_id"] = UUID(value["enqueue_id"]), UUID(value["mail_id"])
    fields["mail"] = envelope_from(value["mail"])
    for name in ("accepted_at", "enqueued_at", "due_at"):
        fields[name] = None if value[name] is None else moment_of(value[name])
    return MailView(**fields)
