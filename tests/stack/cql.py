"""A few CQL statements without a driver, because the stack starts where nothing is installed yet.

Native protocol version 4, one request at a time, values as the bytes that the server sends. Source:
Apache Cassandra, native_protocol_v4.spec, sections 2 to 4.
"""

import socket
import ssl
import struct
from types import TracebackType
from typing import Self

VERSION = 4
ERROR, STARTUP, READY, AUTHENTICATE, QUERY, RESULT = 0x00, 0x01, 0x02, 0x03, 0x07, 0x08
AUTH_RESPONSE, AUTH_SUCCESS = 0x0F, 0x10
CONSISTENCY_ONE, CONSISTENCY_QUORUM, CONSISTENCY_ALL = 0x0001, 0x0004, 0x0005
ROWS = 0x0002
GLOBAL_TABLES, MORE_PAGES, NO_METADATA = 0x01, 0x02, 0x04
CUSTOM, LIST, MAP, SET, USER_TYPE, TUPLE = 0x00, 0x20, 0x21, 0x22, 0x30, 0x31

Row = tuple[bytes | None, ...]


class CqlError(Exception):
    """The server refused a request, or its reply is not CQL."""


class Connection:
    """A connection that is logged in, for as long as its `with` block."""

    def __init__(
        self,
        host: str,
        port: int,
        user: str,
        password: str,
        timeout_seconds: float = 3,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Connect, with TLS when there is a context, and log in.

        Raises:
            OSError: nothing listens there.
            CqlError: user or password are wrong (or not known yet).
        """
        self._socket = socket.create_connection((host, port), timeout_seconds)
        try:
            if context is not None:
                self._socket = context.wrap_socket(self._socket, server_hostname=host)
            kind = self._ask(STARTUP, struct.pack(">H", 1) + _text("CQL_VERSION") + _text("3.0.0"))
            if kind == AUTHENTICATE:
                token = f"\0{user}\0{password}".encode()
                kind = self._ask(AUTH_RESPONSE, struct.pack(">i", len(token)) + token)
            if kind not in (READY, AUTH_SUCCESS):
                raise CqlError(f"unexpected answer {kind:#x} to the login")
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection."""
        self._socket.close()

    def execute(self, statement: str, consistency: int = CONSISTENCY_ONE) -> list[Row]:
        """Execute a statement and return its rows, of columns that are no collections.

        Raises:
            CqlError: the server refused it.
        """
        query = statement.encode()
        body = struct.pack(">i", len(query)) + query + struct.pack(">HB", consistency, 0)
        self._ask(QUERY, body)
        return _rows(self._content)

    def _ask(self, kind: int, body: bytes) -> int:
        self._socket.sendall(struct.pack(">BBhBi", VERSION, 0, 0, kind, len(body)) + body)
        _, _, _, answer, length = struct.unpack(">BBhBi", self._read(9))
        self._content = content = self._read(length)
        if answer == ERROR:
            size = struct.unpack(">H", content[4:6])[0]
            raise CqlError(content[6 : 6 + size].decode(errors="replace"))
        return int(answer)

    def _read(self, length: int) -> bytes:
        content = b""
        while len(content) < length:
            part = self._socket.recv(length - len(content))
            if not part:
                raise CqlError("the server closed the connection")
            content += part
        return content


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def _rows(content: bytes) -> list[Row]:
    kind, flags, columns = struct.unpack_from(">iii", content + bytes(12))
    if kind != ROWS:
        return []
    if flags & (MORE_PAGES | NO_METADATA):
        raise CqlError("an answer in pages, or without a description of its columns")
    at = 12

    def skip_text() -> None:
        nonlocal at
        at += 2 + int(struct.unpack_from(">H", content, at)[0])

    for _ in range(2 if flags & GLOBAL_TABLES else 0):
        skip_text()
    for _ in range(columns):
        for _ in range(1 if flags & GLOBAL_TABLES else 3):
            skip_text()
        (code,) = struct.unpack_from(">H", content, at)
        if code in (CUSTOM, LIST, MAP, SET, USER_TYPE, TUPLE):
            raise CqlError("a column of a type that is not read here")
        at += 2
    (count,) = struct.unpack_from(">i", content, at)
    at += 4
    rows = []
    for _ in range(count):
        row: list[bytes | None] = []
        for _ in range(columns):
            (size,) = struct.unpack_from(">i", content, at)
            at += 4 + max(size, 0)
            row.append(content[at - size : at] if size >= 0 else None)
        rows.append(tuple(row))
    return rows
