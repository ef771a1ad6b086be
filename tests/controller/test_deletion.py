"""A deletion keeps or removes what it says, and ends."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from contract.view_contract import entry
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.adapters.memory.servers import MemoryServers
from postroad.controller.kubernetes.api import (
    CONFIG_MAP,
    CONFIRM_DELETION,
    DEPLOYMENT,
    FINALIZER,
    FORCE_DELETION,
    MAIL_QUEUE,
    NAMESPACE,
    QUEUE_CLUSTER,
    SECRET,
)
from postroad.controller.mailqueue.deletion import CONFIRMATION_NEEDED
from postroad.controller.mailqueue.orphans import NAME as ORPHANS
from postroad.domain.queues.entries import Partition
from postroad.domain.queues.names import QueueName, key_of_owner
from postroad.domain.queues.ownership import Owner
from support.memory.fault_injection import away, no_fault
from support.resources import mail_queue, workers
from support.running_operator import Running

pytestmark = pytest.mark.needs("kubernetes")

COLLECTOR_SECONDS = 120
"""Kubernetes' garbage collector learns of new CRDs at intervals of 30 s and more."""


async def declare(operator: Running, **spec: Any) -> None:
    await operator.apply_cluster()
    await operator.apply(mail_queue(operator.namespace, workers=workers(), **spec))
    await operator.until_ready()


async def delete(operator: Running, name: str = "outgoing") -> None:
    await operator.api.delete(MAIL_QUEUE, await operator.queue(name))


async def what_is_left(operator: Running) -> tuple[bool, bool, bool]:
    """Whether history, limits and bucket are there."""
    name = QueueName(operator.namespace, "outgoing")
    servers = MemoryServers(operator.memory)
    history = await servers.history(name).load()
    limits = await servers.views().view(str(name)).limits()
    bucket = await servers.blobs(name.bucket("postroad-")).exists()
    return bool(history.events), limits.browse_start is not None, bucket


async def test_retain_keeps_everything_but_the_programs(operator: Running) -> None:
    await declare(operator)

    await delete(operator)
    await operator.until_gone(MAIL_QUEUE, "outgoing")
    await operator.until_gone(DEPLOYMENT, "outgoing-worker", COLLECTOR_SECONDS)

    assert await what_is_left(operator) == (True, True, True)
    assert len(await operator.until_told("Retained")) == 1


async def test_delete_removes_everything(operator: Running) -> None:
    await declare(operator, deletionPolicy="Delete")
    assert await what_is_left(operator) == (True, True, True)

    await delete(operator)
    await operator.until_gone(MAIL_QUEUE, "outgoing")

    assert await what_is_left(operator) == (False, False, False)
    assert len(await operator.until_told("Deleted")) == 1


async def test_delete_leaves_what_others_put_into_the_bucket(operator: Running) -> None:
    await declare(operator, deletionPolicy="Delete")
    name = QueueName(operator.namespace, "outgoing")
    blobs = MemoryServers(operator.memory).blobs(name.bucket("postroad-"))
    await blobs.put(f"{name}/mail", b"ours")
    await blobs.put("another.queue/mail", b"theirs")

    await delete(operator)
    await operator.until_gone(MAIL_QUEUE, "outgoing")

    assert [key async for key in blobs.keys("")] == ["another.queue/mail"]
    assert len(await operator.until_told("Deleted")) == 1


async def test_delete_leaves_the_bytes_of_another_installation(operator: Running) -> None:
    """It has a queue of the same name and uses the same bucket."""
    await declare(operator, deletionPolicy="Delete")
    name = QueueName(operator.namespace, "outgoing")
    blobs = MemoryServers(operator.memory).blobs(name.bucket("postroad-"))
    await blobs.put(key_of_owner(name), Owner(UUID(int=7), None).encode(name))
    await blobs.put(f"{name}/mail", b"theirs")

    await delete(operator)
    await operator.until_gone(MAIL_QUEUE, "outgoing")

    assert f"{name}/mail" in [key async for key in blobs.keys("")]
    (said,) = await operator.until_told("LeftBehind", "Warning")
    assert "those of another view" in said["note"]
    assert list(await orphans(operator)) == [str(name)]
    assert await what_is_left(operator) == (False, False, True)


async def test_delete_takes_the_owner_object_of_its_own_view(operator: Running) -> None:
    await declare(operator, deletionPolicy="Delete")
    name = QueueName(operator.namespace, "outgoing")
    servers = MemoryServers(operator.memory)
    (incarnation,) = (await servers.views().view(str(name)).identity()).incarnations
    blobs = servers.blobs(name.bucket("postroad-"))
    await blobs.put(key_of_owner(name), Owner(incarnation, None).encode(name))

    await delete(operator)
    await operator.until_gone(MAIL_QUEUE, "outgoing")

    assert await what_is_left(operator) == (False, False, False)


