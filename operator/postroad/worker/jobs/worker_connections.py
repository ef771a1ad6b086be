"""The connections of a worker, by the scheduler's numbers."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from postroad.errors import PostroadError
from postroad.ports.delivery import (
    Connection,
    ConnectionClosed,
    ConnectionEvent,
    ConnectionOpened,
    Connector,
    Transmission,
)
from postroad.routing.routes import ResolvedHop
from postroad.telemetry.logs import logger

_log = logger("worker")


MAX_REASONS = 10_000
"""Destinations of which it is kept why the last connection ended."""


@dataclass(slots=True)
class WorkerConnection:
    """A connection, the destination that it leads to, and whether that has answered."""

    destination: str
    unrecorded: list[asyncio.Future[None]] = field(default_factory=list)
    """Done once a mail is recorded that was delivered over it, or over one in whose place it is: a
    process that is killed before delivers that once more."""

    connection: Connection | None = None
    free_since: timedelta = timedelta(0)
    """When it opened, or was through with its last mail."""

    is_open: bool = False
    is_waiting: bool = False
    """True if the end of a mail waits for records."""

    is_blocked: bool = False
    """True if `blocked` named it since that began."""

    async def until_recorded(self) -> None:
        """Wait until all that was delivered over it is recorded."""
        while self.unrecorded:
            if not self.unrecorded[-1].done():
                await asyncio.shield(self.unrecorded[-1])  # others may wait for it, too
            self.unrecorded.pop()


class WorkerConnections:
    """Opens and closes connections. `on_event` gets what they report; of one that `close` closed,
    what became of its jobs alone; `on_going_on` those that `blocked` named, when they go on. Needs
    an event loop.  A connection sends the end of a mail once those are recorded that were delivered
    over it, or over one that ended before it opened: else one that a next hop closes behind each
    mail would leave ever more without a record. So a process that is killed repeats no more mails
    than it may have connections, and as many series of chunks where mail goes so."""

    def __init__(
        self,
        connector: Connector,
        on_event: Callable[[int, WorkerConnection, ConnectionEvent], None],
        on_going_on: Callable[[int], None],
    ) -> None:
        self._connector = connector
        self._on_event, self._on_going_on = on_event, on_going_on
        self._links: dict[int, WorkerConnection] = {}
        self._closing: dict[int, WorkerConnection] = {}
        self._left_unrecorded: list[list[asyncio.Future[None]]] = []
        """Of connections that ended, each until another one opens in its place."""
        self._none_left = asyncio.Event()
        self._reasons: dict[str, str] = {}

    def open(self, number: int, destination: str, hop: ResolvedHop) -> None:
        """Begin to open a connection. One that the settings do not allow closes at once."""
        unrecorded = self._left_unrecorded.pop() if self._left_unrecorded else []
        link = self._links[number] = WorkerConnection(destination, unrecorded)
        happened = partial(self._happened, number, link)
        try:
            before_end = partial(self._until_recorded, number, link)
            link.connection = self._connector.open(hop, happened, before_end)
        except PostroadError as error:
            _log.error("no connection can be opened", error=error.explain())
            closed = ConnectionClosed(f"451 4.3.5 {type(error).__name__}")
            asyncio.get_running_loop().call_soon(happened, closed)

    def submit(self, number: int, transmission: Transmission) -> None:
        """Add a job to a connection."""
        if (connection := self._links[number].connection) is not None:
            connection.submit(transmission)

    def close(self, number: int) -> None:
        """Close a connection that has no job."""
        link = self._taken_out(number)
        if link is not None and link.connection is not None:
            self._closing[number] = link  # first: the end may be reported within `close`
            link.connection.close()

    def finish(self) -> None:
        """Let each connection finish what it transmits, and close; what becomes of its other jobs
        is reported, as where a next hop closes."""
        for link in self._links.values():
            if link.connection is not None:
                link.connection.close()

    def abort(self, number: int) -> None:
        """Close a connection at once; its jobs have events all the same."""
        link = self._links.get(number)
        if link is not None and link.connection is not None:
            link.connection.abort()

    def blocked(self) -> list[int]:
        """Return the connections that wait for records, each once a wait."""
        found = [n for n, e in self._links.items() if e.is_waiting and not e.is_blocked]
        for number in found:
            self._links[number].is_blocked = True
        return found

    async def _until_recorded(self, number: int, link: WorkerConnection) -> None:
        link.is_waiting = True
        try:
            await link.until_recorded()
        finally:
            link.is_waiting = False
            if link.is_blocked:
                link.is_blocked = False
                self._on_going_on(number)

    def __contains__(self, number: int) -> bool:
        return number in self._links

    def is_open(self, number: int) -> bool:
        """True if the next hop of a connection has answered."""
        link = self._links.get(number)
        return link is not None and link.is_open

    def reason(self, destinations: Iterable[str]) -> str | None:
        """Return why the last connection to one of these ended, or was not opened; None: it is not
        known, or one is open."""
        return next((self._reasons[each] for each in destinations if each in self._reasons), None)

    async def close_all(self, within: float) -> None:
        """Close all, and those that take longer than `within` seconds at once."""
        for number in list(self._links):
            self.close(number)
        try:
            async with asyncio.timeout(within):
                while self._closing:
                    self._none_left.clear()
                    await self._none_left.wait()
        except TimeoutError:
            for link in self._closing.values():
                assert link.connection is not None
                link.connection.abort()

    def _happened(self, number: int, link: WorkerConnection, event: ConnectionEvent) -> None:
        if isinstance(event, ConnectionClosed):
            self._closing.pop(number, None)
            self._none_left.set()
            if self._taken_out(number) is None:
                return
            self._note_reason(link.destination, event.text)
        elif isinstance(event, ConnectionOpened):
            link.is_open = True
            if number not in self._links:
                return
            self._reasons.pop(link.destination, None)
        self._on_event(number, link, event)

    def _taken_out(self, number: int) -> WorkerConnection | None:
        """Take out a connection that ends, or is to end and has no job."""
        link = self._links.pop(number, None)
        if link is not None and (left := [e for e in link.unrecorded if not e.done()]):
            self._left_unrecorded.append(left)
        return link

    def _note_reason(self, destination: str, text: str) -> None:
        if text:
            self._reasons[destination] = text
        while len(self._reasons) > MAX_REASONS:
            del self._reasons[next(iter(self._reasons))]
