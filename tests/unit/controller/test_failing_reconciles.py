"""Reconciles that fail as a whole, or in one part: what the status, Events and metrics show."""

from __future__ import annotations

from datetime import UTC, datetime

from prometheus_client import REGISTRY

from postroad.controller.kubernetes.api import DEPLOYMENT, MAIL_QUEUE, QUEUE_CLUSTER
from postroad.controller.status.status_writer import MAX_UNREPORTED
from postroad.errors import KubernetesConflict, KubernetesRefused, KubernetesUnavailable
from support.manual_loop import move, run
from support.memory.fault_injection import Step, away, no_fault
from support.resources import mail_queue, queue_cluster, secrets, workers
from support.running_controller import NAMESPACE, RunningController, running_controller

WEBHOOK = '500 Internal error occurred: failed calling webhook "x"'


def failing_since(name: str = "outgoing") -> datetime | None:
    labels = {"kind": "MailQueue", "namespace": NAMESPACE, "name": name}
    found = REGISTRY.get_sample_value("postroad_reconcile_failing_since_timestamp_seconds", labels)
    return None if found is None else datetime.fromtimestamp(found, UTC)


def fail(operator: RunningController, request: str, error: Exception, *, times: int = -1) -> None:
    """Let requests that begin with a text fail, so many times."""
    left = times

    async def before(step: Step) -> None:
        nonlocal left
        if left and step.operation.startswith(request):
            left -= 1
            raise error

    operator.api.faults.before = before


def test_server_that_goes_away_is_reported_while_a_child_cannot_be_written() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers(2))
            fail(operator, "patch deployments", KubernetesUnavailable(WEBHOOK))
            await operator.change({"workers": {"concurrency": 17}})
            await move(30)
            assert operator.condition("WorkersReady")["message"] == WEBHOOK
            assert operator.condition("BrokerReady")["status"] == "True"

            operator.faults.plan = away("broker")
            await move(120)
            assert operator.condition("BrokerReady")["reason"] == "BrokerUnavailable"
            assert operator.condition("WorkersReady")["message"] == WEBHOOK

    run(scene())


def test_workers_that_cannot_be_made_again_are_counted_as_none() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers(2))
            await move(20)
            assert operator.found()["status"]["workers"]["ready"] == 2
            fail(operator, "patch deployments", KubernetesUnavailable(WEBHOOK))
            await operator.delete(DEPLOYMENT, "outgoing-worker")
            await move(30)
            assert operator.condition("Ready")["message"] == WEBHOOK
            assert operator.found()["status"]["workers"]["ready"] == 0

    run(scene())


def test_one_request_without_an_answer_changes_no_condition() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers())
            before = operator.found()["status"]["conditions"]
            fail(operator, "patch deployments", KubernetesUnavailable(WEBHOOK), times=1)
            await operator.change({"workers": {"concurrency": 17}})
            await move(30)
            assert operator.events("KubernetesUnavailable") == []
            types = [(each["type"], each["status"]) for each in before]
            now = operator.found()["status"]["conditions"]
            assert [(each["type"], each["status"]) for each in now] == types
            assert operator.found()["status"]["observedGeneration"] == 2

    run(scene())


def test_api_server_that_does_not_answer_shows_in_a_metric_alone() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers())
            before = operator.found()["status"]
            assert failing_since() is None
            began = operator.clock.now()
            operator.api.faults.plan = away("kubernetes")
            await operator.change({"workers": {"concurrency": 17}})
            await move(600)
            assert operator.found()["status"] == before
            since = failing_since()
            assert since is not None
            assert (since - began).total_seconds() < 5

            operator.api.faults.plan = no_fault
            await move(460)
            assert failing_since() is None
            assert operator.found()["status"]["observedGeneration"] == 2

    run(scene())


def test_status_that_the_api_server_refuses_becomes_one_that_it_takes() -> None:
    """A value is too long: Ready=Unknown is written without it, at the generation before."""

    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers())
            put = operator.kubernetes.put

            def checked(place, wanted):  # type: ignore[no-untyped-def]
                history = (wanted.get("status") or {}).get("configuration") or {}
                if place.plural == "mailqueues" and history.get("version") == 2:
                    raise KubernetesRefused("422 status.configuration.version: Too long")
                return put(place, wanted)

            operator.kubernetes.put = checked  # type: ignore[method-assign]
            await operator.change({"view": {"bucketCount": 7}})
            await move(60)
            found = operator.found()
            assert operator.condition("Ready")["status"] == "Unknown"
            assert "Too long" in operator.condition("Ready")["message"]
            assert operator.condition("Reconciling")["status"] == "True"
            assert (found["metadata"]["generation"], found["status"]["observedGeneration"]) == (
                2,
                1,
            )
            assert "Too long" in operator.events("KubernetesRefused")[0]["note"]

            operator.kubernetes.put = put  # type: ignore[method-assign]
            await move(460)
            assert operator.condition("Ready")["status"] == "True"
            assert operator.condition("Reconciling")["status"] is None

    run(scene())


def test_failure_of_a_resource_that_is_gone_has_no_sample() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers())
            fail(operator, "patch deployments", KubernetesUnavailable(WEBHOOK))
            await operator.change({"workers": {"concurrency": 17}})
            await move(30)
            assert failing_since() is not None
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(10)
            assert failing_since() is None

    run(scene())


def test_failing_reconcile_writes_no_status_of_another_class() -> None:
    async def scene() -> None:
        async with running_controller(operator_class="canary") as operator:
            fail(operator, "get", KubernetesUnavailable(WEBHOOK))
            for each in (*secrets(NAMESPACE), queue_cluster(NAMESPACE)):
                await operator.create(each)
            await operator.create(mail_queue(NAMESPACE))
            await move(60)
            assert "conditions" not in operator.found()["status"]
            assert "conditions" not in operator.found(QUEUE_CLUSTER, "main")["status"]

    run(scene())


def test_deletion_that_the_api_server_blocks_says_how_to_force_it() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(deletionPolicy="Delete", workers=workers(1))
            fail(operator, "delete deployments", KubernetesUnavailable(WEBHOOK))
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(60)
            ready = operator.condition("Ready")
            assert ready["reason"] == "DeletionBlocked"
            assert ready["message"].startswith(WEBHOOK)
            assert "force-deletion=outgoing" in ready["message"]
            operator.api.faults.before = None
            await move(80)
            assert operator.at("mailqueues", NAMESPACE, "outgoing") is None

    run(scene())


def test_conflict_that_stays_is_reported_and_repeated_more_slowly() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers())
            fail(operator, "update mailqueues", KubernetesConflict("409 has been modified"))
            await operator.change({"workers": {"concurrency": 17}})
            await move(30)
            before = len(operator.calls)
            await move(600)
            writes = [each for each in operator.calls[before:] if each.startswith("update mailq")]
            assert len(writes) < 20 * MAX_UNREPORTED
            assert "409" in operator.events("StatusNotWritten")[0]["note"]

    run(scene())
