"""What was changed behind the operator's back is put back, and reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from postroad.adapters.cassandra import schema
from postroad.controller.cluster.health import MAIL_TABLES, lost_tables, undone_alterations
from postroad.controller.kubernetes.api import MAIL_QUEUE
from postroad.domain.queues.names import QueueName
from postroad.errors import KubernetesUnavailable, ViewRefused
from postroad.ports.view import SchemaChanges
from support import resources
from support.memory.fault_injection import Step
from support.operator_in_memory import NAMESPACE, World, reasons

TABLES = {"rowLifetime": "336h"}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.declare()
    yield made
    await made.close()


async def test_options_that_were_altered_by_hand_are_as_declared_again(world: World) -> None:
    """Rows that never expire fill the disk; rows that expire too early lose mail from sight."""
    await world.cluster()
    declared = world.memory.schema.options
    assert declared is not None
    world.memory.schema.options = replace(declared, row_lifetime=timedelta(minutes=1))

    cluster = await world.cluster()

    assert world.memory.schema.options == declared
    assert "ViewReady" not in reasons(cluster)
    (event,) = [each for each in world.events() if each["reason"] == "Repaired"]
    assert event["type"] == "Warning"
    assert "enqueued_mails" in event["note"]


async def test_a_keyspace_that_another_data_center_uses_is_reported_with_what_to_do(
    world: World,
) -> None:
    """The QueueCluster shows it, also while it has no MailQueue whose history could be read."""
    await world.cluster()

    async def refuse(step: Step) -> None:
        if step.operation == "create":
            raise ViewRefused("used in the data center 'dc2'", hint="set the data center to dc2")

    world.faults.before = refuse
    cluster = await world.cluster()

    (view,) = [each for each in cluster["conditions"] if each["type"] == "ViewReady"]
    assert (view["status"], view["reason"]) == ("False", "ViewRefused")
    assert view["message"] == "used in the data center 'dc2' (set the data center to dc2)"
    assert reasons(cluster)["Ready"] == "ViewRefused"

    world.faults.before = None
    assert "ViewReady" not in reasons(await world.cluster())


async def test_a_queue_before_its_cluster_has_tables_is_pending_and_makes_none(
    world: World,
) -> None:
    early = await world.queue(alone=True)
    await world.cluster()
    after = await world.queue(alone=True)

    assert reasons(early)["ViewReady"] == reasons(early)["ConfigurationAccepted"] == "Pending"
    assert reasons(early)["Ready"] == "Pending"
    assert "configuration" not in early
    assert reasons(after) == {}


async def test_a_table_that_was_dropped_is_made_anew_and_reported(world: World) -> None:
    """Also when a MailQueue is reconciled first, by an operator that has just started."""
    await world.cluster()
    await world.queue()
    world.memory.schema.missing.add("enqueued_mails")
    await world.restart()

    await world.queue()
    cluster = await world.cluster()

    assert world.memory.schema.missing == set()
    assert reasons(cluster)["ViewReady"] == reasons(cluster)["Ready"] == "TablesWereGone"
    assert "enqueued_mails" in str(cluster["conditions"])
    assert "TablesWereGone" in {each["reason"] for each in world.events()}
    assert "ViewReady" not in reasons(await world.cluster())


@pytest.mark.parametrize(
    ("server", "condition", "reason"),
    [
        ("broker", "BrokerReady", "QueuesWereMissing"),
        ("blobs", "BlobsReady", "BucketWasMissing"),
    ],
)
async def test_what_a_configured_queue_lacks_is_made_anew_and_reported(
    world: World, server: str, condition: str, reason: str
) -> None:
    assert reasons(await world.queue()) == {}
    servers = world.connect()
    name = QueueName("mail", "outgoing")
    broker, blobs = servers.broker(name), servers.blobs(name.bucket("postroad-"))
    await (broker.delete() if server == "broker" else blobs.drop())

    lost, after = await world.queue(), await world.queue()

    assert reasons(lost)[condition] == reasons(lost)["Ready"] == reason
    assert "Stalled" not in reasons(lost)
    assert reasons(after) == {}
    assert await broker.exists()
    assert await blobs.exists()


async def test_queues_that_were_declared_otherwise_are_refused_by_their_difference(
    world: World,
) -> None:
    """By an administrator, or for a MailQueue that was retained."""
    name = QueueName("mail", "outgoing")
    await world.connect().broker(name, delivery_limit=7).declare()

    status = await world.queue()

    assert reasons(status)["BrokerReady"] == reasons(status)["Ready"] == "BrokerRefused"
    (message,) = [each["message"] for each in status["conditions"] if each["type"] == "BrokerReady"]
    assert "has x-delivery-limit 7, wanted is 20" in message


async def test_a_bucket_that_deletes_objects_by_age_is_not_ready(world: World) -> None:
    bucket = world.memory.bucket("postroad-mail-outgoing")
    bucket.limits = ("ObjectsExpire", "LifecycleUnsupported")

    assert reasons(await world.queue())["BlobsReady"] == "ObjectsExpire"

    bucket.limits = ("LifecycleUnsupported",)
    assert reasons(await world.queue()) == {}


async def test_a_shared_bucket_is_waited_for_and_not_made(world: World) -> None:
    await world.add(resources.mail_queue(NAMESPACE, "sharing", blobs={"bucket": "of-several"}))
    blobs = world.connect().blobs("of-several")

    status = await world.queue("sharing")

    assert reasons(status)["BlobsReady"] == reasons(status)["Ready"] == "BucketNotFound"
    (message,) = [each["message"] for each in status["conditions"] if each["type"] == "BlobsReady"]
    assert message == "the shared bucket of-several does not exist: create it"
    assert "Stalled" not in reasons(status)
    assert not await blobs.exists()
    await blobs.create("", first=True)
    assert reasons(await world.queue("sharing")) == {}


async def test_a_new_queue_takes_no_bucket_of_another_account(world: World) -> None:
    world.memory.bucket("postroad-mail-outgoing").is_of_another_account = True

    assert reasons(await world.queue())["BlobsReady"] == "BlobsRefused"


@pytest.mark.parametrize(
    ("before", "changes"),
    [
        (None, SchemaChanges(created=("enqueued_mails",))),
        (TABLES, SchemaChanges()),
        (TABLES, SchemaChanges(created=("table_of_a_later_release",))),
        ({"rowLifetime": "300h"}, SchemaChanges(altered=("enqueued_mails",))),
    ],
    ids=["first creation", "no change", "new table", "other options declared"],
)
def test_what_the_resources_ask_for_is_no_repair(
    before: dict[str, str] | None, changes: SchemaChanges
) -> None:
    assert lost_tables(before, changes) is None
    assert undone_alterations(before, TABLES, changes) is None


def test_the_tables_of_mail_are_in_the_schema() -> None:
    assert {schema.table_of(each) for each in schema.statements()} >= MAIL_TABLES


async def test_where_events_of_a_stream_wait_is_declared_at_every_reconcile(world: World) -> None:
    """Programs of the queue may not declare it."""
    events = [{"name": "audit", "file": "/var/log/events.jsonl"}]
    await world.change(MAIL_QUEUE, "outgoing", delivery={"events": events})
    for _ in range(2):
        world.memory.streams.clear()
        await world.queue()
        assert world.memory.streams == {f"{NAMESPACE}.outgoing": {"audit"}}


async def test_no_work_on_a_server_goes_on_beside_the_next_reconcile(world: World) -> None:
    """The API server does not answer while the bucket is made, which takes its time."""
    await world.cluster()
    begun, ended = 0, 0

    async def before(step: Step) -> None:
        nonlocal begun, ended
        if step.server == "broker" and step.operation == "declare":
            raise KubernetesUnavailable("etcdserver: request timed out")
        if step.server == "blobs":
            begun += 1
            await asyncio.sleep(0.01)
            ended += 1

    world.faults.before = before
    with pytest.raises(KubernetesUnavailable):
        await world.queue()

    assert begun == ended > 0
