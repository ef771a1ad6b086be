"""A session with Cassandra for asyncio.

It prepares each statement once, and raises only postroad's errors. The driver works in threads of
its own; the bridge takes their results to the event loop in batches, so that many requests in
flight cost one wake-up. A server that hangs causes ViewUnavailable within the request's timeout.
Hazard: the server may still carry out a request that timed out.

Takes results from the driver's threads to the event loop."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from cassandra import ConsistencyLevel
from cassandra.cluster import ResultSet
from cassandra.cluster import Session as DriverSession
from cassandra.query import (
    UNSET_VALUE,
    BatchStatement,
    BatchType,
    BoundStatement,
    PreparedStatement,
    SimpleStatement,
)

from postroad.adapters.cassandra.connection import (
    Access,
    CassandraConnection,
    translated,
)
from postroad.batching import Shared
from postroad.domain.values.instants import Readings
from postroad.errors import ServerError, ViewRefused
from postroad.ports.servers import Guard

Row = Mapping[str, Any]
"""A row by column name."""

RowPage = tuple[list[Row], bytes | None]
"""Rows, and the paging state of the next page; None: there is none."""

PendingResult = asyncio.Future[RowPage]


class LoopBridge:
    """Resolves many pending results with one wake-up of the loop."""

    def __init__(self) -> None:
        self._results: deque[tuple[PendingResult, RowPage | None, Exception | None]] = deque()
        self._is_woken = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def expect(self) -> PendingResult:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.create_future()

    def rows(self, rows: list[Row] | None, pending: PendingResult, response: Any) -> None:
        """Put one page; the driver's thread calls it."""
        state = ResultSet(response, rows).paging_state if response.has_more_pages else None
        self._put(pending, (rows or [], state), None)

    def error(self, error: Exception, pending: PendingResult) -> None:
        """Put an error; the driver's thread calls it."""
        self._put(pending, None, error)

    def _put(self, pending: PendingResult, page: RowPage | None, error: Exception | None) -> None:
        # Append before the flag is read: the loop clears the flag before it empties the deque, so
        # no result stays there without a wake-up to come.
        self._results.append((pending, page, error))
        if not self._is_woken:
            self._is_woken = True
            try:
                assert self._loop is not None
                self._loop.call_soon_threadsafe(self._resolve)
            except RuntimeError:
                pass  # the loop was closed, and with it every task that waits

    def _resolve(self) -> None:
        self._is_woken = False
        while self._results:
            pending, page, error = self._results.popleft()
            if pending.done():
                continue  # its waiter was cancelled
            if error is not None:
                pending.set_exception(error)
            elif page is not None:
                pending.set_result(page)


UNSET = UNSET_VALUE
"""Bound instead of None, it leaves a column alone: a null would be stored as a tombstone."""

IN_FLIGHT = 1024
"""Requests in flight. More wait here and not in the driver, which would block the event loop once
its connections have no stream left (32768 each)."""


@dataclass(frozen=True, slots=True)
class Statement:
    """CQL with `{keyspace}` for the keyspace and `?` for each value. `timeout` None: the session's;
    counting needs more. `first_page` None: as large as the others; a smaller one arrives sooner.
    `serial`, for SELECTs: reads what lightweight transactions wrote, and completes one that is
    under way. `everywhere`: a quorum of all data centers, not of the local one, decides a
    transaction. `stamped_by_server`: the coordinator gives the timestamp, on arrival."""

    cql: str
    timeout: timedelta | None = None
    page_size: int = 1000
    first_page: int | None = None
    serial: bool = False
    everywhere: bool = False
    stamped_by_server: bool = False