async def test_a_queue_made_anew_after_delete_begins_anew(operator: Running) -> None:
    await declare(operator, deletionPolicy="Delete", view={"sliceWindow": "1m", "bucketCount": 9})
    await delete(operator)
    await operator.until_gone(MAIL_QUEUE, "outgoing")

    await declare(operator, view={"sliceWindow": "2h", "bucketCount": 1})

    status = await operator.status()
    assert (status["configuration"]["version"], status["configuration"]["sliceWindow"]) == (1, "2h")


async def annotate(operator: Running, annotation: str) -> None:
    change = {"metadata": {"annotations": {annotation: "outgoing"}}}
    assert await operator.api.patch(MAIL_QUEUE, operator.namespace, "outgoing", change)


async def orphans(operator: Running) -> dict[str, str]:
    found = await operator.api.get(CONFIG_MAP, operator.namespace, ORPHANS)
    return (found or {}).get("data") or {}


async def test_a_deletion_with_mail_waiting_is_confirmed_by_an_annotation(
    operator: Running,
) -> None:
    await declare(operator, deletionPolicy="Delete")
    name = QueueName(operator.namespace, "outgoing")
    tables = operator.memory.tables(str(name))
    begin = tables.limits.browse_start
    assert begin is not None
    tables.insert(entry(1, Partition(begin, 0)))

    await delete(operator)
    conditions = await operator.until(
        lambda found: "ConfirmationNeeded" in found["Ready"]["reason"]
    )
    assert conditions["Ready"]["message"].startswith("1 mail waits; ")
    assert f"{CONFIRM_DELETION}=outgoing" in conditions["Ready"]["message"]
    assert conditions["Stalled"]["status"] == "True"
    assert len(await operator.until_told(CONFIRMATION_NEEDED, "Warning")) == 1

    await annotate(operator, CONFIRM_DELETION)
    await operator.until_gone(MAIL_QUEUE, "outgoing")
    assert await what_is_left(operator) == (False, False, False)


async def test_a_deletion_that_a_server_blocks_is_forced_and_lists_what_is_left(
    operator: Running,
) -> None:
    await declare(operator, deletionPolicy="Delete")

    operator.faults.plan = away("blobs")
    await delete(operator)
    conditions = await operator.until(lambda found: found["Ready"]["reason"] == "DeletionBlocked")
    assert "S3 blocks the bytes" in conditions["Ready"]["message"]
    status = await operator.status()
    assert status["deletion"]["done"] == ["Messages", "Rows"]
    assert [each["server"] for each in status["deletion"]["blockedBy"]] == ["S3"]

    await annotate(operator, FORCE_DELETION)
    await operator.until_gone(MAIL_QUEUE, "outgoing")
    (said,) = await operator.until_told("LeftBehind", "Warning")
    assert "RabbitMQ" not in said["note"]
    assert list(await orphans(operator)) == [f"{operator.namespace}.outgoing"]
    assert await what_is_left(operator) == (True, True, True)


async def test_a_server_that_comes_back_is_still_cleaned(operator: Running) -> None:
    await declare(operator, deletionPolicy="Delete")

    operator.faults.plan = away("blobs")
    await delete(operator)
    await operator.until(lambda found: found["Ready"]["reason"] == "DeletionBlocked")
    operator.faults.plan = no_fault
    await operator.until_gone(MAIL_QUEUE, "outgoing")

    assert await what_is_left(operator) == (False, False, False)
    assert await orphans(operator) == {}


async def test_secrets_that_are_gone_do_not_keep_a_queue_from_being_deleted(
    operator: Running,
) -> None:
    """A namespace that is being deleted loses its objects in any order."""
    await declare(operator, deletionPolicy="Delete")

    for each in await operator.api.list(SECRET, operator.namespace):
        await operator.api.delete(SECRET, each)
    await delete(operator)
    await operator.until_gone(MAIL_QUEUE, "outgoing")

    assert await what_is_left(operator) == (False, False, False)


async def test_a_paused_queue_is_retained(operator: Running) -> None:
    await declare(operator, deletionPolicy="Delete")
    await operator.change({"paused": True})
    await operator.until(lambda found: "Paused" in found)

    await delete(operator)
    await operator.until_gone(MAIL_QUEUE, "outgoing")

    assert await what_is_left(operator) == (True, True, True)


