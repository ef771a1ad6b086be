"""A deletion ends when it is done: it reports how far it is, goes on after a crash, blocks no
other queue, and asks before it deletes mail that waits.

Intervals are those of production.
"""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from contract.view_contract import entry
from postroad.adapters.memory.servers import MemoryServers, MemoryWorld
from postroad.controller.kubernetes.api import (
    CONFIG_MAP,
    CONFIRM_DELETION,
    FINALIZER,
    FORCE_DELETION,
    INSTANCE,
    MAIL_QUEUE,
    POD,
    QUEUE_CLUSTER,
)
from postroad.controller.kubernetes.api import (
    NAMESPACE as NAMESPACES,
)
from postroad.controller.mailqueue.deletion import Deletion
from postroad.controller.mailqueue.orphans import NAME as ORPHANS
from postroad.controller.spec.queue_resource import Queue
from postroad.distributed.maintenance.erasure import Part
from postroad.distributed.reading import size
from postroad.domain.queues.entries import Partition
from postroad.domain.queues.names import QueueName, key_of_owner
from postroad.domain.queues.ownership import Owner
from postroad.ports.kubernetes import Object
from postroad.ports.view import ClosedSlice, Limits
from support.manual_loop import move, run
from support.memory.clock import START
from support.memory.fault_injection import FaultInjector, Step, away, no_fault
from support.memory.kubernetes.world import ObjectPlace
from support.resources import mail_queue, queue_cluster, secrets, workers
from support.running_controller import NAMESPACE, RunningController, running_controller

BUCKET = "postroad-mail-outgoing"
QUEUE = QueueName("mail", "outgoing")
ELSEWHERE = "amqp://elsewhere.example:5672/%2F"


async def declare(operator: RunningController, mails: int = 0) -> None:
    """Create a queue that is erased with its resource, and let mails wait in it."""
    await operator.declare(deletionPolicy="Delete", workers=workers())
    put(operator, mails)


def put(operator: RunningController, mails: int) -> None:
    """Store mails in the present slice."""
    tables, bucket = operator.world.tables(str(QUEUE)), operator.world.bucket(BUCKET)
    for number in range(mails):
        tables.insert(entry(number, Partition(START, number % 3)))
        bucket.objects[f"{QUEUE}/{number:05}"] = b"x"


async def annotate(operator: RunningController, annotation: str, value: str = "outgoing") -> None:
    """Annotate the MailQueue as a user."""
    change = {"metadata": {"annotations": {annotation: value}}}
    assert await operator.user.patch(MAIL_QUEUE, NAMESPACE, "outgoing", change)


def is_gone(operator: RunningController, name: str = "outgoing") -> bool:
    """Whether there is no such MailQueue."""
    return operator.at("mailqueues", NAMESPACE, name) is None


def is_erased(operator: RunningController) -> bool:
    """Whether the servers have nothing of the queue."""
    tables = operator.world.tables(str(QUEUE))
    return (
        not tables.rows
        and tables.limits.browse_start is None
        and not operator.world.records(str(QUEUE)).recorded.events
        and not operator.world.bucket(BUCKET).is_created
        and not operator.world.queues(str(QUEUE)).declared
    )


def progress(operator: RunningController) -> Object:
    """Return how far the deletion is."""
    found: Object = operator.found()["status"]["deletion"]
    return found


def orphans(operator: RunningController) -> dict[str, Object]:
    """Return the list of orphans."""
    found = operator.at("configmaps", "postroad-system", ORPHANS) or {"data": {}}
    return {queue: json.loads(text) for queue, text in found["data"].items()}


def test_mail_that_waits_is_deleted_when_that_is_confirmed() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator, mails=17)

            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(60)
            ready = operator.condition("Ready")
            assert ready["reason"] == "ConfirmationNeeded"
            assert ready["message"].startswith("17 mails wait; ")
            command = f"kubectl annotate mailqueue outgoing -n mail {CONFIRM_DELETION}=outgoing"
            assert command in ready["message"]
            assert operator.condition("Stalled")["status"] == "True"
            assert operator.at("deployments", NAMESPACE, "outgoing-worker"), "they deliver on"
            assert len(operator.events("ConfirmationNeeded")) == 1

            await annotate(operator, CONFIRM_DELETION, "another")
            await move(60)
            assert operator.condition("Ready")["reason"] == "ConfirmationNeeded"

            await annotate(operator, CONFIRM_DELETION)
            await move(3)
            assert is_gone(operator)
            assert is_erased(operator)
            assert len(operator.events("Deleted")) == 1

    run(scene())


