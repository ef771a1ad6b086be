"""What a session asks of the driver, and what it makes of its answers and errors."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cassandra import ConsistencyLevel, InvalidRequest, OperationTimedOut
from cassandra.query import BatchType, SimpleStatement

from postroad.adapters.cassandra import session as module
from postroad.adapters.cassandra.connection import Access, CassandraConnection
from postroad.adapters.cassandra.session import Session, Statement
from postroad.errors import ViewRefused, ViewUnavailable
from postroad.threaded_calls import ThreadedCalls

SECOND = timedelta(seconds=1)
SELECT = Statement("SELECT a FROM {keyspace}.t WHERE a = ?", page_size=7, first_page=3)
WRITE = Statement("UPDATE {keyspace}.t SET a = ?", timeout=9 * SECOND)
STAMPED = Statement("INSERT INTO {keyspace}.t (a) VALUES (?)", stamped_by_server=True)


@dataclass
class Bound:
    """A bound statement, which may stand in a batch."""

    cql: str
    values: tuple[object, ...]
    fetch_size: int | None = None


@dataclass
class Prepared:
    """A prepared statement."""

    cql: str
    fetch_size: int | None = None
    is_idempotent: bool | None = None
    consistency_level: int | None = None
    serial_consistency_level: int | None = None

    def bind(self, values: tuple[object, ...]) -> Bound:
        if "broken" in values:
            raise TypeError("no text")
        return Bound(self.cql, tuple(values))


@dataclass
class Driver:
    """The driver's session: answers in order, a page or an error each."""

    session: Session
    answers: list[Any] = field(default_factory=list)
    sent: list[tuple[Any, float, object]] = field(default_factory=list)
    stamps: list[bool] = field(default_factory=list)
    prepared: list[Prepared] = field(default_factory=list)
    raises: Exception | None = None

    def prepare(self, cql: str) -> Prepared:
        if self.raises is not None:
            raise self.raises
        self.prepared.append(Prepared(cql))
        return self.prepared[-1]

    def execute_async(self, query: Any, timeout: float, paging_state: object) -> Any:
        if self.raises is not None:
            raise self.raises
        self.sent.append((query, timeout, paging_state))
        self.stamps.append(self.session._clocks.timestamps() is not None)
        answer, state = self.answers.pop(0) if self.answers else ([], None)
        response = SimpleNamespace(
            has_more_pages=state is not None, _paging_state=state, _col_names=None, _col_types=None
        )

        def add_callbacks(
            good: Callable[..., None],
            bad: Callable[..., None],
            callback_args: tuple[object, ...],
            errback_args: tuple[object, ...],
        ) -> None:
            if isinstance(answer, Exception):
                bad(answer, *errback_args)
            else:
                good(answer, *callback_args)

        response.add_callbacks = add_callbacks
        return response


class Batch(list[Bound]):
    """A batch of bound statements."""

    def __init__(self, kind: BatchType) -> None:
        assert kind is BatchType.UNLOGGED

    add = list.append


@pytest.fixture
async def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(module, "BatchStatement", Batch)
    made = Session(Access(("127.0.0.1",), 9042, "dc1", "mail"), request_timeout=5 * SECOND)
    made._connection.driver = cast("Any", Driver(made))
    return made


@pytest.fixture
async def driver(session: Session) -> Driver:
    return cast("Driver", session._connection.driver)


async def test_a_statement_is_prepared_once_with_its_pages_and_levels(
    session: Session, driver: Driver
) -> None:
    serial = Statement("SELECT b FROM {keyspace}.t", serial=True)
    everywhere = Statement("UPDATE {keyspace}.t SET c = 1", everywhere=True)

    await asyncio.gather(*(session.execute(SELECT, (1,)) for _ in range(3)))
    for each in (serial, everywhere):
        await session.execute(each)

    select, read, written = driver.prepared
    assert (select.cql, select.fetch_size) == ("SELECT a FROM mail.t WHERE a = ?", 7)
    assert (select.is_idempotent, read.is_idempotent, written.is_idempotent) == (True, True, False)
    assert (select.consistency_level, select.serial_consistency_level) == (None, None)
    assert read.consistency_level == ConsistencyLevel.LOCAL_SERIAL
    assert (written.consistency_level, written.serial_consistency_level) == (
        None,
        ConsistencyLevel.SERIAL,
    )


async def test_a_statement_has_its_own_timeout_or_the_sessions(
    session: Session, driver: Driver
) -> None:
    driver.answers = [([{"a": 1}], None)]

    assert await session.execute(SELECT, (1,)) == [{"a": 1}]
    await session.execute(WRITE, (1,))
    await session.execute_together(SELECT, [(1,), (2,)])
    await session.execute_batch([(SELECT, (1,)), (WRITE, (2,))])

    assert [timeout for _, timeout, _ in driver.sent] == [5, 9, 5, 9]
    assert [[each.values for each in batch] for batch, _, _ in driver.sent[2:]] == [
        [(1,), (2,)]
    ] * 2
    assert await session.execute(WRITE, (1,)) == []


