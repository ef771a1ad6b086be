"""Connecting to real servers by settings, and the error for each wrong one."""

from __future__ import annotations

import os

import pytest

import servers
from postroad import Mail, open_queue
from postroad.bootstrap.cluster import connect
from postroad.domain.queues.names import QueueName
from postroad.errors import (
    BlobsUnavailable,
    BrokerUnavailable,
    CredentialsRefused,
    QueueNotFound,
    ViewUnavailable,
)
from postroad.settings import Settings, from_environment

pytestmark = pytest.mark.needs("rabbitmq", "cassandra", "s3")


def settings(**changes: str) -> Settings:
    """The running servers, with changes."""
    return from_environment({**os.environ, **changes})


@pytest.mark.parametrize("brief", [False, True])
async def test_each_server_says_its_version(brief: bool) -> None:
    connected = connect(settings())

    found = await connected.check(brief=brief)

    assert sorted(found) == ["cassandra", "rabbitmq", "s3"]
    assert all(each.error is None and each.version for each in found.values())
    await connected.close()


async def test_servers_of_one_node_report_one_node() -> None:
    connected = connect(settings())
    alone = connect(settings(POSTROAD_RABBITMQ_MANAGEMENT_URL=""))

    found, without = await connected.check(), await alone.check()

    assert "1 node, fewer than 3" in found["rabbitmq"].limits
    assert "1 node, fewer than 3" in found["cassandra"].limits
    assert {each.limits for each in (await connected.check(brief=True)).values()} == {()}
    assert without["rabbitmq"].limits == ()
    assert "managementURL" in without["rabbitmq"].unknown[0]
    await connected.close()
    await alone.close()


async def test_each_server_says_what_stands_in_the_way() -> None:
    connected = connect(
        settings(
            POSTROAD_RABBITMQ_URI="amqp://127.0.0.1:9/",
            POSTROAD_CASSANDRA_PORT="9",
            POSTROAD_S3_ENDPOINT="http://127.0.0.1:9",
        )
    )

    found = await connected.check()

    assert {name: type(each.error) for name, each in found.items()} == {
        "rabbitmq": BrokerUnavailable,
        "cassandra": ViewUnavailable,
        "s3": BlobsUnavailable,
    }
    await connected.close()


async def test_each_server_says_when_it_refuses_the_credentials() -> None:
    connected = connect(
        settings(
            POSTROAD_RABBITMQ_PASSWORD="wrong-secret",
            POSTROAD_CASSANDRA_PASSWORD="wrong-secret",
            POSTROAD_S3_SECRET_KEY="wrong-secret",
        )
    )

    found = await connected.check()

    assert {type(each.error) for each in found.values()} == {CredentialsRefused}
    assert "wrong-secret" not in repr(found)
    await connected.close()


async def test_connections_that_are_closed_before_their_first_use_are_never_made() -> None:
    connected = connect(settings())

    await connected.close()
    await connected.close()

    with pytest.raises(BrokerUnavailable, match="was closed"):
        await connected.broker(QueueName("test", servers.fresh())).declare()
    with pytest.raises(ViewUnavailable, match="is closed"):
        await connected.views().check()
    with pytest.raises(BlobsUnavailable, match="was closed"):
        await connected.blobs("never").exists()


async def test_a_first_queue_is_created_with_all_it_needs() -> None:
    """Keyspace, tables, queues and bucket are created from a URL and the servers alone."""
    keyspace, name = servers.fresh(), QueueName("test", servers.fresh())
    given = settings(POSTROAD_CASSANDRA_KEYSPACE=keyspace)
    with pytest.raises(QueueNotFound):
        await open_queue(f"distributed://{name}", settings=given)

    async with open_queue(f"distributed://{name}", create=True, settings=given) as queue:
        await queue.enqueue(Mail("a@example.org", ("b@example.net",), b"Subject: x\r\n\r\nx"))
    async with open_queue(f"distributed://{name}", settings=given) as queue:
        size = await queue.size()

    assert size.size == 1
    connected = connect(given)
    await connected.broker(name).delete()
    await connected.blobs(name.bucket(given.s3.bucket_prefix)).drop()
    await connected.close()
    session = servers.session(keyspace)
    await session.run("DROP KEYSPACE {keyspace}")
    await session.close()
