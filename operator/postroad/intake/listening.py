"""The intake's listening sockets: one for each address of a host, or one for all addresses."""

from __future__ import annotations

import socket

from postroad.errors import InvalidSettings
from postroad.smtp.server.serving import limit_unread

BACKLOG = 4096
"""Connections that wait for `accept`, if the system allows as many (net.core.somaxconn). A client
beyond them waits for a greeting that never comes."""

ANY_HOST = "*"
"""All addresses of this machine, of both families."""


def listening_on(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of a host, one for both families for `*`. With
    port 0 all have the port that the first one got.

    Raises: InvalidSettings when the address cannot be bound.
    """
    try:
        bound = _bound(host, port)
    except OSError as error:
        raise InvalidSettings(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="name another address with --listen, or another port with POSTROAD_INTAKE_PORT or "
            "POSTROAD_INTAKE_TLS_PORT",
        ) from error
    for each in bound:  # here, because a client that comes before is not bounded
        limit_unread(each)
    return bound


def _bound(host: str, port: int) -> list[socket.socket]:
    if host == ANY_HOST and socket.has_dualstack_ipv6():
        return [
            socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
            )
        ]
    name = None if host == ANY_HOST else host
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((info[0], str(info[4][0])) for info in found):
            at = (address, bound[0].getsockname()[1] if bound else port)
            bound.append(socket.create_server(at, family=family, backlog=BACKLOG))
    except OSError:
        for each in bound:
            each.close()
        raise
    return bound