async def test_the_coordinator_stamps_what_is_left_to_it_alone(
    session: Session, driver: Driver
) -> None:
    await session.execute(WRITE, (1,))
    await session.execute(STAMPED, (1,))
    await session.execute_together(STAMPED, [(1,), (2,)])
    await session.execute_batch([(STAMPED, (1,)), (WRITE, (1,))])

    assert driver.stamps == [True, False, False, True]


async def test_pages_come_in_order_and_the_first_may_be_smaller(
    session: Session, driver: Driver
) -> None:
    driver.answers = [(["a"], b"1"), (["b"], b"2"), (["c"], b"3"), (["d"], None)]

    pages: list[Any] = [page async for page in session.pages(SELECT, (1,))]

    assert pages == [["a"], ["b"], ["c"], ["d"]]

    assert [state for _, _, state in driver.sent] == [None, b"1", b"2", b"3"]
    assert [query.fetch_size for query, _, _ in driver.sent] == [3, None, None, None]


async def test_a_reader_of_the_first_page_asks_for_no_other(
    session: Session, driver: Driver
) -> None:
    driver.answers = [(["a"], b"1"), (["b"], None)]
    pages = session.pages(SELECT, (1,))

    await anext(pages)
    await pages.aclose()

    assert len(driver.sent) == 1


async def test_from_the_second_page_on_the_next_one_is_asked_for_meanwhile(
    session: Session, driver: Driver
) -> None:
    driver.answers = [(["a"], b"1"), (["b"], b"2"), (OperationTimedOut(), None)]
    pages = session.pages(SELECT, (1,))

    await anext(pages)
    second: list[Any] = list(await anext(pages))
    assert second == ["b"]
    await asyncio.sleep(0)
    assert len(driver.sent) == 3
    with pytest.raises(ViewUnavailable):
        await anext(pages)


async def test_a_value_that_does_not_fit_is_refused(session: Session) -> None:
    with pytest.raises(ViewRefused, match="does not fit"):
        await session.execute_together(WRITE, [("broken",)])
    with pytest.raises(ViewRefused, match="does not fit"):
        await session.execute(WRITE, ("broken",))


async def test_errors_of_the_driver_are_ours_wherever_they_come_from(
    session: Session, driver: Driver
) -> None:
    driver.answers = [(InvalidRequest("no"), None)]
    with pytest.raises(ViewRefused):
        await session.execute(WRITE, (1,))
    driver.raises = OperationTimedOut()
    with pytest.raises(ViewUnavailable):
        await session.execute(WRITE, (1,))
    with pytest.raises(ViewUnavailable):
        await session.execute(SELECT, (1,))
    driver.raises = None

    assert await session.execute(SELECT, (1,)) == [], "it is prepared again"


