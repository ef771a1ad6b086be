"""The PROXY protocol: a proxy says whose connection it hands on, before anything else.

Source: HAProxy, The PROXY protocol, versions 1 and 2."""

import asyncio
import ipaddress
import re
import socket
import struct
from datetime import timedelta

from postroad.smtp.wire import ConnectionLost, TooSlow

MAX_V1 = 107
"""Octets of a line of version 1, with its CRLF."""

MAX_V2 = 16 + 4096
"""Octets of a header of version 2 that is taken; most have some dozens."""

_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_V1 = re.compile(
    rb"PROXY (?:TCP([46]) ([0-9a-fA-F:.]{2,39}) [0-9a-fA-F:.]{2,39} [0-9]{1,5} [0-9]{1,5}"
    rb"|UNKNOWN[^\r]*)\r\n"
)
_LOCAL, _PROXY = 0x20, 0x21
_IPV4, _IPV6 = 0x1, 0x2


class NoProxyHeader(ConnectionLost):
    """A proxy's connection does not begin with the client's address."""


def parse_header(octets: bytes) -> tuple[int, str | None] | None:
    """Return the octets that a header takes, and the client's address (None: it says none); None
    while the header has not arrived whole. Raises: NoProxyHeader.

    >>> parse_header(b"PROXY TCP4 192.0.2.1 192.0.2.2 4711 25\\r\\nEHLO")
    (40, '192.0.2.1')
    """
    if octets[: len(_SIGNATURE)] == _SIGNATURE[: len(octets)]:
        return _parse_v2(octets)
    end = octets.find(b"\r\n", 0, MAX_V1)
    if end < 0:
        if not b"PROXY ".startswith(octets[:6]) or len(octets) >= MAX_V1:
            raise NoProxyHeader("no header of the PROXY protocol")
        return None
    found = _V1.fullmatch(octets, 0, end + 2)
    if found is None:
        raise NoProxyHeader("a malformed line of the PROXY protocol")
    if found[1] is None:
        return end + 2, None
    try:
        address = ipaddress.ip_address(found[2].decode())
    except ValueError:
        address = None
    if address is None or str(address.version) != found[1].decode():
        raise NoProxyHeader("a malformed address of the PROXY protocol")
    return end + 2, str(address)


def _parse_v2(octets: bytes) -> tuple[int, str | None] | None:
    if len(octets) < 16:
        return None
    command, family, length = struct.unpack_from("!BBH", octets, 12)
    whole = 16 + length
    if command not in (_LOCAL, _PROXY) or whole > MAX_V2:
        raise NoProxyHeader("a malformed header of the PROXY protocol")
    if len(octets) < whole:
        return None
    if command == _LOCAL:
        return whole, None
    size = {_IPV4: 4, _IPV6: 16}.get(family >> 4)
    if size is None:
        return whole, None
    if length < 2 * size + 4:
        raise NoProxyHeader("a header of the PROXY protocol without addresses")
    return whole, str(ipaddress.ip_address(octets[16 : 16 + size]))


async def read_client(connection: socket.socket, timeout: timedelta) -> str | None:
    """Take the header from a connection; what follows it stays there, for TLS or SMTP. Return the
    client's address; None: the header says none. Raises: NoProxyHeader, ConnectionLost, TooSlow."""
    connection.setblocking(False)
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            seen = b""
            while True:
                arrived = await _peek(connection, len(seen))
                found = parse_header(arrived)
                if found is not None:
                    connection.recv(found[0])
                    return found[1]
                seen = arrived
    except TimeoutError as late:
        raise TooSlow from late
    except OSError as error:
        raise ConnectionLost from error


async def _peek(connection: socket.socket, known: int) -> bytes:
    """Return what has arrived, once it is more than what is known."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            arrived = connection.recv(MAX_V2, socket.MSG_PEEK)
        except BlockingIOError:
            arrived = None
        if arrived == b"":
            raise ConnectionLost
        if arrived is not None and len(arrived) > known:
            return arrived
        if arrived is None:
            readable = loop.create_future()
            loop.add_reader(connection, _set, readable)
            try:
                await readable
            finally:
                loop.remove_reader(connection)
        else:  # the system says that there are octets until they are taken
            await asyncio.sleep(PEEK_SECONDS)


PEEK_SECONDS = 0.05
"""Between two looks at a header of which a part has arrived."""


def _set(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)
