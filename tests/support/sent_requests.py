"""Requests in the bytes that a client sends over HTTP, AMQP and CQL. Those have a name that may
change something at the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import md5
from typing import Protocol

from pika import frame, spec

Piece = tuple[bytes, str | None]
"""Bytes to forward; with the last ones of a request that may change something, its name."""


class SentRequests(Protocol):
    """Splits what one connection sends."""

    def feed(self, data: bytes) -> Iterator[Piece]:
        """Iterate over all that can be forwarded. Bytes of an incomplete head are kept."""
        ...


class HttpRequests:
    """HTTP/1.1. `changes` says of method and target whether a request may change something."""

    def __init__(self, changes: Callable[[str, str], bool]) -> None:
        self._changes = changes
        self._buffer = b""
        self._body_left = 0
        self._name: str | None = None

    def feed(self, data: bytes) -> Iterator[Piece]:
        self._buffer += data
        while self._buffer:
            if not self._body_left:
                head, end, rest = self._buffer.partition(b"\r\n\r\n")
                if not end:
                    return
                self._begin(head.decode("latin-1"))
                self._buffer = rest
                yield head + end, None if self._body_left else self._name
            else:
                body = self._buffer[: self._body_left]
                self._buffer = self._buffer[len(body) :]
                self._body_left -= len(body)
                yield body, None if self._body_left else self._name

    def _begin(self, head: str) -> None:
        request, *lines = head.split("\r\n")
        method, target, _ = request.split(" ")
        fields = {
            name.strip().lower(): value.strip()
            for name, _, value in (f.partition(":") for f in lines)
        }
        assert "transfer-encoding" not in fields, head
        self._body_left = int(fields.get("content-length", "0"))
        self._name = f"{method} {target}" if self._changes(method, target) else None


DECLARING = (
    spec.Exchange.Declare,
    spec.Exchange.Delete,
    spec.Exchange.Bind,
    spec.Queue.Declare,
    spec.Queue.Bind,
    spec.Queue.Unbind,
    spec.Queue.Purge,
    spec.Queue.Delete,
)


class AmqpRequests:
    """AMQP 0.9.1. Only declarations are named: messages, whose bodies are frames of their own, and
    acknowledgements are not."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[Piece]:
        self._buffer += data
        while self._buffer:
            length, decoded = frame.decode_frame(self._buffer)
            if not length:
                return
            piece, self._buffer = self._buffer[:length], self._buffer[length:]
            yield piece, _name_of(getattr(decoded, "method", None))


def _name_of(method: object) -> str | None:
    if not isinstance(method, DECLARING) or getattr(method, "passive", False):
        return None
    about = getattr(method, "queue", None) or getattr(method, "exchange", None)
    return f"{method.NAME} {about or getattr(method, 'destination', '')}"


QUERY, PREPARE, EXECUTE, BATCH = 0x07, 0x09, 0x0A, 0x0D
HEADER_BYTES = 9


class CqlRequests:
    """CQL of protocol version 4, not compressed. The id of a statement is a hash of its text."""

    def __init__(self) -> None:
        self._buffer = b""
        self._prepared: dict[bytes, str] = {}

    def feed(self, data: bytes) -> Iterator[Piece]:
        self._buffer += data
        while len(self._buffer) >= HEADER_BYTES:
            length = HEADER_BYTES + int.from_bytes(self._buffer[5:HEADER_BYTES])
            if len(self._buffer) < length:
                return
            piece, self._buffer = self._buffer[:length], self._buffer[length:]
            assert piece[0] == 4, f"protocol version {piece[0]}"
            yield piece, self._name(piece[4], piece[HEADER_BYTES:])

    def _name(self, opcode: int, body: bytes) -> str | None:
        match opcode:
            case _ if opcode == PREPARE:
                self._prepared[md5(_long_string(body)).digest()] = _long_string(body).decode()
            case _ if opcode == QUERY:
                return _change_in(_long_string(body).decode())
            case _ if opcode == EXECUTE:
                size = int.from_bytes(body[:2])
                return _change_in(self._prepared.get(body[2 : 2 + size], "a statement"))
            case _ if opcode == BATCH:
                return "BATCH"
        return None


def _long_string(body: bytes) -> bytes:
    return body[4 : 4 + int.from_bytes(body[:4])]


def _change_in(statement: str) -> str | None:
    first = statement.split(maxsplit=1)[0].upper()
    return None if first in ("SELECT", "USE") else " ".join(statement.split()[:6])