def test_mail_that_is_delivered_meanwhile_needs_no_confirmation() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator, mails=2)
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(30)
            assert not is_gone(operator)

            operator.world.tables(str(QUEUE)).rows.clear()
            await move(20)
            assert is_gone(operator)
            assert is_erased(operator)

    run(scene())


def test_mail_that_waits_is_kept_by_another_policy() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator, mails=2)
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(30)

            await operator.change({"deletionPolicy": "Retain"})
            await move(3)
            assert is_gone(operator)
            assert len(operator.world.tables(str(QUEUE)).rows) == 2
            assert len(operator.events("Retained")) == 1

    run(scene())


def test_a_namespace_that_is_deleted_asks_once_for_all_of_its_queues() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mail"}}
            created = await operator.user.create(NAMESPACES, namespace)
            finalizers = {"metadata": {"finalizers": ["kubernetes"]}}
            await operator.user.patch(NAMESPACES, None, "mail", finalizers)
            await declare(operator, mails=3)

            await operator.user.delete(NAMESPACES, created)
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(100)
            confirmation = f"kubectl annotate namespace mail {CONFIRM_DELETION}=mail"
            assert confirmation in operator.condition("Ready")["message"]
            about = [each["regarding"]["kind"] for each in operator.events("ConfirmationNeeded")]
            assert sorted(about) == ["MailQueue", "Namespace"]

            change = {"metadata": {"annotations": {CONFIRM_DELETION: "mail"}}}
            await operator.user.patch(NAMESPACES, None, "mail", change)
            await move(20)
            assert is_gone(operator)
            assert is_erased(operator)

    run(scene())


async def in_a_second(step: Step) -> None:
    """Let a step of an erasure take a second."""
    if step.operation in ("erase_rows", "empty"):
        await asyncio.sleep(1)


def test_a_large_queue_is_erased_in_its_time_and_blocks_no_other() -> None:
    """It takes longer than any timeout, and the status shows how far it is."""

    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator, mails=450)
            await annotate(operator, CONFIRM_DELETION)
            operator.faults.before = in_a_second
            await operator.delete(MAIL_QUEUE, "outgoing")

            await move(60)
            first = progress(operator)
            assert 0 < first["rows"] < 450
            assert 0 < first["objects"] < 450
            assert "objects and" in operator.condition("Ready")["message"]
            assert operator.condition("Ready")["reason"] == "Deleting"

            await operator.create(mail_queue(NAMESPACE, "another"))
            await move(5)
            assert operator.condition("Ready", name="another")["status"] == "True"

            await move(70)
            assert progress(operator)["rows"] > first["rows"]
            await move(170)
            assert is_gone(operator)
            assert is_erased(operator)

    run(scene())


def test_many_deletions_leave_tasks_to_queues_that_stay() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            names = [f"queue-{number}" for number in range(10)]
            for name in names:
                await operator.create(mail_queue(NAMESPACE, name, deletionPolicy="Delete"))
            await move(30)

            async def frozen(step: Step) -> None:
                if step.server == "broker" and step.operation == "delete":
                    await asyncio.sleep(3600)

            operator.faults.before = frozen
            for name in names:
                await operator.delete(MAIL_QUEUE, name)
            await move(60)
            await operator.create(mail_queue(NAMESPACE, "another"))
            await move(5)
            assert operator.condition("Ready", name="another")["status"] == "True"

            operator.faults.before = None
            await move(200)
            assert all(is_gone(operator, name) for name in names)

    run(scene())


