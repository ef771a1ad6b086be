"""The rights at Cassandra and S3 that docs/operator/servers.md names for pods suffice, and end at a
keyspace and at the bucket of a queue, or at its prefix in a shared one. Those at RabbitMQ:
`test_rabbitmq_rights`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace

import pytest

import servers
from postroad import Mail, open_queue
from postroad.adapters.cassandra.session import Session
from postroad.adapters.s3.blobs import PART_BYTES, S3Blobs
from postroad.adapters.s3.store import Store
from postroad.bootstrap.cluster import ClusterServers, s3_access
from postroad.domain.queues.names import QueueName
from postroad.domain.queues.selection import Selector
from postroad.errors import CredentialsRefused, ServerError
from postroad.settings import Settings, from_environment
from support.keyspaces import keyspace
from support.server_users import (
    PASSWORD,
    StoreUser,
    make_cassandra_user,
    remove_cassandra_user,
)

__all__ = ["keyspace"]

pytestmark = pytest.mark.needs("rabbitmq", "cassandra", "s3")

KEPT = b"Subject: theirs\r\n\r\n"


@pytest.fixture(scope="module")
def pod(keyspace: str) -> Iterator[str]:
    """A user of Cassandra with the rights of a pod."""
    name = make_cassandra_user(keyspace)
    yield name
    remove_cassandra_user(name)


@pytest.fixture
def user() -> Iterator[StoreUser]:
    user = StoreUser.make()
    yield user
    user.remove()


def settings(keyspace: str, **variables: str) -> Settings:
    """Return settings for the real servers."""
    given = {"POSTROAD_CASSANDRA_KEYSPACE": keyspace, **variables}
    return from_environment({**os.environ, **given})


async def test_a_queues_programs_do_all_that_they_need(
    keyspace: str, pod: str, user: StoreUser
) -> None:
    name = QueueName("test", servers.fresh())
    theirs = settings(
        keyspace,
        POSTROAD_CASSANDRA_USERNAME=pod,
        POSTROAD_CASSANDRA_PASSWORD=PASSWORD,
        POSTROAD_S3_ACCESS_KEY=user.name,
        POSTROAD_S3_SECRET_KEY=PASSWORD,
    )
    bucket = name.bucket(theirs.s3.bucket_prefix)
    async with open_queue(f"distributed://{name}", create=True, settings=settings(keyspace)):
        user.allow(bucket)

    async with open_queue(f"distributed://{name}", settings=theirs) as queue:
        for subject in (b"delivered", b"given up", b"x" * (2 * PART_BYTES)):
            content = b"Subject: " + subject[:20] + b"\r\n\r\n" + subject
            await queue.enqueue(Mail("a@example.org", ("b@example.net",), content))
        seen = []
        async for item in queue.dequeue():
            seen.append(await item.content())
            await (item.reject("no") if b"given up" in seen[-1] else item.done())
            if len(seen) == 3:
                break
        dead_letters = [each async for each in queue.dead_letters()]
        requeued = await queue.requeue(Selector.all())
        waiting = [each async for each in queue.browse()]
        removed = await queue.remove(Selector.all())
        await queue.maintain()

    assert (len(dead_letters), requeued, len(waiting), removed) == (1, 1, 1, 1)
    operator = ClusterServers(settings(keyspace))
    await operator.broker(name).delete()
    await operator.blobs(bucket).drop()
    await operator.close()


AT_S3: dict[str, Callable[[S3Blobs, str], Awaitable[object]]] = {
    "put": lambda blobs, key: blobs.put(key, b"not theirs"),
    "put another": lambda blobs, key: blobs.put(f"{key}-2", b"not theirs"),
    "put parts": lambda blobs, key: blobs.put(key, b"x" * (2 * PART_BYTES)),
    "get": lambda blobs, key: blobs.get(key),
    "delete": lambda blobs, key: blobs.delete(key),
    "delete many": lambda blobs, key: blobs.delete_together([key, f"{key}-2"]),
}
AT_A_BUCKET: dict[str, Callable[[S3Blobs, str], Awaitable[object]]] = {
    "list": lambda blobs, _: anext(blobs.keys("")),
    "empty": lambda blobs, _: anext(blobs.empty("")),
    "drop": lambda blobs, _: blobs.drop(),
}


@pytest.fixture
async def administrators(keyspace: str) -> AsyncIterator[Store]:
    store = Store(s3_access(settings(keyspace)))
    yield store
    await store.close()


@pytest.fixture
async def users(keyspace: str, user: StoreUser) -> AsyncIterator[Store]:
    access = replace(s3_access(settings(keyspace)), access_key=user.name, secret_key=PASSWORD)
    store = Store(access)
    yield store
    await store.close()


@pytest.mark.parametrize("is_shared", [False, True], ids=["buckets of their own", "a shared one"])
async def test_s3_refuses_each_operation_on_a_neighbours_objects(
    administrators: Store, users: Store, user: StoreUser, is_shared: bool
) -> None:
    ours, theirs = (QueueName("test", servers.fresh()) for _ in range(2))
    names = [f"rights-{ours.name}", f"rights-{(ours if is_shared else theirs).name}"]
    for each in {*names}:
        await S3Blobs(administrators, each).create()
    user.allow(names[0], ours if is_shared else None)
    kept = S3Blobs(administrators, names[1])
    await kept.put(f"{theirs}/mail", KEPT)
    own, neighbours = (S3Blobs(users, each) for each in names)
    await own.put(f"{ours}/mail", b"ours")
    assert await own.get(f"{ours}/mail") == b"ours"

    allowed = []
    for what, attempt in (AT_S3 | ({} if is_shared else AT_A_BUCKET)).items():
        try:
            await attempt(neighbours, f"{theirs}/mail")
        except CredentialsRefused:
            continue
        allowed.append(what)

    assert allowed == []
    assert await kept.get(f"{theirs}/mail") == KEPT
    assert [key async for key in kept.keys(f"{theirs}/")] == [f"{theirs}/mail"]
    for each in {*names}:
        await S3Blobs(administrators, each).drop()


STATEMENTS = (
    "SELECT * FROM {keyspace}.kept",
    "INSERT INTO {keyspace}.kept (id) VALUES (2)",
    "DELETE FROM {keyspace}.kept WHERE id = 1",
    "TRUNCATE {keyspace}.kept",
)
OF_THE_SCHEMA = (
    "CREATE TABLE {keyspace}.more (id int PRIMARY KEY)",
    "ALTER TABLE {keyspace}.TABLE ADD more int",
    "DROP TABLE {keyspace}.TABLE",
    "DROP KEYSPACE {keyspace}",
)


async def test_cassandra_refuses_another_keyspace_and_each_change_of_the_schema(
    keyspace: str, pod: str
) -> None:
    other = servers.fresh()
    operator = Session(servers.cassandra(other))
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    await operator.run(f"CREATE KEYSPACE {other} WITH replication = {replication}")
    await operator.run("CREATE TABLE {keyspace}.kept (id int PRIMARY KEY)")
    await operator.run("INSERT INTO {keyspace}.kept (id) VALUES (1)")
    allowed = []

    for where, table, statements in (
        (keyspace, "limits", OF_THE_SCHEMA),
        (other, "kept", (*STATEMENTS, *OF_THE_SCHEMA)),
    ):
        access = replace(servers.cassandra(where), username=pod, password=PASSWORD)
        session = Session(access)
        for each in statements:
            try:
                await session.run(each.replace(".TABLE", f".{table}"))
            except ServerError as error:
                if "permission" in error.explain():
                    continue
            allowed.append((where, each))
        await session.close()

    assert allowed == []
    assert len(await operator.run("SELECT id FROM {keyspace}.kept")) == 1
    await operator.run("DROP KEYSPACE {keyspace}")
    await operator.close()
