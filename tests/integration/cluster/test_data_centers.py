"""Two data centers with copies of one keyspace, and processes in both: one of them is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest

from postroad.adapters.cassandra.history import KEY, CassandraHistory
from postroad.adapters.cassandra.session import Session, Statement
from postroad.adapters.cassandra.store import CassandraViewStore
from postroad.errors import ServerError, ViewRefused, ViewUnavailable
from postroad.ports.view import TableOptions
from servers import fresh
from stack.clusters import Cluster
from stack.progress import Progress
from support.access import cassandra_of

OPTIONS = TableOptions(
    replication={"class": "NetworkTopologyStrategy", "dc1": "3", "dc2": "3"},
    row_lifetime=timedelta(days=14),
    compaction_window=timedelta(hours=12),
    gc_grace=timedelta(hours=3),
)

INSERT = Statement(
    "INSERT INTO {keyspace}.configuration_events (queue, sequence, document)"
    " VALUES ('test.locally', 1, ?) IF NOT EXISTS"
)
"""A transaction of one data center, as all of the queue's are."""


@pytest.fixture(scope="module")
def centers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("centers"))
    try:
        yield Cluster.up(cluster.directory, rabbitmq=0, s3=0, data_centres=2, progress=Progress())
    finally:
        cluster.down()


@pytest.fixture
async def sessions(centers: Cluster) -> AsyncIterator[tuple[Session, Session]]:
    """A session in each data center, on one keyspace."""
    name = fresh()
    one, two = (
        Session(cassandra_of(centers.environment(data_center=center), name))
        for center in ("dc1", "dc2")
    )
    await CassandraViewStore(one).create(OPTIONS)
    yield one, two
    centers.heal()
    await asyncio.gather(one.close(), two.close())


def split(cluster: Cluster) -> None:
    """Cut the data centers off from each other."""
    names = [name for name in cluster.nodes if name.startswith("cassandra")]
    cluster.partition(names[:3], names[3:])


async def test_each_data_center_decides_for_itself_without_a_home(
    centers: Cluster, sessions: tuple[Session, Session]
) -> None:
    """The reason why the second data center has to be refused."""
    split(centers)

    answers = [await each.execute(INSERT, (str(at),)) for at, each in enumerate(sessions)]

    assert [answer["[applied]"] for [answer] in answers] == [True, True]


async def test_of_processes_in_two_data_centers_one_side_is_refused(
    sessions: tuple[Session, Session],
) -> None:
    histories = [CassandraHistory(each, "test.both") for each in sessions * 3]

    answers = await asyncio.gather(*(each.load() for each in histories), return_exceptions=True)
    again = await asyncio.gather(*(each.load() for each in histories), return_exceptions=True)

    refused = [isinstance(answer, ViewRefused) for answer in again]
    assert sorted(refused[:2]) == [False, True]
    assert refused == refused[:2] * 3
    for answer, expected in zip(answers, refused, strict=True):
        assert isinstance(answer, ServerError) or not expected


async def test_while_cut_off_no_side_becomes_the_home(
    centers: Cluster, sessions: tuple[Session, Session]
) -> None:
    split(centers)

    for each in sessions:
        with pytest.raises(ViewUnavailable):
            await CassandraHistory(each, "test.cut").load()

    centers.heal()
    centers.settled()
    await CassandraHistory(sessions[1], "test.cut").load()
    with pytest.raises(ViewRefused):
        await CassandraHistory(sessions[0], "test.cut").load()
    with pytest.raises(ViewRefused, match="used in the data center 'dc2'"):
        await CassandraViewStore(sessions[0]).create(OPTIONS)
    await CassandraViewStore(sessions[1]).create(OPTIONS)


async def test_the_home_works_on_while_the_other_data_center_is_away(
    centers: Cluster, sessions: tuple[Session, Session]
) -> None:
    await CassandraHistory(sessions[0], "test.away").load()

    split(centers)

    await CassandraHistory(sessions[0], "test.away").load()
    rows = await sessions[0].run(
        f"SELECT type FROM {{keyspace}}.configuration_events WHERE queue = '{KEY}'"
    )
    assert [row["type"] for row in rows] == ["HomeChosen"]
