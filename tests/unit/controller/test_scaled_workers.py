"""The operator scales workers by what is due, over servers and Kubernetes in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from contract.queue_harness import plain_mail
from postroad.adapters.memory.broker import BrokerQueues, MemoryBroker
from postroad.adapters.memory.servers import FixedConfiguration, MemoryServers
from postroad.controller.kubernetes.api import AUTOSCALERS, DEPLOYMENT, MAIL_QUEUE, QUEUE_CLUSTER
from postroad.controller.mailqueue import plan
from postroad.controller.mailqueue.queues import Queues
from postroad.distributed.engine.engine import Parts
from postroad.distributed.mail_queue import DistributedQueue
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.names import QueueName
from postroad.domain.queues.selection import Selector
from postroad.errors import BrokerUnavailable, KubernetesUnavailable
from support.deployments import scale
from support.manual_loop import move, run
from support.memory.clock import SeededRandomness
from support.memory.fault_injection import Fault, FaultInjector, no_fault
from support.memory.kubernetes.world import ObjectPlace
from support.resources import intake, workers
from support.resources import mail_queue as declared_queue
from support.running_controller import NAMESPACE, RunningController, running_controller

NAME = QueueName(NAMESPACE, "outgoing")
WORKERS = ObjectPlace("deployments", NAMESPACE, "outgoing-worker")
SOON = 6
"""Seconds to a probe of the broker and the reconcile that follows."""

A_COUNT = 40
AN_HOUR = 3600

SHORT_SLICES = {"view": {"sliceWindow": "1m"}}
"""Browse start is about as old as the rows are."""


def autoscaled(least: int = 0, most: int = 8, **rules: Any) -> dict[str, Any]:
    bounds = {"minReplicas": least, "maxReplicas": most, "mailsPerWorker": 10}
    return workers() | {"autoscaling": bounds | rules}


@asynccontextmanager
async def declared(**spec: Any) -> AsyncIterator[RunningController]:
    async with running_controller() as operator:
        await operator.declare(**({"workers": autoscaled()} | spec))
        await move(A_COUNT)
        yield operator


def mail_queue(operator: RunningController, name: QueueName = NAME) -> DistributedQueue:
    """Return the queue as a program uses it."""
    servers = MemoryServers(operator.world, FaultInjector())
    return DistributedQueue(
        Parts(
            name=name,
            broker=servers.broker(name, delivery_limit=20),
            view=servers.views().view(str(name)),
            blobs=servers.blobs(name.bucket("postroad-")),
            configuration=FixedConfiguration(ViewConfiguration()),
            clock=operator.clock,
            randomness=SeededRandomness(1),
            delivery_limit=20,
        )
    )


def replicas(operator: RunningController, name: str = NAME.name) -> int:
    found: dict[str, Any] = operator.found(DEPLOYMENT, f"{name}-worker")["spec"]
    number: int = found["replicas"]
    return number


def status(operator: RunningController) -> dict[str, Any]:
    found: dict[str, Any] = operator.found()["status"]["workers"]
    return found


async def deliver_all(queue: DistributedQueue, count: int) -> None:
    items = queue.dequeue(50)
    for _ in range(count):
        item = await anext(items)
        await item.done()
    await items.aclose()  # type: ignore[attr-defined]


def test_from_nothing_to_the_bound_and_back_and_the_spec_stays() -> None:
    async def scene() -> None:
        async with declared() as operator:
            generation = operator.found()["metadata"]["generation"]
            assert replicas(operator) == 0
            queue = mail_queue(operator)
            for number in range(200):
                await queue.enqueue(plain_mail(str(number)))
            await move(SOON)
            assert (replicas(operator), status(operator)["desired"]) == (8, 8)
            assert operator.events("Scaled")[0]["note"].startswith(
                "from 0 to 8 workers: more mails"
            )

            await deliver_all(queue, 200)
            await move(A_COUNT)
            assert (replicas(operator), status(operator)["reason"]) == (8, "FewerLater")
            await move(AN_HOUR)
            assert (replicas(operator), (await queue.size()).size) == (0, 0)
            assert status(operator)["reason"] == "EnoughWorkers"
            assert operator.found()["metadata"]["generation"] == generation
            assert operator.condition("WorkersReady")["status"] == "True"

    run(scene())


def test_a_change_is_an_event_though_a_reconcile_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    carry_out, failures = Queues._reported, 0

    async def fail_twice(queues: Queues, *of: Any) -> Any:
        nonlocal failures
        failures += 1
        if failures <= 2:
            raise KubernetesUnavailable("etcdserver: request timed out")
        return await carry_out(queues, *of)

    async def scene() -> None:
        async with declared() as operator:
            monkeypatch.setattr(Queues, "_reported", fail_twice)
            queue = mail_queue(operator)
            for number in range(20):
                await queue.enqueue(plain_mail(str(number)))
            await move(A_COUNT)
            assert failures > 2
            assert replicas(operator) == 2
            notes = [each["note"] for each in operator.events("Scaled")]
            assert [each.split(":")[0] for each in notes] == ["from 0 to 2 workers"]

    run(scene())


def test_cassandra_is_asked_no_sooner_where_there_are_no_workers() -> None:
    asked: list[int] = []

    async def scene(spec: dict[str, Any]) -> None:
        async with declared(workers=spec) as operator:
            before = len(operator.faults.steps)
            await move(AN_HOUR)
            asked.append(sum(each.server == "view" for each in operator.faults.steps[before:]))

    run(scene(workers()))
    run(scene(autoscaled()))
    assert asked[1] <= asked[0] * 1.05


def test_mail_that_is_held_or_delayed_wakes_no_worker_until_it_is_due() -> None:
    async def scene() -> None:
        async with declared() as operator:
            queue = mail_queue(operator)
            await queue.enqueue(plain_mail("held"), delay=timedelta(hours=1))
            await queue.hold(Selector.all())
            await move(5 * A_COUNT)
            assert replicas(operator) == 0

            await queue.release(Selector.all())
            await queue.flush(Selector.all())
            await move(A_COUNT)
            assert replicas(operator) == 1

    run(scene())


def test_broker_that_does_not_answer_is_asked_again() -> None:
    async def scene() -> None:
        async with declared() as operator:
            operator.faults.plan = lambda step: Fault.AWAY if step.operation == "ready" else None
            await move(A_COUNT)
            operator.faults.plan = no_fault
            await mail_queue(operator).enqueue(plain_mail("waits"))
            await move(SOON)
            assert replicas(operator) == 1

    run(scene())


@asynccontextmanager
async def with_failing_probes(
    names: Collection[str], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[RunningController, list[str]]]:
    """Run an operator of four queues without workers, and a broker that fails for some of them;
    yields the names of those that it was asked about, too."""
    asked: list[str] = []
    true_answer = MemoryBroker.ready

    async def ready(self: MemoryBroker) -> int:
        (name,) = (each for each in all_names if queues_of(operator, each) is self.queues)
        asked.append(name)
        if name in names:
            raise error("no answer")
        return await true_answer(self)

    all_names = ("outgoing", "a", "b", "z")

    def queues_of(operator: RunningController, name: str) -> BrokerQueues:
        return operator.world.queues(str(QueueName(NAMESPACE, name)))

    async with declared() as operator:
        for name in all_names[1:]:
            await operator.create(declared_queue(NAMESPACE, name, workers=autoscaled()))
        await move(A_COUNT)
        monkeypatch.setattr(MemoryBroker, "ready", ready)
        yield operator, asked


@pytest.mark.parametrize("error", [BrokerUnavailable, TimeoutError, RuntimeError])
def test_queues_that_the_broker_fails_for_keep_no_other_one_asleep(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        failing = {"outgoing", "a", "b"}
        async with with_failing_probes(failing, error, monkeypatch) as (operator, _):
            await move(2 * SOON)
            await mail_queue(operator, QueueName(NAMESPACE, "z")).enqueue(plain_mail("waits"))
            await move(SOON)
            assert (replicas(operator, "z"), replicas(operator)) == (1, 0)

    run(scene())


def test_broker_that_is_away_is_asked_about_few_queues_and_about_each_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        names = {"outgoing", "a", "b", "z"}
        async with with_failing_probes(names, BrokerUnavailable, monkeypatch) as (_, asked):
            await move(4 * SOON)
            assert {*asked[:4]} == names
            assert len(asked) <= 2 * (4 * SOON // 3 + 1)

    run(scene())


def test_unexpected_error_of_a_probe_is_logged_once_and_reconciles_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with with_failing_probes({"a"}, RuntimeError, monkeypatch) as (operator, asked):
            await move(4 * SOON)
            assert asked.count("a") > 2
            await operator.change({"workers": {"autoscaling": {"minReplicas": 3}}})
            await move(SOON)
            assert replicas(operator) == 3

    run(scene())
    assert caplog.text.count("a broker was not asked for messages") == 1


def test_mail_that_the_broker_lost_wakes_a_worker_by_the_count() -> None:
    async def scene() -> None:
        async with declared() as operator:
            await mail_queue(operator).enqueue(plain_mail("lost"))
            operator.world.queues(str(NAME)).ready.clear()
            await move(A_COUNT)
            assert replicas(operator) == 1

    run(scene())


async def hold_a_mail(operator: RunningController) -> None:
    """Let one mail wait that is held, without a message, in rows that live for 12 hours."""
    cassandra = {"spec": {"cassandra": {"rowLifetime": "12h"}}}
    assert await operator.user.patch(QUEUE_CLUSTER, NAMESPACE, "main", cassandra)
    queue = mail_queue(operator)
    await queue.enqueue(plain_mail("held"))
    await queue.hold(Selector.all())
    operator.world.queues(str(NAME)).ready.clear()


@pytest.mark.parametrize("has_intake", [False, True])
def test_queue_without_an_intake_gets_a_worker_now_and_then_while_mail_waits(
    has_intake: bool,
) -> None:
    async def scene() -> None:
        spec: dict[str, Any] = {"intake": intake(replicas=1)} if has_intake else {}
        async with declared(**spec, **SHORT_SLICES) as operator:
            await hold_a_mail(operator)
            await move(2 * AN_HOUR)
            assert replicas(operator) == 0
            await move(AN_HOUR - 60)
            assert replicas(operator) == (0 if has_intake else 1)

    run(scene())


def test_worker_for_the_rows_is_not_taken_away_before_its_pod_was_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        async with declared(**SHORT_SLICES) as operator:
            await hold_a_mail(operator)
            with monkeypatch.context() as slow:
                slow.setattr(plan, "has_ready_pods", lambda _: False)
                await move(4 * AN_HOUR)
                assert replicas(operator) == 1
            await move(AN_HOUR)
            assert replicas(operator) == 0

    run(scene())


def test_operators_that_begin_wake_a_worker_for_rows_that_are_old_and_for_no_others() -> None:
    async def scene() -> None:
        async with declared(**SHORT_SLICES) as operator:
            await hold_a_mail(operator)
        found = []
        for _ in range(3):
            async with running_controller(beside=operator) as operator:
                operator.fill_indexes()
                await move(A_COUNT)
                found.append(replicas(operator))
                await move(1.6 * AN_HOUR)
                assert replicas(operator) == 0
        assert found == [0, 0, 1]

    run(scene())


def test_operator_that_begins_keeps_the_workers_for_as_long_as_the_one_before() -> None:
    async def scene() -> None:
        async with declared(workers=autoscaled(1) | {"replicas": 6}) as first:
            assert replicas(first) == 6
        async with running_controller(beside=first) as operator:
            operator.fill_indexes()
            await move(500)
            assert replicas(operator) == 6
            await move(200)
            assert replicas(operator) == 1

    run(scene())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"workers": {"autoscaling": {"minReplicas": 3}}}, 3),
        ({"workers": {"autoscaling": None, "replicas": 4}}, 4),
        ({"workers": {"replicas": 5}}, 0),
        ({"paused": True}, 0),
    ],
    ids=["bounds", "taken away", "replicas alone", "paused"],
)
def test_change_of_the_spec_has_its_effect_at_once(change: dict[str, Any], expected: int) -> None:
    async def scene() -> None:
        async with declared() as operator:
            await operator.change(change)
            await move(SOON)
            assert replicas(operator) == expected
            if change == {"paused": True}:
                await mail_queue(operator).enqueue(plain_mail("waits"))
                await move(A_COUNT)
                assert replicas(operator) == 0
                await operator.change({"paused": False})
                await move(A_COUNT)
                assert replicas(operator) == 1

    run(scene())


def test_a_budget_is_there_before_there_are_two() -> None:
    async def scene() -> None:
        async with declared() as operator:
            assert operator.at("poddisruptionbudgets", NAMESPACE, "outgoing-worker")

    run(scene())


@pytest.mark.parametrize("of", ["Deployment", "MailQueue"])
def test_another_autoscaler_decides_until_it_is_deleted(of: str) -> None:
    horizontal = AUTOSCALERS[0]
    target = {"kind": of, "name": "outgoing" if of == "MailQueue" else "outgoing-worker"}
    wanted = {
        "apiVersion": horizontal.api_version,
        "kind": horizontal.name,
        "metadata": {"name": "any", "namespace": NAMESPACE},
        "spec": {"scaleTargetRef": target},
    }
    places = {"Deployment": WORKERS, "MailQueue": ObjectPlace("mailqueues", NAMESPACE, "outgoing")}

    async def scene() -> None:
        async with declared() as operator:
            made = await operator.user.create(horizontal, wanted)
            scale(operator.kubernetes, places[of], 12, "kube-controller-manager")
            if of == "MailQueue":
                await operator.change({"workers": {"replicas": 12}})
            await move(A_COUNT)
            assert (replicas(operator), status(operator)["reason"]) == (12, "AutoscalerDecides")
            await mail_queue(operator).enqueue(plain_mail("waits"))
            await move(AN_HOUR)
            assert replicas(operator) == 12

            await operator.user.delete(horizontal, made)
            await move(60)
            assert replicas(operator) == 8, "its bound"
            await move(AN_HOUR)
            assert replicas(operator) == 1

    run(scene())


def test_status_of_a_queue_that_is_paused_follows_its_last_worker_to_none() -> None:
    async def scene() -> None:
        async with declared(workers=autoscaled(least=1)) as operator:
            assert operator.found()["status"]["workers"]["ready"] == 1
            before = operator.found()["status"]["workers"]
            await operator.change({"paused": True})
            await move(A_COUNT)
            assert operator.found()["status"]["workers"] == before

            scale(operator.kubernetes, WORKERS, 0, "kubectl")
            await move(SOON)
            after = operator.found()["status"]["workers"]
            assert {each: after[each] for each in ("ready", "desired", "replicas")} == {
                "ready": 0,
                "desired": 0,
                "replicas": 0,
            }
            assert after["selector"] == before["selector"]
            assert replicas(operator) == 0, "nothing is changed"

    run(scene())


def test_queue_that_is_deleted_or_paused_is_asked_for_no_messages() -> None:
    async def scene() -> None:
        async with declared(deletionPolicy="Delete") as operator:
            assert "ready" in await asked(operator)
            await operator.change({"paused": True})
            await move(A_COUNT)
            assert "ready" not in await asked(operator)

            await operator.change({"paused": False})
            queue = mail_queue(operator)
            await queue.enqueue(plain_mail("held"))
            await queue.hold(Selector.all())
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(A_COUNT)
            assert operator.found()["metadata"]["deletionTimestamp"], "it waits for an answer"
            assert "ready" not in await asked(operator)

    async def asked(operator: RunningController) -> list[str]:
        before = len(operator.faults.steps)
        await move(60)
        return [each.operation for each in operator.faults.steps[before:]]

    run(scene())