async def test_an_unprepared_statement_gets_the_keyspace(
    session: Session, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connected() -> Driver:
        return driver

    monkeypatch.setattr(session._connection, "connected", connected)

    await session.run("SELECT x FROM {keyspace}.t")
    await session.run("CREATE TABLE {keyspace}.t", 3 * SECOND)

    (read, timeout, _), (made, short, _) = driver.sent
    assert isinstance(read, SimpleStatement)
    assert (read.query_string, read.is_idempotent, timeout) == ("SELECT x FROM mail.t", True, 30)
    assert (made.query_string, made.is_idempotent, short) == ("CREATE TABLE mail.t", False, 3)


async def test_the_local_hosts_are_counted_and_those_that_run(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def local_hosts() -> list[Any]:
        return [SimpleNamespace(is_up=each) for each in (True, None, False)]

    monkeypatch.setattr(session._connection, "local_hosts", local_hosts)

    assert (await session.local_nodes(), await session.running_nodes()) == (3, 2)
    assert (session.keyspace, session.local_datacenter) == ("mail", "dc1")


@pytest.mark.parametrize(
    ("error", "expected"),
    [(ViewUnavailable("no host"), ViewUnavailable), (InvalidRequest("no"), ViewRefused)],
)
async def test_clocks_that_cannot_be_read_are_an_error_of_ours(
    session: Session, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: type[Exception]
) -> None:
    def read(_: object) -> None:
        raise error

    async def connected() -> None: ...

    monkeypatch.setattr(session._connection, "connected", connected)
    monkeypatch.setattr(session._clocks, "read", read)

    with pytest.raises(expected):
        await session.server_times()


class Cluster:
    """The driver's cluster, with the data centers of its hosts."""

    def __init__(self, datacenters: tuple[str, ...], error: Exception | None) -> None:
        hosts = [SimpleNamespace(datacenter=each) for each in datacenters]
        self.metadata = SimpleNamespace(all_hosts=lambda: hosts)
        self.error = error
        self.is_shut_down = False
        self.waited: bool | None = None

    def connect(self, wait_for_all_pools: bool) -> Any:
        self.waited = wait_for_all_pools
        if self.error is not None:
            raise self.error
        return SimpleNamespace(cluster=self)

    def shutdown(self) -> None:
        self.is_shut_down = True


def connection_to(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, *, known: bool
) -> CassandraConnection:
    made = CassandraConnection(Access(("127.0.0.1",), 9042, "dc1", "mail"), SECOND, SECOND)
    monkeypatch.setattr("postroad.adapters.cassandra.connection.cluster_of", lambda *_: cluster)
    monkeypatch.setattr(made.clocks, "read", lambda _: None)
    monkeypatch.setattr(type(made.clocks.timestamps), "is_known", property(lambda _: known))
    return made


async def test_a_connection_stands_when_the_clocks_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(("dc1", "dc2", "dc1"), None)
    connection = connection_to(cluster, monkeypatch, known=True)

    driver = await connection.connected()

    assert (connection.driver, cluster.waited) == (driver, True)
    assert len(await connection.local_hosts()) == 2
    before = cluster.is_shut_down
    await connection.close()
    assert (before, cluster.is_shut_down) == (False, True)
    with pytest.raises(ViewUnavailable):
        await connection.connected()


@pytest.mark.parametrize(
    ("datacenters", "error", "expected", "said"),
    [
        (("dc1",), None, ViewUnavailable, "clocks of the Cassandra hosts disagree"),
        (("dc1", "dc2"), InvalidRequest("no"), ViewRefused, "refused the request"),
        (("dc3", "dc2"), OperationTimedOut(), ViewRefused, "no data center 'dc1'"),
        ((), OperationTimedOut(), ViewUnavailable, "did not answer"),
    ],
)
async def test_a_connection_that_fails_is_shut_down_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
    datacenters: tuple[str, ...],
    error: Exception | None,
    expected: type[Exception],
    said: str,
) -> None:
    cluster = Cluster(datacenters, error)
    connection = connection_to(cluster, monkeypatch, known=False)

    with pytest.raises(expected, match=said) as refused:
        await connection.connected()

    assert cluster.is_shut_down
    assert connection.driver is None
    if datacenters == ("dc3", "dc2"):
        assert getattr(refused.value, "hint", "") == "it has dc2, dc3"


async def test_a_connection_that_comes_after_its_close_was_broken_off_is_shut_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, may_connect = Cluster(("dc1",), None), threading.Event()
    connection = connection_to(cluster, monkeypatch, known=True)
    connect = cluster.connect

    def late(wait_for_all_pools: bool) -> Any:
        may_connect.wait()
        return connect(wait_for_all_pools)

    monkeypatch.setattr(cluster, "connect", late)
    connecting = asyncio.create_task(connection.connected())
    await asyncio.sleep(0)
    closing = asyncio.create_task(connection.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    may_connect.set()

    with pytest.raises(ViewUnavailable, match="is closed"):
        await connecting
    assert cluster.is_shut_down
    assert connection.driver is None


async def test_clusters_that_do_not_answer_take_no_threads_of_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, may_connect = Cluster(("dc1",), OperationTimedOut()), threading.Event()
    monkeypatch.setattr("postroad.adapters.cassandra.connection._CONNECTING", ThreadedCalls(50))
    connect = cluster.connect

    def late(wait_for_all_pools: bool) -> Any:
        may_connect.wait()
        return connect(wait_for_all_pools)

    monkeypatch.setattr(cluster, "connect", late)
    connections = [connection_to(cluster, monkeypatch, known=True) for _ in range(51)]
    connecting = [asyncio.create_task(each.connected()) for each in connections[:50]]
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert await asyncio.to_thread(lambda: "read") == "read"
    with pytest.raises(ViewUnavailable, match="connections to Cassandra are being made"):
        await connections[50].connected()

    may_connect.set()
    found = await asyncio.gather(*connecting, return_exceptions=True)
    assert {type(each) for each in found} == {ViewUnavailable}


async def test_names_of_contact_points_are_resolved_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolving: list[threading.Thread] = []

    def resolve(*_: object) -> None:
        resolving.append(threading.current_thread())
        raise socket.gaierror(socket.EAI_AGAIN, "no server of names answers")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    session = Session(Access(("cassandra.mail.svc",), 9042, "dc1", "postroad"))

    with pytest.raises(ViewUnavailable, match="no contact point of Cassandra has an address"):
        await session.run("SELECT now() FROM system.local")

    assert resolving
    assert threading.main_thread() not in resolving
    await session.close()
