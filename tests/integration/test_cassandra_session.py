"""The session with a real Cassandra."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

import pytest

import servers
from postroad.adapters.cassandra.session import Session, Statement
from postroad.errors import CredentialsRefused, ServerError, ViewRefused, ViewUnavailable

pytestmark = pytest.mark.needs("cassandra")

VERSION = "SELECT release_version FROM system.local"
INSERT = Statement("INSERT INTO {keyspace}.numbers (name, number) VALUES (?, ?)")
INSERT_ONCE = Statement("INSERT INTO {keyspace}.numbers (name, number) VALUES (?, ?) IF NOT EXISTS")
SELECT = Statement("SELECT number FROM {keyspace}.numbers WHERE name = ?", page_size=7)


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    """A session on a keyspace of its own, with one table."""
    session = Session(servers.cassandra(servers.fresh()))
    await session.run(
        "CREATE KEYSPACE {keyspace} WITH replication ="
        " {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    await session.run(
        "CREATE TABLE {keyspace}.numbers (name text, number int, PRIMARY KEY (name, number))"
    )
    yield session
    await session.run("DROP KEYSPACE {keyspace}")
    await session.close()


async def test_many_requests_run_at_once(session: Session) -> None:
    await asyncio.gather(*(session.execute(INSERT, ("a", number)) for number in range(3000)))

    found = [row["number"] async for page in session.pages(SELECT, ("a",)) for row in page]
    assert found == list(range(3000))


async def test_pages_hold_no_more_than_the_page_size(session: Session) -> None:
    for number in range(20):
        await session.execute(INSERT, ("a", number))

    sizes = [len(page) async for page in session.pages(SELECT, ("a",))]

    assert sizes == [7, 7, 6]


async def test_a_first_page_can_be_smaller(session: Session) -> None:
    for number in range(20):
        await session.execute(INSERT, ("a", number))

    head_first = replace(SELECT, first_page=3)
    pages = [page async for page in session.pages(head_first, ("a",))]

    assert [len(page) for page in pages] == [3, 7, 7, 3]
    assert [row["number"] for page in pages for row in page] == list(range(20))


async def test_leaving_pages_leaves_nothing_on_its_way(session: Session) -> None:
    for number in range(30):
        await session.execute(INSERT, ("a", number))
    before = asyncio.all_tasks()

    async with aclosing(session.pages(SELECT, ("a",))) as pages:
        await anext(pages)
        await anext(pages)
        (coming,) = asyncio.all_tasks() - before

    await asyncio.wait([coming])
    assert coming.cancelled()


async def test_a_lightweight_transaction_says_what_stood_there_first(session: Session) -> None:
    first = await session.execute(INSERT_ONCE, ("a", 1))
    second = await session.execute(INSERT_ONCE, ("a", 1))

    assert first == [{"[applied]": True}]
    assert second == [{"[applied]": False, "name": "a", "number": 1}]


@pytest.mark.parametrize(
    ("cql", "values"),
    [
        ("SELECT * FROM {keyspace}.nothing", ()),
        ("SELECTION", ()),
        ("SELECT number FROM {keyspace}.numbers WHERE name = ?", (1,)),
        ("SELECT number FROM {keyspace}.numbers WHERE name = ?", ("a", "b")),
    ],
    ids=["no such table", "no such statement", "wrong type", "too many values"],
)
async def test_what_cannot_be_understood_is_refused(
    session: Session, cql: str, values: tuple[object, ...]
) -> None:
    with pytest.raises(ViewRefused):
        await session.execute(Statement(cql), values)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"password": "wrong"}, CredentialsRefused),
        ({"username": None}, CredentialsRefused),
        ({"port": 1}, ViewUnavailable),
        ({"contact_points": ("nowhere.invalid",)}, ViewUnavailable),
        ({"local_datacenter": "elsewhere"}, ViewRefused),
    ],
    ids=["wrong password", "no user", "no listener", "no such host", "no such data center"],
)
async def test_a_connection_that_cannot_be_made_says_why(
    change: dict[str, object], expected: type[ServerError]
) -> None:
    session = Session(replace(servers.cassandra("postroad"), **change))  # type: ignore[arg-type]

    with pytest.raises(expected) as first:
        await session.run(VERSION)
    with pytest.raises(expected):
        await session.run(VERSION)

    assert type(first.value) is expected
    await session.close()


async def test_a_misspelt_data_center_is_answered_with_those_there_are() -> None:
    access = servers.cassandra("postroad")
    session = Session(replace(access, local_datacenter="elsewhere"))

    with pytest.raises(ViewRefused) as refused:
        await session.run(VERSION)

    assert access.local_datacenter in refused.value.hint
    await session.close()


async def test_a_closed_session_raises_that_it_is_closed() -> None:
    session = Session(servers.cassandra("postroad"))
    await session.run(VERSION)
    await session.close()
    await session.close()

    with pytest.raises(ViewUnavailable, match="closed"):
        await session.run(VERSION)