def test_deletions_at_a_server_that_hangs_hold_up_none_at_others() -> None:
    async def hang(step: Step) -> None:
        if step.server == "blobs":
            await asyncio.Event().wait()

    async def work(step: Step) -> None:
        if step.operation in ("erase_rows", "empty"):
            await asyncio.sleep(1)

    async def scene() -> None:
        async with running_controller() as operator:
            faults = operator.faults_at[ELSEWHERE] = FaultInjector()
            operator.keyspaces["other"] = MemoryWorld(operator.clock)
            await declare(operator, mails=100)
            await annotate(operator, CONFIRM_DELETION)
            other = queue_cluster(NAMESPACE, "other")
            other["spec"]["rabbitmq"]["url"] = ELSEWHERE
            other["spec"]["cassandra"]["keyspace"] = "other"
            await operator.create(other)
            names = [f"queue-{number}" for number in range(30)]
            parts = {"clusterRef": {"name": "other"}, "deletionPolicy": "Delete"}
            for each in names:
                await operator.create(mail_queue(NAMESPACE, each, **parts))
            await move(60)
            faults.before = hang
            for each in names:
                await operator.delete(MAIL_QUEUE, each)
            await move(120)
            operator.faults.before = work
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(70)
            assert is_gone(operator), "alone it takes a minute"
            assert not any(is_gone(operator, each) for each in names)

    run(scene())


@pytest.mark.parametrize(
    ("server", "name", "parts"),
    [
        ("broker", "RabbitMQ", ["Messages"]),
        ("blobs", "S3", ["Bytes"]),
    ],
)
def test_a_server_that_is_away_is_named_and_waited_for(
    server: str, name: str, parts: list[str]
) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator, mails=30)
            await annotate(operator, CONFIRM_DELETION)
            operator.faults.plan = away(server)
            await operator.delete(MAIL_QUEUE, "outgoing")

            await move(300)
            found = progress(operator)
            assert [each["part"] for each in found["blockedBy"]] == parts
            assert found["blockedBy"][0]["server"] == name
            assert set(found["done"]) == {"Messages", "Bytes", "Rows"} - set(parts)
            ready = operator.condition("Ready")
            assert ready["reason"] == "DeletionBlocked"
            assert f"{name} blocks the {parts[0].lower()}: " in ready["message"]
            assert operator.condition("Reconciling")["status"] == "True"
            asked = len(operator.faults.steps)
            await move(180)
            assert len(operator.faults.steps) - asked < 60, "at most once a minute"

            operator.faults.plan = no_fault
            await move(70)
            assert is_gone(operator)
            assert is_erased(operator)
            assert orphans(operator) == {}

    run(scene())


def test_a_deletion_whose_mail_cannot_be_counted_waits() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            operator.faults.plan = away("view")
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(100)
            ready = operator.condition("Ready")
            assert ready["reason"] == "DeletionBlocked"
            assert "could not be counted" in ready["message"]
            assert operator.world.queues(str(QUEUE)).declared

            operator.faults.plan = no_fault
            await move(20)
            assert is_gone(operator)
            assert is_erased(operator)

    run(scene())


def test_a_number_that_is_a_lower_bound_counts_as_mail_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of delivered mails have expired, their marks not: more would have to be read."""
    monkeypatch.setattr(size, "MAX_READ", 10)

    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            tables, first = operator.world.tables(str(QUEUE)), Partition(START, 0)
            view = MemoryServers(operator.world).views().view(str(QUEUE))
            tables.row_lifetime = timedelta(seconds=20)
            for number in range(30):
                delivered = entry(number, first)
                tables.insert(delivered)
                await view.mark_delivered(delivered.key, START, delivered.traits)
            tables.row_lifetime = timedelta(days=14)
            for number in range(30, 40):
                tables.insert(entry(number, first))
            await view.close_slice(ClosedSlice(START, timedelta(hours=1), {0: 40}))
            await move(150)
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(60)
            assert "or more" in operator.condition("Ready")["message"]
            assert len(tables.live()) == 10

    run(scene())


def test_mail_that_a_pod_accepts_in_its_last_second_is_not_deleted_unasked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind the count of the deletion, and before the pods are listed."""
    end_pods = Deletion._end_pods

    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)

            async def accept(deletion: Deletion, queue: Queue) -> list[str]:
                put(operator, 3)
                return await end_pods(deletion, queue)

            monkeypatch.setattr(Deletion, "_end_pods", accept)
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(60)
            assert operator.condition("Ready")["reason"] == "ConfirmationNeeded"
            assert len(operator.world.tables(str(QUEUE)).live()) == 3

    run(scene())


