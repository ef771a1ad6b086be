"""Connects to a next hop with several addresses: tries each in order, with a timeout of its own.

Source: RFC 5321 5.1.

Bounds on the time of a next hop.

Remembers next hops that offer what does not work with them, so that it is not tried again with
each mail."""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from postroad.domain.smtp.next_hops import NextHop, SourceAddresses
from postroad.smtp.client.client import ClientWire, connect, connect_to_socket
from postroad.smtp.wire import ConnectionLost, WireError

MAX_ADDRESSES = 8
"""Tried for one session; each may use up its timeout."""

SHUN = timedelta(minutes=5)
"""Time for which an address that did not answer is tried after the others."""


_Found = Sequence[tuple[object, object, object, object, tuple[object, ...]]]


class Reached(Protocol):
    """Address at which a next hop is reached."""

    async def connect(self, timeout: timedelta) -> ClientWire:
        """Connect. Raises: WireError."""


class Shunned:
    """Addresses that did not answer lately."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        """Address → the loop's time until which it is tried last."""

    async def connect(
        self,
        addresses: Iterable[str],
        port: int,
        timeout: timedelta,
        source: SourceAddresses | None = None,
    ) -> ClientWire:
        """Connect to the first of several addresses that answers within `timeout`, each; those that
        failed lately are tried last, those of a family that `source` has not are not tried. Raises:
        ConnectionLost with the cause of the last failure; TooSlow where one address exists and did
        not answer."""
        now = _now()
        self._until = {key: due for key, due in self._until.items() if due > now}
        order = sorted(addresses, key=lambda address: self._until.get(address, 0.0))
        failure: WireError | None = None
        if source is not None:
            if order:
                failure = ConnectionLost(
                    "no connection: the source has no address of the next hop's family"
                )
            order = [each for each in order if source.address_for(each) is not None]
        for address in order[:MAX_ADDRESSES]:
            local = None if source is None else source.address_for(address)
            try:
                wire = await connect(address, port, timeout, local)
            except WireError as error:
                failure = error
                self._until[address] = _now() + SHUN.total_seconds()
            else:
                self._until.pop(address, None)
                return wire
        raise failure or ConnectionLost("no connection: the name has no address")


class UnixSocket:
    """The Unix socket of a server on this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def connect(self, timeout: timedelta) -> ClientWire:
        return await connect_to_socket(self._path, timeout)


class KnownAddresses:
    """The addresses of one host that routing found. Its name is not looked up again, because other
    addresses could be this server's, or others that no mail may go to."""

    def __init__(
        self,
        addresses: Sequence[str],
        port: int,
        shunned: Shunned,
        source: SourceAddresses | None = None,
    ) -> None:
        self._addresses = addresses
        self._port = port
        self._shunned = shunned
        self._source = source

    async def connect(self, timeout: timedelta) -> ClientWire:
        return await self._shunned.connect(self._addresses, self._port, timeout, self._source)


class Addresses:
    """The addresses of one host, resolved anew for each connection, within `look_up`; connections
    that begin while the name is looked up share the lookup. Needs a running event loop."""

    def __init__(
        self, host: str, port: int, look_up: timedelta, source: SourceAddresses | None = None
    ) -> None:
        self._host = host
        self._port = port
        self._within = look_up
        self._source = source
        self._shunned = Shunned()
        self._lookup: asyncio.Task[_Found] | None = None

    async def connect(self, timeout: timedelta) -> ClientWire:
        """Look the name up, and connect to one of its addresses (`Shunned.connect`)."""
        addresses = await self._resolve()
        return await self._shunned.connect(addresses, self._port, timeout, self._source)

    async def _resolve(self) -> list[str]:
        """Return the addresses in the resolver's order. Raises: ConnectionLost."""
        try:
            async with asyncio.timeout(self._within.total_seconds()):
                found = await self._look_up()
        except TimeoutError as error:
            raise ConnectionLost("no connection: the name was not resolved in time") from error
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that IDNA cannot encode
            raise ConnectionLost(f"no connection: {error}") from error
        return list(dict.fromkeys(str(each[4][0]) for each in found))

    async def _look_up(self) -> _Found:
        """Return what the resolver finds. One lookup at a time: each takes a thread for as long as
        a name server does not answer, and there are so many."""
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


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Bounds on the time that the next hop may take. Source: RFC 5321 4.5.3.2, but for `look_up`,
    `envelope` and `all_ends`."""

    connect: timedelta = timedelta(seconds=30)
    greeting: timedelta = timedelta(minutes=5)
    command: timedelta = timedelta(minutes=5)
    data_start: timedelta = timedelta(minutes=2)
    data_block: timedelta = timedelta(minutes=3)
    data_end: timedelta = timedelta(minutes=10)
    envelope: timedelta = timedelta(minutes=10)
    """For all of MAIL and RCPT: a next hop that takes seconds for each recipient gets the rest of
    them in another transaction, so that a delivery ends before its lease does."""

    goodbye: timedelta = timedelta(seconds=2)
    all_ends: timedelta = timedelta(minutes=12)
    """For the replies of LMTP to the end of a mail, one for each recipient: a delivery that its
    lease cuts off would lose those that had come, and their recipients would get the mail again."""

    look_up: timedelta = timedelta(seconds=30)
    """For its name, where routing has not found its addresses. A next hop with little time to
    accept a connection has as much of this: it is the name server that is slow."""


KEPT = timedelta(hours=1)

MAX_REMEMBERED = 10_000


class RememberedHops:
    """Next hops with which something failed lately. Needs a running event loop."""

    def __init__(self) -> None:
        self._until: OrderedDict[NextHop, float] = OrderedDict()
        """The loop's time until which each is remembered; soonest first. By all that is required of
        a hop: what fails for mail that wants a newer TLS may work for other mail."""

    def has(self, hop: NextHop) -> bool:
        return self._until.get(hop, 0.0) > asyncio.get_running_loop().time()

    def forget(self, hop: NextHop) -> None:
        """Remember a next hop no more."""
        self._until.pop(hop, None)

    def add(self, hop: NextHop) -> None:
        self._until[hop] = asyncio.get_running_loop().time() + KEPT.total_seconds()
        self._until.move_to_end(hop)
        if len(self._until) > MAX_REMEMBERED:
            self._until.popitem(last=False)