class Session:
    """A session with one keyspace, shared by its users. Bound to one event loop at first use.
    `guard` is asked before each statement leaves."""

    def __init__(
        self,
        access: Access,
        *,
        request_timeout: timedelta = timedelta(seconds=5),
        connect_timeout: timedelta = timedelta(seconds=5),
        guard: Guard | None = None,
    ) -> None:
        self._access = access
        self._guard = guard
        self._request_timeout = request_timeout
        self._connection = CassandraConnection(access, request_timeout, connect_timeout)
        self._clocks = self._connection.clocks
        self._prepared: dict[Statement, PreparedStatement] = {}
        self._preparing: dict[Statement, Shared[PreparedStatement]] = {}
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._bridge = LoopBridge()

    @property
    def keyspace(self) -> str:
        return self._access.keyspace

    @property
    def local_datacenter(self) -> str:
        """The data center whose replicas form this session's quorums."""
        return self._access.local_datacenter

    async def execute(self, statement: Statement, values: Sequence[object] = ()) -> list[Row]:
        """Run a prepared statement and return the first page of its rows. Safe to run concurrently.
        Raises: ViewUnavailable (the server may have carried it out), ViewRefused,
        CredentialsRefused."""
        rows, _ = await self._page(statement, values, None)
        return rows

    async def execute_together(
        self, statement: Statement, many: Sequence[Sequence[object]]
    ) -> list[Row]:
        """Run a prepared statement with many values for one partition as one request, carried out
        wholly or not at all; a condition holds for all or for none. Errors as `execute`."""
        return await self.execute_batch([(statement, values) for values in many])

    async def execute_batch(
        self, together: Sequence[tuple[Statement, Sequence[object]]]
    ) -> list[Row]:
        """Run prepared statements for one partition as `execute_together` runs one."""
        driver = self._connection.driver or await self._connection.connected()
        batch = BatchStatement(BatchType.UNLOGGED)  # atomic within a partition without a log
        timeout = self._request_timeout
        for statement, values in together:
            prepared = self._prepared.get(statement) or await self._prepare(driver, statement)
            batch.add(self._bound(prepared, statement, values))
            timeout = max(timeout, statement.timeout or timeout)
        by_server = all(statement.stamped_by_server for statement, _ in together)
        rows, _ = await self._send(driver, batch, timeout, None, by_server=by_server)
        return rows

    async def pages(
        self, statement: Statement, values: Sequence[object] = ()
    ) -> AsyncGenerator[list[Row], None]:
        """Yield the rows of a prepared statement. From the second page on, the next page is
        requested while the caller uses one, because such a caller mostly reads all: two pages are
        in memory. Errors as `execute`, at any page."""
        rows, state = await self._page(statement, values, None)
        if state is not None:
            yield rows
            rows, state = await self._page(statement, values, state)
        while state is not None:
            coming = asyncio.create_task(self._page(statement, values, state))
            coming.add_done_callback(_seen)
            try:
                yield rows
                rows, state = await coming
            finally:
                coming.cancel()
        yield rows

    async def run(self, cql: str, timeout: timedelta = timedelta(seconds=30)) -> list[Row]:
        """Run an unprepared statement (schema, system tables) with `{keyspace}` filled in. A schema
        change returns when the hosts agree on it. Errors as `execute`."""
        driver = await self._connection.connected()
        query = SimpleStatement(self._filled(cql), is_idempotent=_is_read(cql))
        rows, _ = await self._send(driver, query, timeout, None)
        return rows

    async def server_times(self) -> Readings:
        """Read the clocks of the local data center's hosts. Later writes have timestamps of the
        time that most of them agree on. Errors as `execute`."""
        driver = await self._connection.connected()
        try:
            if not self._clocks.is_fresh():
                await asyncio.to_thread(self._clocks.read, driver)
        except ServerError:
            raise
        except Exception as error:
            raise translated(error) from error
        return self._clocks.now()

    def now_us(self) -> int:
        """Return the view's time in microseconds, reckoned from the last reading."""
        return self._clocks.timestamps.now_us()

    async def local_nodes(self) -> int:
        """Return how many hosts the local data center has. Errors as `execute`."""
        return len(await self._connection.local_hosts())

    async def running_nodes(self) -> int:
        """Return how many local hosts run, as far as this session knows. Errors as `execute`."""
        return sum(host.is_up is not False for host in await self._connection.local_hosts())

    async def close(self) -> None:
        """Close the connections for good. Idempotent."""
        await self._connection.close()

    async def _page(
        self, statement: Statement, values: Sequence[object], state: bytes | None
    ) -> tuple[list[Row], bytes | None]:
        driver = self._connection.driver or await self._connection.connected()
        prepared = self._prepared.get(statement) or await self._prepare(driver, statement)
        bound = self._bound(prepared, statement, values)
        if state is None and statement.first_page is not None:
            bound.fetch_size = statement.first_page
        timeout = statement.timeout or self._request_timeout
        by_server = statement.stamped_by_server
        return await self._send(driver, bound, timeout, state, by_server=by_server)

    def _bound(
        self, prepared: PreparedStatement, statement: Statement, values: Sequence[object]
    ) -> BoundStatement:
        try:
            return prepared.bind(values)
        except Exception as error:  # the driver does not wrap what its serialisers raise
            raise ViewRefused(f"a value does not fit {statement.cql!r}: {error}") from error

    async def _send(
        self,
        driver: DriverSession,
        query: object,
        timeout: timedelta,
        state: bytes | None,
        *,
        by_server: bool = False,
    ) -> tuple[list[Row], bytes | None]:
        async with self._slots:
            if self._guard is not None:
                self._guard()
            pending = self._bridge.expect()
            try:
                with self._clocks.timestamps.left_to_the_server(by_server):
                    response = driver.execute_async(
                        query, timeout=timeout.total_seconds(), paging_state=state
                    )
                response.add_callbacks(
                    self._bridge.rows,
                    self._bridge.error,
                    callback_args=(pending, response),
                    errback_args=(pending,),
                )
                return await pending
            except ServerError:
                raise
            except Exception as error:
                raise translated(error) from error

    async def _prepare(self, driver: DriverSession, statement: Statement) -> PreparedStatement:
        """Prepare once, however many ask at the same time."""
        attempt = self._preparing.setdefault(statement, Shared())
        return await attempt.get(lambda: self._prepare_on_server(driver, statement))

    async def _prepare_on_server(
        self, driver: DriverSession, statement: Statement
    ) -> PreparedStatement:
        try:
            prepared = await asyncio.to_thread(driver.prepare, self._filled(statement.cql))
        except Exception as error:
            raise translated(error) from error
        prepared.fetch_size = statement.page_size
        prepared.is_idempotent = _is_read(statement.cql)
        if statement.serial:
            prepared.consistency_level = ConsistencyLevel.LOCAL_SERIAL
        if statement.everywhere:
            prepared.serial_consistency_level = ConsistencyLevel.SERIAL
        self._prepared[statement] = prepared
        return prepared

    def _filled(self, cql: str) -> str:
        return cql.replace("{keyspace}", self._access.keyspace)


def _is_read(cql: str) -> bool:
    """True if the driver may send a statement to a second host while the first is slow. A write is
    not: a transaction that is carried out twice is refused by its own first time."""
    return cql.startswith("SELECT")


def _seen(task: asyncio.Task[Any]) -> None:
    """Read a task's error, because asyncio logs one that no task reads."""
    if not task.cancelled():
        task.exception()
