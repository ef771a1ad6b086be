"""Connects to a next hop with several addresses: tries each in order, with a timeout of its own.

Source: RFC 5321 5.1.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from datetime import timedelta

from postroad.adapters.network.client import ClientWire, connect
from postroad.adapters.network.wire import ConnectionLost, WireError

MOST_ADDRESSES = 8
"""Tried for one session; each may use up its timeout."""

SHUN = timedelta(minutes=5)
"""How long an address that did not answer is tried after the others."""


_Found = Sequence[tuple[object, object, object, object, tuple[object, ...]]]


class Addresses:
    """The addresses of one host, resolved anew for each connection; connections that begin while
    the name is looked up share the lookup. Needs a running event loop."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._shunned: dict[str, float] = {}
        """Address → the loop's time until which it is tried last."""
        self._lookup: asyncio.Task[_Found] | None = None

    async def connect(self, timeout: timedelta) -> ClientWire:
        """Connect to the first address that answers within `timeout`.

        Raises: ConnectionLost with the cause of the last failure; TooSlow where one address exists
        and did not answer.
        """
        failure: WireError | None = None
        for address in (await self._resolve(timeout))[:MOST_ADDRESSES]:
            try:
                wire = await connect(address, self._port, timeout)
            except WireError as error:
                failure = error
                self._shunned[address] = _now() + SHUN.total_seconds()
            else:
                self._shunned.pop(address, None)
                return wire
        raise failure or ConnectionLost("no connection: the name has no address")

    async def _resolve(self, timeout: timedelta) -> list[str]:
        """Return the addresses in the resolver's order, those that failed lately last."""
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                found = await self._look_up()
        except TimeoutError as error:
            raise ConnectionLost("no connection: the name was not resolved in time") from error
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that IDNA cannot encode
            raise ConnectionLost(f"no connection: {error}") from error
        addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
        now = _now()
        self._shunned = {key: due for key, due in self._shunned.items() if due > now}
        return sorted(addresses, key=lambda address: self._shunned.get(address, 0.0))

    async def _look_up(self) -> _Found:
        """Return what the resolver finds. One lookup at a time: each takes a thread of the few that
        write large mails to files, for as long as a name server does not answer."""
        if self._lookup is None or self._lookup.done():
            loop = asyncio.get_running_loop()
            self._lookup = loop.create_task(
                loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            )
            self._lookup.add_done_callback(_read_error)
        return await asyncio.shield(self._lookup)


def _read_error(lookup: asyncio.Task[_Found]) -> None:
    """Read the error of a lookup for which no connection waits any longer, else asyncio logs it."""
    if not lookup.cancelled():
        lookup.exception()


def _now() -> float:
    return asyncio.get_running_loop().time()