async def test_a_queue_without_its_cluster_is_forced_and_listed(operator: Running) -> None:
    await declare(operator, deletionPolicy="Delete")
    for _ in range(100):  # the operator sets the finalizer again when it sees that it is missing
        no_finalizers = {"metadata": {"finalizers": None}}
        if not (cluster := await operator.api.get(QUEUE_CLUSTER, operator.namespace, "main")):
            break
        await operator.api.delete(QUEUE_CLUSTER, cluster)
        await operator.api.patch(QUEUE_CLUSTER, operator.namespace, "main", no_finalizers)

    await delete(operator)
    conditions = await operator.until(lambda found: found["Ready"]["reason"] == "DeletionBlocked")
    assert "there is no QueueCluster main" in conditions["Ready"]["message"]
    await annotate(operator, FORCE_DELETION)
    await operator.until_gone(MAIL_QUEUE, "outgoing")

    (said,) = await operator.until_told("LeftBehind", "Warning")
    for part in ("messages", "rows", "bytes", "history"):
        assert part in said["note"]
    assert list(await orphans(operator)) == [f"{operator.namespace}.outgoing"]
    assert await operator.events("Deleted") == []


async def test_a_queue_for_which_nothing_was_made_is_deleted_without_the_operator(
    operator: Running,
) -> None:
    await operator.apply(mail_queue(operator.namespace, deletionPolicy="Delete"))
    await operator.until(lambda found: found["Ready"]["reason"] == "ClusterNotFound")
    await operator.stop()

    await delete(operator)

    assert await operator.api.get(MAIL_QUEUE, operator.namespace, "outgoing") is None


async def test_a_namespace_with_retained_queues_goes_without_the_operator(
    operator: Running,
) -> None:
    await declare(operator)
    await operator.until_ready("main", QUEUE_CLUSTER)
    await operator.stop()

    await delete_namespace(operator)

    assert await what_is_left(operator) == (True, True, True)


async def test_a_finalizer_follows_the_deletion_policy(operator: Running) -> None:
    await declare(operator)
    assert await finalizers(operator) == ([], [])

    for spec, expected in (
        ({"deletionPolicy": "Delete"}, ([FINALIZER], [FINALIZER])),
        ({"paused": True}, ([], [])),
        ({"paused": False}, ([FINALIZER], [FINALIZER])),
        ({"deletionPolicy": "Retain"}, ([], [])),
    ):
        await operator.change(spec)
        async with asyncio.timeout(30):
            while await finalizers(operator) != expected:
                await asyncio.sleep(0.1)


async def finalizers(operator: Running) -> tuple[list[str], list[str]]:
    """Those of the MailQueue and the QueueCluster."""
    cluster = await operator.api.get(QUEUE_CLUSTER, operator.namespace, "main")
    assert cluster
    queue = await operator.queue()
    return (
        queue["metadata"].get("finalizers", []),
        cluster["metadata"].get("finalizers", []),
    )


async def test_a_cluster_does_not_wait_for_queues_that_are_retained(operator: Running) -> None:
    await declare(operator)
    cluster = await operator.api.get(QUEUE_CLUSTER, operator.namespace, "main")
    assert cluster

    await operator.api.delete(QUEUE_CLUSTER, cluster)

    assert await operator.api.get(QUEUE_CLUSTER, operator.namespace, "main") is None
    await operator.until(lambda found: found["Ready"]["reason"] == "ClusterNotFound")


async def test_a_cluster_waits_for_queues_that_are_deleted_from_it(operator: Running) -> None:
    await declare(operator, deletionPolicy="Delete")
    cluster = await operator.api.get(QUEUE_CLUSTER, operator.namespace, "main")
    assert cluster

    await operator.api.delete(QUEUE_CLUSTER, cluster)
    await operator.until(lambda found: found["Ready"]["reason"] == "InUse", "main", QUEUE_CLUSTER)
    await delete(operator)
    await operator.until_gone(MAIL_QUEUE, "outgoing")
    await operator.until_gone(QUEUE_CLUSTER, "main")

    assert await what_is_left(operator) == (False, False, False)


async def test_a_namespace_goes_with_all_that_is_in_it(
    api: ApiServer, namespace: str, operator_namespace: str
) -> None:
    operator = Running(api, namespace, lease_namespace=operator_namespace)
    await operator.start()
    await declare(operator, deletionPolicy="Delete")

    await delete_namespace(operator)

    assert await what_is_left(operator) == (False, False, False)
    await operator.stop()


async def delete_namespace(operator: Running) -> None:
    """Delete the operator's namespace, and wait until it is gone."""
    namespace = await operator.api.get(NAMESPACE, None, operator.namespace)
    assert namespace
    await operator.api.delete(NAMESPACE, namespace)
    async with asyncio.timeout(COLLECTOR_SECONDS):
        while await operator.api.get(NAMESPACE, None, operator.namespace):
            await asyncio.sleep(0.1)
