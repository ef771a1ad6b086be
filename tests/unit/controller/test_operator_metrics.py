"""What the operator counts, and what it reports of resources at each scrape."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from prometheus_client import REGISTRY

from postroad.controller.kubernetes.api import CONFIG_MAP, DEPLOYMENT, MAIL_QUEUE
from postroad.controller.status.status_writer import ResourceStates
from postroad.domain.queues.names import QueueName
from postroad.ports.kubernetes import Object
from support.manual_loop import move, run
from support.memory.fault_injection import away
from support.resources import mail_queue, workers
from support.running_controller import NAMESPACE, RunningController, running_controller


def value(metric: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(metric, labels) or 0.0


def condition(name: str, status: str, of: str = "outgoing") -> float:
    return value(
        "postroad_resource_condition",
        kind="MailQueue", namespace=NAMESPACE, name=of, type=name, status=status,
    )  # fmt: skip


def errors(server: str, error: str) -> float:
    return value("postroad_server_errors_total", server=server, error=error)


@asynccontextmanager
async def declared() -> AsyncIterator[RunningController]:
    async with running_controller() as operator:
        await operator.declare(workers=workers())
        await move(30)
        yield operator


def test_an_error_of_a_server_is_counted_and_its_condition_reported() -> None:
    async def scene() -> None:
        async with declared() as operator:
            before = errors("rabbitmq", "BrokerUnavailable")
            assert (condition("Ready", "True"), condition("BrokerReady", "True")) == (1, 1)

            operator.faults.plan = away("broker")
            await move(20)

            assert errors("rabbitmq", "BrokerUnavailable") > before
            assert (condition("BrokerReady", "True"), condition("BrokerReady", "False")) == (0, 1)

    run(scene())


def test_errors_of_the_api_server_are_counted() -> None:
    async def scene() -> None:
        async with declared() as operator:
            before = errors("kubernetes", "KubernetesUnavailable")
            failed = value("postroad_reconciles_total", kind="MailQueue", result="error")

            operator.api.faults.plan = away("kubernetes")
            await operator.change({"retry": {"maxAge": "48h"}})
            await move(5)

            assert errors("kubernetes", "KubernetesUnavailable") > before
            assert value("postroad_reconciles_total", kind="MailQueue", result="error") > failed

    run(scene())


def test_a_resource_that_is_gone_has_no_samples() -> None:
    async def scene() -> None:
        async with declared() as operator:
            await operator.create(mail_queue(NAMESPACE, "second"))
            await move(40)
            assert condition("Ready", "True", of="second") == 1
            mails = {"namespace": NAMESPACE, "name": "second", "state": "waiting"}
            assert REGISTRY.get_sample_value("postroad_queue_mails", mails) == 0

            await operator.delete(MAIL_QUEUE, "second")
            await move(5)

            assert condition("Ready", "True", of="second") == 0
            assert REGISTRY.get_sample_value("postroad_queue_mails", mails) is None

    run(scene())


def test_the_states_of_mails_add_up_to_all_of_them() -> None:
    states = ResourceStates()
    found: Object = {"kind": "MailQueue", "metadata": {"uid": "u", "namespace": "a", "name": "b"}}
    states.record(found, {"size": 10, "delayed": 3, "held": 2, "deadLetters": 4})

    counts = dict(states.mails())
    assert counts["a", "b", "waiting"] == 5
    assert sum(counts.values()) == 10 + 4
    assert dict(states.due_mails()) == {("a", "b"): 5}


def test_the_release_of_a_process_is_a_metric() -> None:
    labels = {"version": version("postroad")}
    assert REGISTRY.get_sample_value("postroad_build_info", labels) == 1


def test_resources_that_wait_for_a_reconcile_are_reported() -> None:
    async def scene() -> None:
        async with declared() as operator:
            assert value("postroad_workqueue_depth", urgency="change") == 0
            for number in range(20):
                await operator.create(mail_queue(NAMESPACE, f"queue-{number}"))
            for _ in range(50):
                await asyncio.sleep(0)
                if value("postroad_workqueue_depth", urgency="change"):
                    break

            waiting = value("postroad_workqueue_depth", urgency="change")
            assert REGISTRY.get_sample_value("postroad_workqueue_oldest_seconds") is not None
            await move(20)

            assert waiting > 0
            assert value("postroad_workqueue_depth", urgency="change") == 0

    run(scene())


def test_a_repair_is_counted_and_repeated_ones_are_one_event() -> None:
    async def scene() -> None:
        async with declared() as operator:
            before = value("postroad_repairs_total", object="child")

            for _ in range(3):
                await operator.delete(DEPLOYMENT, "outgoing-worker")
                await move(61)

            assert value("postroad_repairs_total", object="child") == before + 3
            (event,) = operator.events("Repaired")
            assert event["note"].startswith("Deployment outgoing-worker was deleted")
            assert event["series"]["count"] == 3
            assert event["series"]["lastObservedTime"] > event["eventTime"]

            change = {"data": {"POSTROAD_QUEUE": "another"}}
            await operator.user.patch(CONFIG_MAP, NAMESPACE, "outgoing-queue", change)
            await move(5)

            notes = {each["note"].partition(";")[0] for each in operator.events("Repaired")}
            assert "ConfigMap outgoing-queue was changed" in notes

    run(scene())


def test_what_the_operator_makes_or_changes_itself_is_no_repair() -> None:
    async def scene() -> None:
        async with declared() as operator:
            await operator.change({"workers": {**workers(), "concurrency": 3}})
            await move(5)
            await operator.change({"workers": None})
            await move(5)
            await operator.change({"workers": workers()})
            await move(5)

            assert operator.events("Repaired") == []

    run(scene())


def test_repairs_at_servers_are_counted() -> None:
    async def scene() -> None:
        async with declared() as operator:
            before = [value("postroad_repairs_total", object=each) for each in ("queues", "bucket")]
            name, servers = QueueName(NAMESPACE, "outgoing"), operator.connected[-1]
            await servers.broker(name).delete()
            await servers.blobs(name.bucket("postroad-")).drop()

            await move(400)

            after = [value("postroad_repairs_total", object=each) for each in ("queues", "bucket")]
            assert after == [each + 1 for each in before]

    run(scene())