def test_a_pod_that_does_not_end_is_a_matter_for_an_administrator() -> None:
    """As one of a lost node."""

    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(deletionPolicy="Delete", workers=workers(1))
            tags = {"app.kubernetes.io/name": "postroad", INSTANCE: "outgoing"}
            metadata = {"name": "outgoing-worker-x", "namespace": NAMESPACE, "labels": tags}
            await operator.user.create(
                POD, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
            )
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(5 * 60)
            assert operator.condition("Ready")["reason"] == "Deleting"
            await move(7 * 60)
            assert operator.condition("Ready")["reason"] == "DeletionBlocked"
            stalled = operator.condition("Stalled")
            assert stalled["status"] == "True"
            for part in ("pod outgoing-worker-x", "--force", f"{FORCE_DELETION}=outgoing"):
                assert part in stalled["message"]

            pod = operator.kubernetes.objects[ObjectPlace("pods", NAMESPACE, "outgoing-worker-x")]
            await operator.user.delete(POD, pod)
            await move(90)
            assert operator.at("mailqueues", NAMESPACE, "outgoing") is None

    run(scene())


def test_an_operator_goes_on_where_another_one_was_killed() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator, mails=300)
            await annotate(operator, CONFIRM_DELETION)
            operator.faults.before = in_a_second
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(40)
            before = progress(operator)
            assert before["done"] == ["Messages"]
            left = len(operator.world.tables(str(QUEUE)).rows)

            operator.faults.steps.clear()
            operator.controller._deletion = other(operator)
            await move(150)
            assert is_gone(operator)
            assert is_erased(operator)
            steps = [each.operation for each in operator.faults.steps]
            assert ("broker", "delete") not in [each[1:] for each in operator.faults.steps]
            assert steps.count("erase_rows") <= left // 3 + 4

    run(scene())


def other(operator: RunningController) -> Deletion:
    """Return the deletions of an operator that has just begun."""
    made = operator.controller._deletion
    return Deletion(
        made._api,
        made._clusters,
        made._status_writer,
        made._clock,
        made._engines,
        made._orphans,
    )


def test_a_deletion_that_is_forced_lists_what_it_leaves() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator, mails=30)
            operator.faults.plan = away("blobs")
            await operator.delete(MAIL_QUEUE, "outgoing")
            await annotate(operator, CONFIRM_DELETION)
            await move(60)
            message, place = operator.condition("Ready")["message"], f"postroad-system/{ORPHANS}"
            assert f"{FORCE_DELETION}=outgoing" in message
            assert message.endswith(f"lists what is left in ConfigMap {place}")

            await annotate(operator, FORCE_DELETION)
            await move(3)
            assert is_gone(operator)
            assert f"listed in ConfigMap {place}" in operator.events("LeftBehind")[0]["note"]
            assert not operator.world.tables(str(QUEUE)).rows
            (left,) = orphans(operator).values()
            assert set(left["left"]) == {"bytes"}
            assert (left["queue"], left["cluster"]) == ("mail.outgoing", "mail/main")
            assert left["bucket"] == BUCKET
            assert left["command"] == (
                "postroad erase --queue distributed://mail.outgoing --confirm mail.outgoing "
                "--listed-in postroad-system"
            )
            (event,) = operator.events("LeftBehind")
            assert "ConfigMap postroad-system/postroad-orphans" in event["note"]

    run(scene())


def test_a_queue_that_is_made_anew_takes_over_what_was_left() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            operator.faults.plan = away("blobs")
            await operator.delete(MAIL_QUEUE, "outgoing")
            await annotate(operator, FORCE_DELETION)
            await move(30)
            assert is_gone(operator)
            assert set(orphans(operator)) == {"mail.outgoing"}

            operator.faults.plan = no_fault
            await operator.create(mail_queue(NAMESPACE))
            await move(70)
            assert operator.condition("Ready")["status"] == "True"
            assert orphans(operator) == {}

    run(scene())


def test_a_queue_of_the_name_on_another_cluster_leaves_the_entry_without_its_command() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            operator.faults_at[ELSEWHERE] = FaultInjector()
            operator.keyspaces["other"] = MemoryWorld(operator.clock)
            await declare(operator, mails=3)
            other = queue_cluster(NAMESPACE, "other")
            other["spec"]["rabbitmq"]["url"] = ELSEWHERE
            other["spec"]["cassandra"]["keyspace"] = "other"
            await operator.create(other)
            await move(20)
            operator.faults.plan = away("blobs", "view", "broker")
            await operator.delete(MAIL_QUEUE, "outgoing")
            await annotate(operator, FORCE_DELETION)
            await move(60)
            assert is_gone(operator)
            before = orphans(operator)["mail.outgoing"]

            await operator.create(mail_queue(NAMESPACE, clusterRef={"name": "other"}))
            await move(60)
            assert operator.condition("Ready")["status"] == "True"
            assert before.pop("command")
            assert orphans(operator) == {"mail.outgoing": before}

    run(scene())


