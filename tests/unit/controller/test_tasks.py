"""MailQueueTasks over an API server in memory, with Jobs whose pods leave their counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import pytest
from prometheus_client import REGISTRY

from postroad.controller.kubernetes.api import (
    BEGUN,
    CRON_JOB,
    JOB,
    MAIL_QUEUE,
    MAIL_QUEUE_TASK,
    SECRET,
    USER_SINCE,
)
from postroad.controller.status.conditions import timestamp
from postroad.controller.task.runs import first_of
from postroad.errors import KubernetesRefused
from postroad.ports.kubernetes import Object
from support.jobs import JobPods
from support.manual_loop import move, run
from support.memory.fault_injection import Fault, Step
from support.resources import mail_queue, task
from support.running_controller import NAMESPACE, RunningController, running_controller
from unit.controller.test_queue_logins import LOGIN as LOGIN_SECRET
from unit.controller.test_queue_logins import declare as declare_with_users
from unit.controller.test_queue_logins import letters, login

SPAM: dict[str, Any] = {"operation": "Remove", "selector": {"sender": "spammer@example.org"}}
COUNTED = {"count": '{"matched": 12}', "task": '{"done": 11}'}


@asynccontextmanager
async def declared(**spec: Any) -> AsyncIterator[tuple[RunningController, JobPods]]:
    async with running_controller() as operator:
        await operator.declare(**spec)
        yield operator, JobPods(operator.kubernetes)


def status(operator: RunningController, name: str = "task") -> dict[str, Any]:
    found: dict[str, Any] = operator.found(MAIL_QUEUE_TASK, name)["status"]
    return found


def truths(operator: RunningController, name: str = "task") -> dict[str, str]:
    return {each["type"]: each["status"] for each in status(operator, name)["conditions"]}


def reason(operator: RunningController, name: str = "task") -> str:
    found: str = operator.condition("Ready", MAIL_QUEUE_TASK, name)["reason"]
    return found


def only(found: list[Object]) -> Object:
    (one,) = found
    return one


def test_a_task_runs_a_job_and_reports_what_it_counted() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.create(task(NAMESPACE, **SPAM))
            await move(3)
            job = only(pods.jobs())
            assert status(operator)["phase"] == "Running"
            assert truths(operator) == {
                "Ready": "False",
                "Complete": "False",
                "Reconciling": "True",
            }

            await pods.begin(job, count=COUNTED["count"])
            await move(3)
            assert (status(operator)["matched"], status(operator).get("done")) == (12, None)

            await pods.begin(job, **COUNTED)
            await pods.end(job)
            await move(3)
            assert status(operator)["phase"] == "Completed"
            assert truths(operator) == {"Ready": "True", "Complete": "True"}
            assert (status(operator)["done"], status(operator)["failed"]) == (11, 0)
            assert status(operator)["message"] == "Remove: 11 of 12 mails"
            assert status(operator)["startedAt"] <= status(operator)["finishedAt"]
            assert status(operator)["observedGeneration"] == 1

    run(scene())


def test_a_run_that_fails_has_its_error_and_what_is_left() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.create(task(NAMESPACE, **SPAM))
            await move(3)
            error = json.dumps({"done": 4, "error": "Cassandra is away"})
            await pods.begin(only(pods.jobs()), count=COUNTED["count"], task=error)
            await pods.end(only(pods.jobs()), "Failed", "it reached the backoff limit")
            await move(3)

            assert status(operator)["phase"] == "Failed"
            assert truths(operator) == {"Ready": "False", "Complete": "False", "Stalled": "True"}
            assert status(operator)["message"] == "Remove: 4 of 12 mails; Cassandra is away"
            assert (status(operator)["done"], status(operator)["failed"]) == (4, 8)

    run(scene())


def test_counts_of_pods_that_were_killed_are_added_and_never_go_down() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.create(task(NAMESPACE, **SPAM))
            await move(3)
            job = only(pods.jobs())
            await pods.begin(job, count='{"matched": 12}', task='{"done": 4}        ')
            await move(40)
            assert status(operator)["done"] == 4
            await pods.begin(job, count='{"matched": 8}', task='{"done": 8}')
            await pods.end(job)
            await move(3)
            assert (status(operator)["matched"], status(operator)["done"]) == (12, 12)

    run(scene())


def test_a_purge_counts_in_each_pod_all_that_is_removed() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.create(task(NAMESPACE, operation="Purge"))
            await move(3)
            job = only(pods.jobs())
            await pods.begin(job, count='{"matched": 12}', task='{"done": 4, "repeated": 4}')
            await pods.begin(job, count='{"matched": 0}', task='{"done": 12, "repeated": 12}')
            await pods.end(job)
            await move(3)
            assert (status(operator)["matched"], status(operator)["done"]) == (12, 12)

    run(scene())


@pytest.mark.parametrize(
    "message", ["", "{", "[1]", '{"done": -1}', '{"done": "x"}', '{"done": 1e400}', "[" * 5000]
)
def test_what_a_pod_leaves_that_is_no_count_is_left_out(message: str) -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.create(task(NAMESPACE, operation="Maintain"))
            await move(3)
            await pods.begin(only(pods.jobs()), task=message)
            await pods.end(only(pods.jobs()))
            await move(3)
            assert status(operator)["phase"] == "Completed"
            assert "done" not in status(operator)
            assert status(operator)["message"] == "Maintain"

    run(scene())


@pytest.mark.parametrize(
    ("left", "error"),
    [
        ('{"error": "no \\ud800 \\u001b[2J"}', "no \\ud800 \\u001b[2J"),
        (f'{{"error": {"[" * 500}{"]" * 500}}}', "it reached the backoff limit"),
        ('{"error": ["a"]}', "it reached the backoff limit"),
        (f'{{"counts": {"[" * 4000}', "it reached the backoff limit"),
    ],
)
def test_a_run_that_fails_ends_whatever_text_its_pod_left(left: str, error: str) -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.create(task(NAMESPACE, **SPAM))
            await move(3)
            await pods.begin(only(pods.jobs()), task=left)
            await pods.end(only(pods.jobs()), "Failed", "it reached the backoff limit")
            await move(3)

            assert status(operator)["phase"] == "Failed"
            assert status(operator)["message"] == f"Remove; {error}"
            notes = {each["note"] for each in operator.events("TaskFailed")}
            assert notes == {f"Remove; {error}, MailQueueTask task, by user"}

    run(scene())


def test_an_applied_task_that_is_applied_again_is_not_done_again() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            wanted = task(NAMESPACE, **SPAM)
            await operator.user.apply(MAIL_QUEUE_TASK, wanted)
            await move(3)
            await pods.begin(only(pods.jobs()), **COUNTED)
            await pods.end(only(pods.jobs()))
            await move(3)
            before = operator.found(MAIL_QUEUE_TASK, "task")
            await operator.user.apply(MAIL_QUEUE_TASK, wanted)
            await operator.delete(JOB, only(pods.jobs())["metadata"]["name"])
            await move(400)

            assert pods.jobs() == []
            assert operator.found(MAIL_QUEUE_TASK, "task")["status"] == before["status"]

    run(scene())


def test_a_copy_of_a_task_that_was_begun_is_not_done_again() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.create(task(NAMESPACE, **SPAM))
            await move(3)
            found = operator.found(MAIL_QUEUE_TASK, "task")
            await operator.delete(MAIL_QUEUE_TASK, "task")
            await move(3)
            assert pods.jobs() == []
            copied = {key: found[key] for key in ("apiVersion", "kind", "spec")}
            kept = {key: found["metadata"][key] for key in ("name", "namespace", "annotations")}
            await operator.create({**copied, "metadata": kept})
            await move(3)

            assert pods.jobs() == []
            assert (status(operator)["phase"], reason(operator)) == ("Failed", "Copied")
            assert len(operator.events("TaskFailed")) == 2, "about the task, and its MailQueue"
            assert truths(operator)["Stalled"] == "True"

    run(scene())


def test_a_task_of_the_same_name_is_another_task() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.create(task(NAMESPACE, **SPAM))
            await move(3)
            first = only(pods.jobs())["metadata"]["name"]
            await operator.delete(MAIL_QUEUE_TASK, "task")
            await operator.create(task(NAMESPACE, **SPAM))
            await move(3)
            assert only(pods.jobs())["metadata"]["name"] != first

    run(scene())


async def refusal(operator: RunningController, spec: dict[str, Any]) -> str:
    with pytest.raises(KubernetesRefused) as refused:
        await operator.user.patch(MAIL_QUEUE_TASK, NAMESPACE, "task", {"spec": spec})
    return str(refused.value)


def test_a_spec_can_change_until_the_task_has_begun() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            pods = JobPods(operator.kubernetes)
            await operator.create(task(NAMESPACE, **SPAM))
            await move(20)
            assert (status(operator)["phase"], reason(operator)) == ("Pending", "QueueNotFound")
            changed = {"operation": "Hold"}
            assert await operator.user.patch(MAIL_QUEUE_TASK, NAMESPACE, "task", {"spec": changed})
            assert "queueRef cannot be changed" in await refusal(
                operator, {"queueRef": {"name": "x"}}
            )
            await operator.declare()
            await move(20)
            assert (
                only(pods.jobs())["spec"]["template"]["spec"]["containers"][0]["args"][1] == "hold"
            )
            for spec in (
                {"operation": "Remove"},
                {"selector": {"all": True, "sender": None}},
                {"dryRun": True},
            ):
                assert "has begun cannot be changed" in await refusal(operator, spec)
            assert "cannot be added" in await refusal(operator, {"schedule": "@daily"})
            ttl = {"spec": {"ttlSecondsAfterFinished": 60}}
            assert await operator.user.patch(MAIL_QUEUE_TASK, NAMESPACE, "task", ttl)

    run(scene())


def test_a_task_waits_for_a_queue_that_is_paused_or_not_ready() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.change({"paused": True})
            await operator.create(task(NAMESPACE, **SPAM))
            await move(20)
            assert (reason(operator), pods.jobs()) == ("QueuePaused", [])
            assert truths(operator)["Reconciling"] == "True"
            await operator.change({"paused": False})
            await move(20)
            assert len(pods.jobs()) == 1

            await operator.create(mail_queue(NAMESPACE, "other", clusterRef={"name": "none"}))
            await operator.create(task(NAMESPACE, "b", queueRef={"name": "other"}, **SPAM))
            await move(20)
            assert (reason(operator, "b"), len(pods.jobs())) == ("QueueNotReady", 1)

    run(scene())


def test_tasks_of_a_queue_run_one_by_one_the_oldest_first() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.change({"paused": True})
            await operator.create(task(NAMESPACE, "bad", operation="Export"))
            await operator.create(task(NAMESPACE, "daily", schedule="@daily", **SPAM))
            for name in "cab":
                await move(2)
                await operator.create(task(NAMESPACE, name, **SPAM))
            await operator.change({"paused": False})
            order = []
            for _ in "cab":
                await move(30)
                job = only([each for each in pods.jobs() if "status" not in each])
                order.append(job["metadata"]["labels"]["postroad.dev/task"])
                waiting = [each for each in "cab" if each not in order]
                assert {reason(operator, each) for each in waiting} <= {"AnotherTask"}
                assert {truths(operator, each)["Reconciling"] for each in waiting} <= {"True"}
                await pods.begin(job)
                await pods.end(job)
            assert order == ["c", "a", "b"]

    run(scene())


def test_tasks_of_other_queues_do_not_wait_for_each_other() -> None:
    def of(name: str, queue: str = "outgoing", **status: Any) -> Object:
        made = task(NAMESPACE, name, queueRef={"name": queue}, **SPAM)
        created = {"uid": name, "creationTimestamp": "2026-01-01T10:00:00Z"}
        return {**made, "metadata": {**made["metadata"], **created}, "status": status}

    assert first_of(of("b"), [of("a", "other", phase="Running")]) is None
    assert first_of(of("b"), [of("b"), of("a", phase="Completed"), of("c")]) is None
    assert first_of(of("b"), [of("a"), running := of("c", phase="Running")]) is running
    assert first_of(of("b"), [first := of("a")]) is first
    for phase in ("Running", "Pending"):
        deleted = of("a", phase=phase)
        deleted["metadata"]["deletionTimestamp"] = "2026-01-01T11:00:00Z"
        assert (first_of(of("b"), [deleted]) is deleted) == (phase == "Running")


def test_a_task_that_is_marked_waits_for_those_alone_that_have_begun() -> None:
    def of(uid: str, *, is_marked: bool = False, **status: Any) -> Object:
        made = task(NAMESPACE, uid, **SPAM)
        created = {"uid": uid, "creationTimestamp": "2026-01-01T10:00:00Z"}
        marked = {"annotations": {BEGUN: uid}} if is_marked else {}
        return {**made, "metadata": {**made["metadata"], **created, **marked}, "status": status}

    marked = of("b", is_marked=True)
    assert first_of(marked, [of("a")]) is None, "else each waits for the other one"
    assert first_of(of("a"), [marked]) is marked
    assert first_of(marked, [other := of("c", is_marked=True)]) is other
    assert first_of(marked, [running := of("c", phase="Running")]) is running


async def create_two_that_are_marked_at_a_time(operator: RunningController) -> None:
    """Let the tasks a and b each find no other one, then write their marks, both at a time."""
    operator.kubernetes._uids = count(9999, -1)  # so that b, created second, goes first
    waiting: set[str] = set()
    both = asyncio.Event()

    async def hold(step: Step) -> None:
        if not both.is_set() and step.operation.startswith("patch mailqueuetasks"):
            waiting.add(step.operation)
            if len(waiting) == 1:
                await operator.create(task(NAMESPACE, "b", **SPAM))
            else:
                both.set()
            await both.wait()
        await asyncio.sleep(0)  # from here on step by step

    operator.api.faults.before = hold
    await operator.create(task(NAMESPACE, "a", **SPAM))
    for _ in range(9):
        await move(0.1)
    assert both.is_set()
    created = {
        operator.found(MAIL_QUEUE_TASK, each)["metadata"]["creationTimestamp"] for each in "ab"
    }
    assert len(created) == 1


def test_two_tasks_that_are_marked_at_a_time_run_one_by_one() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await create_two_that_are_marked_at_a_time(operator)
            order = []
            for _ in "ab":
                await move(30)
                job = only([each for each in pods.jobs() if "status" not in each])
                order.append(job["metadata"]["labels"]["postroad.dev/task"])
                assert status(operator, order[-1])["phase"] == "Running"
                await pods.begin(job)
                await pods.end(job)
            await move(30)
            assert order == ["b", "a"]
            assert {status(operator, each)["phase"] for each in "ab"} == {"Completed"}
            assert len(pods.jobs()) == 2

    run(scene())


@pytest.mark.parametrize("kill_at", range(8))
def test_an_operator_that_dies_amid_two_marks_leaves_tasks_that_run_one_by_one(
    kill_at: int,
) -> None:
    async def scene() -> None:
        async with declared() as (first, pods):
            calls = 0

            def plan(step: Step) -> Fault | None:
                nonlocal calls
                if step.operation.startswith(("get", "list")):
                    return None
                calls += 1
                return Fault.STOP_AFTER if calls - 1 == kill_at else None

            first.api.faults.plan = plan
            await create_two_that_are_marked_at_a_time(first)
        async with running_controller(beside=first) as second:
            for number in range(2):
                await move(60)
                assert len(pods.jobs()) == number + 1
                job = only([each for each in pods.jobs() if "status" not in each])
                await pods.begin(job)
                await pods.end(job)
            await move(60)
            assert {status(second, each)["phase"] for each in "ab"} == {"Completed"}

    run(scene())


def cron_jobs(operator: RunningController) -> list[Object]:
    found = operator.kubernetes.objects.items()
    return [each for place, each in found if place.plural == "cronjobs"]


def test_a_schedule_is_suspended_while_its_queue_is_paused() -> None:
    async def scene() -> None:
        async with declared() as (operator, _):
            await operator.create(task(NAMESPACE, schedule="@daily", **SPAM))
            await move(3)
            assert only(cron_jobs(operator))["spec"]["suspend"] is False
            for _ in range(2):
                await operator.change({"paused": True})
                await move(20)
                assert (status(operator)["phase"], reason(operator)) == ("Scheduled", "QueuePaused")
                assert only(cron_jobs(operator))["spec"]["suspend"] is True
                await operator.change({"paused": False})
                await move(20)
                assert truths(operator)["Ready"] == "True"
                assert only(cron_jobs(operator))["spec"]["suspend"] is False

    run(scene())


def kept(name: str, **spec: Any) -> Object:
    """Return a task that the finalizer of another controller keeps after its deletion."""
    made = task(NAMESPACE, name, **spec)
    return {**made, "metadata": {**made["metadata"], "finalizers": ["example.org/hook"]}}


def test_a_deleted_task_that_a_finalizer_keeps_is_stopped_before_another_one_begins() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.create(kept("first", **SPAM))
            await operator.create(kept("daily", schedule="@daily", **SPAM))
            await move(3)
            await operator.create(kept("never", **SPAM))
            await operator.create(task(NAMESPACE, "next", **SPAM))
            await pods.begin(only(pods.jobs()), count='{"matched": 12}')
            await move(30)
            assert reason(operator, "next") == "AnotherTask"
            job = only(pods.jobs())["metadata"]["name"]

            def plan(step: Step) -> Fault | None:
                is_stop = step.operation == f"delete jobs {NAMESPACE}/{job}"
                return Fault.AWAY if is_stop else None

            operator.api.faults.plan = plan
            for each in ("first", "daily", "never"):
                await operator.delete(MAIL_QUEUE_TASK, each)
            await move(60)
            assert only(pods.jobs())["metadata"]["name"] == job
            operator.api.faults.plan = lambda step: None
            await move(60)

            assert (status(operator, "first")["phase"], reason(operator, "first")) == (
                "Failed",
                "Deleted",
            )
            assert status(operator, "first")["failed"] == 12
            assert cron_jobs(operator) == []
            assert {reason(operator, each) for each in ("daily", "never")} == {"Deleted"}
            assert status(operator, "next")["phase"] == "Running"
            assert only(pods.jobs())["metadata"]["labels"]["postroad.dev/task"] == "next"

            await pods.begin(only(pods.jobs()), **COUNTED)
            await pods.end(only(pods.jobs()))
            await move(600)
            assert status(operator, "next")["phase"] == "Completed"
            assert len(pods.jobs()) == 1
            assert cron_jobs(operator) == []

    run(scene())


def test_a_queue_that_is_deleted_stops_its_tasks_and_does_not_wait_for_them() -> None:
    async def scene() -> None:
        async with declared(deletionPolicy="Delete") as (operator, pods):
            await operator.create(task(NAMESPACE, **SPAM))
            await operator.create(task(NAMESPACE, "daily", schedule="@daily", **SPAM))
            await move(3)
            counted = json.dumps({"matched": 12})
            await pods.begin(only(pods.jobs()), count=counted)
            await move(30)
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(30)

            assert operator.at("mailqueues", NAMESPACE, "outgoing") is None
            assert pods.jobs() == []
            assert not [each for each in operator.kubernetes.objects if each.plural == "cronjobs"]
            assert (status(operator)["phase"], reason(operator)) == ("Failed", "QueueDeleted")
            assert status(operator)["failed"] == 12
            assert operator.events("TaskFailed")
            assert status(operator, "daily")["phase"] == "Pending"

            await operator.create(mail_queue(NAMESPACE))
            await move(30)
            assert pods.jobs() == []
            assert status(operator, "daily")["phase"] == "Scheduled"

    run(scene())


async def replace_queue(operator: RunningController) -> None:
    """Replace the MailQueue faster than a reconcile of its tasks sees that it is deleted."""
    await operator.delete(MAIL_QUEUE, "outgoing")
    await operator.create(mail_queue(NAMESPACE))


@pytest.mark.parametrize("spec", [{"operation": "Purge"}, {"operation": "Rotate"}])
def test_a_queue_that_is_replaced_stops_its_task(spec: dict[str, Any]) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare_with_users(operator)
            pods = JobPods(operator.kubernetes)
            if spec["operation"] == "Rotate":  # is done, so that the next one waits
                await operator.create(task(NAMESPACE, "first", **spec))
                await move(40)
            await operator.create(task(NAMESPACE, **spec))
            await move(3)
            for job in pods.jobs():
                await pods.begin(job, count='{"matched": 3}')
            await move(20)
            assert status(operator)["phase"] == "Running"
            await replace_queue(operator)
            await operator.create(task(NAMESPACE, "next", **SPAM))
            await move(60)

            assert (status(operator)["phase"], reason(operator)) == ("Failed", "QueueDeleted")
            assert "another MailQueue has its name" in status(operator)["message"]
            assert status(operator, "next")["phase"] == "Running"
            assert only(pods.jobs())["metadata"]["labels"]["postroad.dev/task"] == "next"

    run(scene())


def test_a_task_that_had_not_begun_runs_on_the_queue_that_replaces_its_own() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):

            def plan(step: Step) -> Fault | None:
                is_begin = step.operation == f"update mailqueuetasks {NAMESPACE}/task"
                return Fault.AWAY if is_begin else None

            operator.api.faults.plan = plan
            await operator.create(task(NAMESPACE, **SPAM))
            await move(3)
            assert BEGUN in operator.found(MAIL_QUEUE_TASK, "task")["metadata"]["annotations"]
            await replace_queue(operator)
            operator.api.faults.plan = lambda step: None
            await move(120)
            assert status(operator)["phase"] == "Running"
            assert len(pods.jobs()) == 1

    run(scene())


def test_a_queue_that_is_replaced_stops_the_run_of_a_schedule() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.create(task(NAMESPACE, schedule="@daily", operation="Purge"))
            await move(3)
            old = only(cron_jobs(operator))
            await pods.begin(await pods.scheduled(old, "task-1"))
            await move(30)
            assert len(pods.jobs()) == 1
            await replace_queue(operator)
            await move(60)

            assert pods.jobs() == []
            assert status(operator)["phase"] == "Scheduled"
            assert only(cron_jobs(operator))["metadata"]["uid"] != old["metadata"]["uid"]

    run(scene())


def test_a_task_that_is_deleted_takes_its_job_with_it() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.create(task(NAMESPACE, **SPAM))
            await move(3)
            await pods.begin(only(pods.jobs()))
            await operator.delete(MAIL_QUEUE_TASK, "task")
            await move(3)
            left = {each.plural for each in operator.kubernetes.objects}
            assert left.isdisjoint({"jobs", "pods", "mailqueuetasks"})

    run(scene())


def restored(found: Object) -> Object:
    """Return an object as a backup brings it back: without owners."""
    kept = ("name", "namespace", "labels", "annotations")
    metadata = {key: value for key, value in found["metadata"].items() if key in kept}
    return {**{key: found[key] for key in ("apiVersion", "kind", "spec")}, "metadata": metadata}


def test_a_paused_schedule_begins_no_run_until_it_goes_on() -> None:
    async def scene() -> None:
        async with declared() as (operator, _):
            await operator.create(task(NAMESPACE, schedule="@daily", paused=True, **SPAM))
            await move(3)
            assert only(cron_jobs(operator))["spec"]["suspend"] is True
            found = operator.condition("Scheduled", MAIL_QUEUE_TASK, "task")
            assert found["message"] == "the schedule @daily is paused"
            change = {"spec": {"paused": False}}
            assert await operator.user.patch(MAIL_QUEUE_TASK, NAMESPACE, "task", change)
            await move(3)
            assert only(cron_jobs(operator))["spec"]["suspend"] is False

    run(scene())


@pytest.mark.parametrize("is_first", [True, False])
def test_a_restored_schedule_has_its_new_cron_job_alone(is_first: bool) -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.create(task(NAMESPACE, schedule="@daily", **SPAM))
            await move(3)
            old, found = only(cron_jobs(operator)), operator.found(MAIL_QUEUE_TASK, "task")
            await operator.delete(MAIL_QUEUE_TASK, "task")
            await move(3)
            if is_first:
                await operator.create(restored(found))
                await move(3)
            await operator.user.create(CRON_JOB, restored(old))
            job = {**old, **old["spec"]["jobTemplate"], "apiVersion": "batch/v1", "kind": "Job"}
            job["metadata"] = {**job["metadata"], "name": "task-1", "namespace": NAMESPACE}
            await operator.user.create(JOB, restored(job))
            if not is_first:
                await operator.create(restored(found))
            await move(20)

            assert status(operator)["phase"] == "Scheduled"
            assert only(cron_jobs(operator))["metadata"]["name"] != old["metadata"]["name"]
            assert pods.jobs() == []

    run(scene())


@pytest.mark.parametrize("schedule", [None, "@daily"])
@pytest.mark.parametrize("runs", [True, False])
def test_a_job_without_an_owner_and_a_task_is_deleted(schedule: str | None, runs: bool) -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            given = SPAM if schedule is None else {**SPAM, "schedule": schedule}
            await operator.create(task(NAMESPACE, **given))
            await move(3)
            kind = JOB if schedule is None else CRON_JOB
            made = only(pods.jobs() if schedule is None else cron_jobs(operator))
            await operator.delete(MAIL_QUEUE_TASK, "task")
            await move(3)
            if runs:
                await operator.user.create(kind, restored(made))
                await move(3)
        if not runs:
            await operator.user.create(kind, restored(made))
        async with running_controller(beside=operator):
            await move(20)
            assert pods.jobs() == []
            assert cron_jobs(operator) == []

    run(scene())


def test_a_finished_task_is_deleted_when_its_time_is_over() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.create(task(NAMESPACE, ttlSecondsAfterFinished=600, **SPAM))
            await move(3)
            await pods.begin(only(pods.jobs()), **COUNTED)
            await pods.end(only(pods.jobs()))
            await move(300)
            assert status(operator)["phase"] == "Completed"
            await move(400)
            assert operator.at("mailqueuetasks", NAMESPACE, "task") is None
            assert pods.jobs() == []

    run(scene())


def failed_tasks() -> float | None:
    labels = {"namespace": NAMESPACE, "name": "task"}
    return REGISTRY.get_sample_value("postroad_scheduled_task_failed", labels)


def test_a_scheduled_task_has_a_cron_job_that_follows_its_spec() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.create(task(NAMESPACE, schedule="@daily", **SPAM))
            await move(3)

            def cron_job() -> Object:
                found = operator.kubernetes.objects.items()
                return only([each for place, each in found if place.plural == "cronjobs"])

            assert (status(operator)["phase"], truths(operator)["Ready"]) == ("Scheduled", "True")
            assert cron_job()["spec"]["schedule"] == "@daily"
            changed = {"spec": {"schedule": "@hourly", "dryRun": True}}
            await operator.user.patch(MAIL_QUEUE_TASK, NAMESPACE, "task", changed)
            await move(3)
            assert cron_job()["spec"]["schedule"] == "@hourly"

            await pods.scheduled(cron_job(), "task-1")
            await pods.begin(only(pods.jobs()), task='{"matched": 7}')
            await pods.end(only(pods.jobs()))
            await move(3)
            assert status(operator)["matched"] == 7
            assert (status(operator)["phase"], truths(operator)["Complete"]) == (
                "Scheduled",
                "True",
            )

            assert failed_tasks() == 0

            newest = await pods.scheduled(cron_job(), "task-2")
            await move(1)
            await pods.begin(newest)
            await pods.end(newest, "Failed", "no")
            await move(3)
            assert (truths(operator)["Ready"], truths(operator)["Complete"]) == ("True", "False")
            assert failed_tasks() == 1
            await operator.delete(CRON_JOB, cron_job()["metadata"]["name"])
            await move(3)
            assert cron_job()["spec"]["schedule"] == "@hourly"

    run(scene())


def test_a_job_that_only_has_the_label_of_a_schedule_is_no_run_of_it() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.create(task(NAMESPACE, schedule="@daily", **SPAM))
            await move(3)
            made = only(cron_jobs(operator))
            other = {**made, "metadata": {**made["metadata"], "uid": "another"}}
            newest = await pods.scheduled(other, "forged")
            await pods.begin(newest, task='{"done": 999}')
            await pods.end(newest)
            await move(400)
            assert "done" not in status(operator)

            ours = await pods.scheduled(made, "task-1")
            await pods.begin(ours, task='{"done": 3}')
            await pods.end(ours)
            await move(3)
            assert status(operator)["done"] == 3

    run(scene())


def test_a_job_that_k9s_makes_from_a_schedule_goes_on() -> None:
    """Its owner is the CronJob, and no controller."""

    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.create(task(NAMESPACE, **SPAM, schedule="0 3 * * *"))
            await move(3)
            cron_job = only(cron_jobs(operator))
            owner = {"apiVersion": "batch/v1", "kind": "CronJob", "blockOwnerDeletion": True}
            owner |= {each: cron_job["metadata"][each] for each in ("name", "uid")}
            template = cron_job["spec"]["jobTemplate"]
            metadata = {**template["metadata"], "name": "by-hand", "namespace": NAMESPACE}
            job = {"apiVersion": "batch/v1", "kind": "Job", "spec": template["spec"]}
            await pods.api.create(JOB, {**job, "metadata": metadata | {"ownerReferences": [owner]}})
            await move(60)

            assert only(pods.jobs())["metadata"]["name"] == "by-hand"

    run(scene())


def test_a_task_that_rotates_asks_for_another_user_once() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.create(task(NAMESPACE, operation="Rotate"))
            await move(20)
            assert (status(operator)["phase"], reason(operator)) == ("Pending", "InvalidSpec")
            assert "spec.rabbitmq.users" in status(operator)["message"]
            assert truths(operator)["Stalled"] == "True"
            assert pods.jobs() == []

    run(scene())


def test_two_tasks_that_rotate_are_done_when_the_queue_has_another_user() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare_with_users(operator)
            first = login(operator)
            await operator.create(task(NAMESPACE, operation="Rotate"))
            await move(40)
            assert status(operator)["phase"] == "Completed"
            assert login(operator) != first
            assert letters(operator) == "ab"

            await operator.create(task(NAMESPACE, "again", operation="Rotate"))
            await move(60)
            assert status(operator, "again")["phase"] == "Running", "the overlap goes on"
            second = login(operator)
            await move(700)
            assert status(operator, "again")["phase"] == "Completed"
            assert login(operator) != second
            third = login(operator)
            await move(1500)
            assert login(operator) == third

    run(scene())


@pytest.mark.parametrize("ahead", [timedelta(minutes=-2), timedelta(minutes=2)])
def test_a_task_that_rotates_does_not_depend_on_the_clock_of_the_former_leader(
    ahead: timedelta,
) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare_with_users(operator)
            first = login(operator)
            secret = operator.at("secrets", NAMESPACE, LOGIN_SECRET)
            assert secret is not None
            since = datetime.fromisoformat(secret["metadata"]["annotations"][USER_SINCE]) + ahead
            change = {"metadata": {"annotations": {USER_SINCE: timestamp(since)}}}
            await operator.user.patch(SECRET, NAMESPACE, LOGIN_SECRET, change)
            await operator.create(task(NAMESPACE, operation="Rotate"))
            await move(60)
            assert status(operator)["phase"] == "Completed"
            assert login(operator) != first

    run(scene())


def test_a_view_of_before_its_end_does_not_begin_a_task_again() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.create(task(NAMESPACE, **SPAM))
            stale = operator.found(MAIL_QUEUE_TASK, "task")
            await move(3)
            await pods.begin(only(pods.jobs()), **COUNTED)
            await pods.end(only(pods.jobs()))
            await move(3)
            await operator.delete(JOB, only(pods.jobs())["metadata"]["name"])
            await operator.controller._tasks.reconcile(stale)
            assert pods.jobs() == []
            assert status(operator)["phase"] == "Completed"

    run(scene())


AN_HOUR = 3600


@pytest.mark.parametrize(
    ("spec", "phase"),
    [
        ({"schedule": "@daily", "operation": "Purge"}, "Scheduled"),
        ({"queueRef": {"name": "none"}, "operation": "Purge"}, "Pending"),
    ],
)
def test_tasks_that_wait_for_a_watch_make_few_requests(spec: dict[str, Any], phase: str) -> None:
    async def scene() -> None:
        async with declared() as (operator, _):
            for number in range(5):
                await operator.create(task(NAMESPACE, f"waits{number}", **spec))
            await move(60)
            assert {status(operator, f"waits{number}")["phase"] for number in range(5)} == {phase}
            before = len(operator.calls)
            await move(AN_HOUR)
            made = [each for each in operator.calls[before:] if "waits" in each or "none" in each]
            assert len(made) <= 5 * 5 * 15, "five each at every fifth minute"

    run(scene())


def test_a_task_begins_as_soon_as_its_queue_is_there_and_configured() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.create(task(NAMESPACE, **SPAM))
            await move(400)
            assert reason(operator) == "QueueNotFound"
            await operator.declare()
            await move(5)
            assert status(operator)["phase"] == "Running"

    run(scene())


def test_a_bad_schedule_and_an_undeclared_job_are_named() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.create(task(NAMESPACE, "a", schedule="x", **SPAM))
            await operator.create(task(NAMESPACE, "b", operation="Pipeline", job="Archive"))
            await operator.create(task(NAMESPACE, "c", operation="Export"))
            await move(20)
            assert "spec.schedule" in status(operator, "a")["message"]
            assert "spec.pipeline" in status(operator, "b")["message"]
            assert "spec.pipeline" in status(operator, "c")["message"]
            assert {truths(operator, each)["Stalled"] for each in "abc"} == {"True"}
            assert pods.jobs() == []

    run(scene())


def test_events_name_operation_manager_and_counts_and_no_address() -> None:
    async def scene() -> None:
        async with declared() as (operator, pods):
            await operator.create(task(NAMESPACE, **SPAM))
            await move(3)
            await pods.begin(only(pods.jobs()), **COUNTED)
            await pods.end(only(pods.jobs()))
            await move(3)
            notes = [each["note"] for each in operator.events("TaskCompleted")]
            assert notes == ["Remove: 11 of 12 mails, MailQueueTask task, by user"] * 2
            regarding = {each["regarding"]["kind"] for each in operator.events("TaskStarted")}
            assert regarding == {"MailQueue", "MailQueueTask"}
            place_of_events = [
                each
                for place, each in operator.kubernetes.objects.items()
                if place.plural == "events"
            ]
            assert "spammer" not in str(place_of_events) + str(status(operator))

    run(scene())


def end_of(kill_at: int | None) -> tuple[int, dict[str, Any]]:
    """Return how many writes there are, and the end after the operator died behind one of them."""
    calls = 0

    def plan(step: Step) -> Fault | None:
        nonlocal calls
        if step.operation.partition(" ")[0] in ("get", "list") or step.server != "kubernetes":
            return None
        calls += 1
        return Fault.STOP_AFTER if calls - 1 == kill_at else None

    async def scene() -> dict[str, Any]:
        async with running_controller() as first:
            await first.declare()
            pods = JobPods(first.kubernetes)
            work = asyncio.create_task(pods.run(**COUNTED))
            first.api.faults.plan = plan
            await first.create(task(NAMESPACE, ttlSecondsAfterFinished=3600, **SPAM))
            await move(15)
        made = {each["metadata"]["uid"] for each in pods.jobs()}
        async with running_controller(beside=first) as second:
            await move(60)
            made |= {each["metadata"]["uid"] for each in pods.jobs()}
            found = status(second)
            events = sorted(
                (each["reason"], each["regarding"]["kind"], each.get("series", {}).get("count", 1))
                for place, each in second.kubernetes.objects.items()
                if place.plural == "events" and each["reason"].startswith("Task")
            )
        work.cancel()
        return {
            "jobs": len(made),
            "status": {key: found[key] for key in ("phase", "matched", "done", "failed")},
            "truths": {each["type"]: each["status"] for each in found["conditions"]},
            "events": {each[:2] for each in events},
            "on the task": [each for each in events if each[1] == "MailQueueTask"],
        }

    ends: list[dict[str, Any]] = []

    async def wrapped() -> None:
        ends.append(await scene())

    run(wrapped())
    return calls, ends[0]


def test_an_operator_that_dies_behind_any_write_leaves_one_job_and_the_same_end() -> None:
    count, whole = end_of(None)
    assert count >= 6
    assert whole["jobs"] == 1
    assert whole["status"] == {"phase": "Completed", "matched": 12, "done": 11, "failed": 0}

    different = {at: end for at in range(count) if (end := end_of(at)[1]) != whole}

    assert different == {}
