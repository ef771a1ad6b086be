"""A few CQL statements without a driver: the stack starts where nothing is installed yet.

Native protocol version 4, one request at a time, no results decoded.
Source: Apache Cassandra, native_protocol_v4.spec, sections 2 to 4.
"""

import socket
import struct
from types import TracebackType
from typing import Self

VERSION = 4
ERROR, STARTUP, READY, AUTHENTICATE, QUERY, RESULT = 0x00, 0x01, 0x02, 0x03, 0x07, 0x08
AUTH_RESPONSE, AUTH_SUCCESS = 0x0F, 0x10
CONSISTENCY_ONE = 0x0001


class CqlError(Exception):
    """The server refused, or what it said is not CQL."""


class Connection:
    """A connection that is logged in, for as long as its `with` block."""

    def __init__(
        self, host: str, port: int, user: str, password: str, timeout_seconds: float = 3
    ) -> None:
        """Connect and log in.

        Raises:
            OSError: nothing listens there.
            CqlError: user or password are wrong (or not known yet).
        """
        self._socket = socket.create_connection((host, port), timeout_seconds)
        try:
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

    def execute(self, statement: str) -> None:
        """Execute a statement and drop its rows.

        Raises:
            CqlError: the server refused it.
        """
        query = statement.encode()
        body = struct.pack(">i", len(query)) + query + struct.pack(">HB", CONSISTENCY_ONE, 0)
        self._ask(QUERY, body)

    def _ask(self, kind: int, body: bytes) -> int:
        self._socket.sendall(struct.pack(">BBhBi", VERSION, 0, 0, kind, len(body)) + body)
        _, _, _, answer, length = struct.unpack(">BBhBi", self._read(9))
        content = self._read(length)
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