@pytest.mark.parametrize("text", ["{", "1", "{}"])
def test_an_entry_that_was_edited_by_hand_holds_up_no_queue(text: str) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            wanted = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": ORPHANS, "namespace": "postroad-system"},
                "data": {str(QUEUE): text},
            }
            await operator.user.create(CONFIG_MAP, wanted)
            await declare(operator)
            found = operator.at("configmaps", "postroad-system", ORPHANS)
            assert found
            assert found["data"] == wanted["data"]

    run(scene())


def test_a_queue_without_its_cluster_waits_for_it_or_is_forced() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            found = operator.found(QUEUE_CLUSTER, "main")
            await operator.user.delete(QUEUE_CLUSTER, found)
            while operator.at("queueclusters", NAMESPACE, "main"):
                change = {"metadata": {"finalizers": None}}
                await operator.user.patch(QUEUE_CLUSTER, NAMESPACE, "main", change)
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(150)
            ready = operator.condition("Ready")
            assert ready["reason"] == "DeletionBlocked"
            assert "there is no QueueCluster main" in ready["message"]

            await annotate(operator, FORCE_DELETION)
            await move(3)
            assert is_gone(operator)
            (left,) = orphans(operator).values()
            assert set(left["left"]) == {"messages", "bytes", "rows", "history"}

    run(scene())


def test_mail_of_after_a_restored_backup_is_not_deleted_unasked() -> None:
    """RabbitMQ and S3 have it, and no row names it."""

    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            tables, bucket = operator.world.tables(str(QUEUE)), operator.world.bucket(BUCKET)
            tables.as_of = START
            owner = Owner(tables.incarnation, START + timedelta(hours=9))
            bucket.objects |= {key_of_owner(QUEUE): owner.encode(QUEUE), f"{QUEUE}/late": b"x"}
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(60)
            ready = operator.condition("Ready")
            assert ready["reason"] == "ConfirmationNeeded"
            assert "restored from a backup" in ready["message"]
            assert operator.world.queues(str(QUEUE)).declared

    run(scene())


def test_versions_that_stay_are_named_and_no_success() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            bucket = operator.world.bucket(BUCKET)
            bucket.keeps_versions = True
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(130)
            ready = operator.condition("Ready")
            assert "S3 blocks the bytes: the bucket keeps versions" in ready["message"]
            assert operator.condition("Stalled")["status"] == "True"
            assert operator.events("Deleted") == []

            bucket.keeps_versions = False
            await move(70)
            assert is_gone(operator)
            assert is_erased(operator)

    run(scene())


def test_bytes_of_another_view_hold_up_nothing_and_are_listed() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            bucket = operator.world.bucket(BUCKET)
            bucket.objects[key_of_owner(QUEUE)] = b"what no release wrote"
            bucket.objects[f"{QUEUE}/theirs"] = b"x"
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(10)

            assert is_gone(operator)
            assert f"{QUEUE}/theirs" in bucket.objects
            assert not operator.world.tables(str(QUEUE)).limits.browse_start
            entry = orphans(operator)["mail.outgoing"]
            assert (set(entry["left"]), entry["others"]) == ({"bytes"}, ["bytes"])
            assert "command" not in entry

    run(scene())


def test_the_command_of_the_list_erases_nothing_of_others() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            bucket = operator.world.bucket(BUCKET)
            bucket.objects[key_of_owner(QUEUE)] = b"what no release wrote"
            operator.faults.plan = away("broker")
            await operator.delete(MAIL_QUEUE, "outgoing")
            await annotate(operator, FORCE_DELETION)
            await move(30)

            assert is_gone(operator)
            entry = orphans(operator)["mail.outgoing"]
            assert (set(entry["left"]), entry["others"]) == ({"messages", "bytes"}, ["bytes"])
            assert entry["command"] == (
                "postroad erase --queue distributed://mail.outgoing --confirm mail.outgoing "
                "--part messages --listed-in postroad-system"
            )

    run(scene())


def test_a_copy_in_another_kubernetes_cluster_lists_no_command_that_erases_the_original() -> None:
    """A backup with finalizers that is restored there, over the same servers."""

    async def scene() -> None:
        async with running_controller("one") as one, running_controller("two", one.world) as two:
            await declare(one, mails=3)
            for each in (*secrets(NAMESPACE), queue_cluster(NAMESPACE)):
                await two.create(each)
            copy = mail_queue(NAMESPACE, deletionPolicy="Delete", workers=workers())
            copy["metadata"]["finalizers"] = [FINALIZER]
            await two.create(copy)
            await move(60)
            await two.delete(MAIL_QUEUE, "outgoing")
            await move(60)

            assert is_gone(two)
            entry = orphans(two)["mail.outgoing"]
            assert set(entry["left"]) == set(entry["others"]) == {each.value for each in Part}
            assert "uid-of-one" in entry["left"]["messages"]
            assert "command" not in entry

    run(scene())


def test_a_list_that_cannot_be_written_is_reported_and_waited_for() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            operator.faults.plan = away("blobs")
            await operator.delete(MAIL_QUEUE, "outgoing")
            operator.api.refused |= {("create", "configmaps")}
            await annotate(operator, FORCE_DELETION)
            await move(30)
            listed = operator.condition("OrphansListed")
            assert (listed["status"], listed["reason"]) == ("False", "ListRefused")
            assert "configmaps is forbidden" in listed["message"]
            assert "bytes (exists: blobs is away)" in listed["message"]

            operator.api.refused.clear()
            await move(100)
            assert is_gone(operator)
            assert orphans(operator)

    run(scene())


@pytest.mark.parametrize("also", [set(), {("update", "mailqueues")}], ids=["list", "status too"])
def test_a_list_that_stays_refused_blocks_a_forced_deletion_for_two_hours(
    also: set[tuple[str, str]],
) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            operator.faults.plan = away("blobs")
            await operator.delete(MAIL_QUEUE, "outgoing")
            operator.api.refused |= {("create", "configmaps"), *also}
            await annotate(operator, FORCE_DELETION)
            await move(7000)
            assert not is_gone(operator)

            await move(400)
            assert is_gone(operator)
            (event,) = operator.events("LeftBehind")
            assert "not listed in ConfigMap postroad-system/postroad-orphans" in event["note"]
            assert "bytes (exists: blobs is away)" in event["note"]

    run(scene())


def test_a_queue_whose_limits_are_lost_asks_before_its_mail_is_deleted() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator, mails=17)
            operator.world.tables(str(QUEUE)).limits = Limits(None, None)
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(60)
            ready = operator.condition("Ready")
            assert ready["reason"] == "ConfirmationNeeded"
            assert ready["message"].startswith("mails may wait: Cassandra has no limits")
            assert operator.world.queues(str(QUEUE)).declared
            assert len(operator.world.bucket(BUCKET).objects) > 16

            await annotate(operator, CONFIRM_DELETION)
            await move(3)
            assert is_gone(operator)

    run(scene())


def test_progress_of_a_backup_is_none_where_the_deletion_comes_first() -> None:
    """The MailQueue is restored and deleted while no operator runs."""

    async def scene() -> None:
        async with running_controller() as former:
            await declare(former, mails=3)
        found, at = former.found(), "2025-12-24T00:00:00Z"
        deletion = {"beganAt": at, "progressedAt": at, "done": ["Messages", "Bytes", "Rows"]}
        restored = {**found, "status": {**found["status"], "deletion": deletion}}
        await former.user.replace_status(MAIL_QUEUE, restored)
        await former.delete(MAIL_QUEUE, "outgoing")
        async with running_controller(beside=former) as operator:
            await move(60)
            assert operator.condition("Ready")["reason"] == "ConfirmationNeeded"
            await annotate(operator, CONFIRM_DELETION)
            await move(60)
            assert is_gone(operator)
            assert is_erased(operator)

    run(scene())


def test_progress_that_a_backup_brings_back_is_no_progress() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator, mails=3)
            found, at = operator.found(), "2026-01-01T00:00:00Z"
            done = ["Messages", "Bytes", "Rows", "History"]
            deletion = {"beganAt": at, "progressedAt": at, "done": done}
            restored = {**found, "status": {**found["status"], "deletion": deletion}}
            await operator.user.replace_status(MAIL_QUEUE, restored)
            await move(60)
            assert "deletion" not in operator.found()["status"]
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(60)
            assert operator.condition("Ready")["reason"] == "ConfirmationNeeded"

    run(scene())
