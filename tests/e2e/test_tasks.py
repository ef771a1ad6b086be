"""MailQueueTasks on real servers and pods: what is killed amid one, or applied again, changes no
mail twice and none that came since."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from postroad import Mail, open_queue
from support.installation import OPERATOR_NAMESPACE
from support.kubectl import KubectlFailed, Manifest, eventually
from support.mail_flow import Flow, duplicates, flowing
from support.pod_programs import programs_of, restarts
from support.sandbox import Sandbox

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600, func_only=True),
]

SPAMMER, NIGHTLY = "spammer@origin.example", "nightly@origin.example"
WAITING = 400
HOUR = timedelta(hours=1)
MAX_SECONDS = 3
"""A pod has ended so long after its start, if nothing kills it."""

EACH_MINUTE = "* * * * *"


def task(
    sandbox: Sandbox, name: str, operation: str, of: str = "outgoing", **spec: Any
) -> Manifest:
    return {
        "apiVersion": "postroad.dev/v1beta1",
        "kind": "MailQueueTask",
        "metadata": {"name": name, "namespace": sandbox.namespace},
        "spec": {"queueRef": {"name": of}, "operation": operation, **spec},
    }


def status(sandbox: Sandbox, name: str) -> Manifest:
    found: Manifest = sandbox.kubectl.get("mqt", name, sandbox.namespace).get("status", {})
    return found


def ended(sandbox: Sandbox, name: str) -> Manifest:
    """Wait until a task has ended; return its status."""

    def over() -> bool:
        return status(sandbox, name).get("phase") in ("Completed", "Failed")

    eventually(over, within_seconds=180)
    return status(sandbox, name)


def made_for(sandbox: Sandbox, kind: str, name: str) -> list[str]:
    """Return the names of the objects of a kind that carry a task out."""
    labels = f"postroad.dev/task={name}"
    return [
        each["metadata"]["name"] for each in sandbox.kubectl.list(kind, sandbox.namespace, labels)
    ]


def events_about(sandbox: Sandbox, kind: str, name: str) -> set[tuple[str, str]]:
    """Return types and reasons of the Events about an object."""
    found = sandbox.kubectl.list("events", sandbox.namespace)
    about = [e for e in found if e["involvedObject"]["kind"] == kind]
    return {(e["type"], e["reason"]) for e in about if e["involvedObject"]["name"] == name}


def fill(sandbox: Sandbox, sender: str, count: int = WAITING, of: str = "outgoing") -> None:
    """Queue mails that are due in an hour."""

    async def filled() -> None:
        async with open_queue(f"distributed://{sandbox.namespace}.{of}") as queue:
            for number in range(count):
                mail = Mail(sender, (f"filled-{number}@inn.example",), b"x")
                await queue.enqueue(mail, delay=HOUR)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSTROAD_CASSANDRA_KEYSPACE", sandbox.keyspace)
        asyncio.run(filled())


def left(sandbox: Sandbox, sender: str, of: str = "outgoing") -> int:
    """Return how many mails of a sender wait."""
    return len(sandbox.postroad("browse", "--json", "--sender", sender, name=of).splitlines())


def kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_a_pod_of(sandbox: Sandbox, name: str, seen: set[str]) -> None:
    """Kill what the next pod of a task runs, at any point of it, unless the task ends before."""

    def begun() -> tuple[str, list[int]] | None:
        if status(sandbox, name).get("phase") == "Completed":
            return "", []
        for pod in sandbox.kubectl.list("pods", sandbox.namespace, f"postroad.dev/task={name}"):
            if pod["metadata"]["name"] not in seen and pod["status"]["phase"] != "Succeeded":
                return pod["metadata"]["name"], programs_of(pod)
        return None

    pod, _ = eventually(begun, within_seconds=120, every_seconds=0.1)
    if pod:
        seen.add(pod)
        after = random.uniform(0, MAX_SECONDS)
        time.sleep(after)
        with suppress(AssertionError):  # it has ended
            kill(programs_of(sandbox.kubectl.get("pod", pod, sandbox.namespace)))
            print(f"killed {pod} {after:.1f} s after it began")


def kill_the_operator(sandbox: Sandbox) -> None:
    selector = "app.kubernetes.io/component=operator"
    for pod in sandbox.kubectl.list("pods", OPERATOR_NAMESPACE, selector):
        kill(programs_of(pod))
        name, before = pod["metadata"]["name"], restarts(pod)
        eventually(
            lambda: restarts(sandbox.kubectl.get("pod", name, OPERATOR_NAMESPACE)) > before,  # noqa: B023
            within_seconds=60,
        )


@pytest.fixture(scope="module")
def sandbox(shared_sandbox: Sandbox) -> Sandbox:
    """A sandbox with a MailQueue that delivers; one, `quiet`, that has mail which is not due; and
    one, `broken`, whose tasks fail. Tasks by a schedule run from here on."""
    made = shared_sandbox
    wrong = {"name": "worker", "env": [{"name": "POSTROAD_CASSANDRA_PORT", "value": "none"}]}
    broken = {**made.workers(0), "template": {"spec": {"containers": [wrong]}}}
    made.apply(
        made.mail_queue(),
        made.mail_queue("quiet", workers=None),
        made.mail_queue("broken", workers=broken, intake=None),
    )
    for name in ("quiet", "broken", "outgoing"):
        made.wait_ready(name)
    fill(made, NIGHTLY, 3, of="quiet")
    each_minute = {"selector": {"sender": NIGHTLY}, "schedule": EACH_MINUTE}
    made.apply(
        task(made, "nightly", "Remove", of="quiet", **each_minute),
        task(made, "failing", "Remove", of="broken", **each_minute),
        task(made, "once", "Purge", of="broken"),
    )
    return made


def test_selected_mail_is_removed_once_whatever_is_killed(sandbox: Sandbox) -> None:
    fill(sandbox, SPAMMER)
    selected: dict[str, Any] = {"selector": {"sender": SPAMMER}}
    removal = task(sandbox, "removal", "Remove", **selected)

    with flowing(sandbox) as flow:
        sandbox.apply(task(sandbox, "trial", "Remove", dryRun=True, **selected))
        trial = ended(sandbox, "trial")
        assert (trial["phase"], trial["matched"], trial.get("done")) == ("Completed", WAITING, None)
        assert left(sandbox, SPAMMER) == WAITING

        sandbox.apply(removal)
        seen: set[str] = set()
        kill_a_pod_of(sandbox, "removal", seen)
        sandbox.apply(removal)
        kill_the_operator(sandbox)
        kill_a_pod_of(sandbox, "removal", seen)
        done = ended(sandbox, "removal")

    assert (done["phase"], done["matched"], done["failed"]) == ("Completed", WAITING, 0)
    assert 0 <= done["done"] <= WAITING
    assert left(sandbox, SPAMMER) == 0
    assert duplicates(sandbox, flow) == 0
    (job,) = made_for(sandbox, "jobs", "removal")
    pods = made_for(sandbox, "pods", "removal")

    fill(sandbox, SPAMMER, 5)
    sandbox.apply(removal)
    assert (made_for(sandbox, "jobs", "removal"), made_for(sandbox, "pods", "removal")) == (
        [job],
        pods,
    )
    with pytest.raises(KubectlFailed, match="begun cannot be changed"):
        sandbox.apply(task(sandbox, "removal", "Remove", selector={"all": True}))
    sandbox.apply(task(sandbox, "removal", "Remove", ttlSecondsAfterFinished=0, **selected))
    eventually(lambda: "removal" not in names(sandbox), within_seconds=30)
    eventually(lambda: made_for(sandbox, "jobs", "removal") == [], within_seconds=30)
    assert left(sandbox, SPAMMER) == 5
    told = {("Normal", "TaskStarted"), ("Normal", "TaskCompleted")}
    assert told <= events_about(sandbox, "MailQueue", "outgoing")


def names(sandbox: Sandbox) -> set[str]:
    return {each["metadata"]["name"] for each in sandbox.kubectl.list("mqt", sandbox.namespace)}


def test_a_purge_whose_pod_is_killed_leaves_mail_that_came_since(sandbox: Sandbox) -> None:
    fill(sandbox, SPAMMER)
    flow = Flow(sandbox, "since")
    flow.start()
    flow.wait_for_more(20, within_seconds=60)
    waiting = left(sandbox, SPAMMER)

    sandbox.apply(task(sandbox, "purge", "Purge"))
    created = sandbox.kubectl.get("mqt", "purge", sandbox.namespace)["metadata"][
        "creationTimestamp"
    ]
    moment = datetime.fromisoformat(created) + timedelta(seconds=1)
    eventually(lambda: datetime.now(UTC) > moment, within_seconds=10)
    before = flow.offered
    kill_a_pod_of(sandbox, "purge", set())
    done = ended(sandbox, "purge")
    flow.wait_for_more(20, within_seconds=60)
    flow.finish()

    assert done["phase"] == "Completed"
    assert done["matched"] >= waiting
    assert done["done"] >= waiting
    assert left(sandbox, SPAMMER) == 0
    since = [each for each in flow.acknowledged if number(each) > before + 1]
    assert len(since) >= 20
    eventually(lambda: sandbox.sink.has_all(since), within_seconds=120)
    eventually(lambda: sandbox.size() == 0, within_seconds=60)
    assert duplicates(sandbox, flow) == 0


def number(recipient: str) -> int:
    return int(recipient.partition("@")[0].rpartition("-")[2])


def test_runs_that_fail_and_those_of_a_schedule_are_reported(sandbox: Sandbox) -> None:
    once = ended(sandbox, "once")
    assert (once["phase"], once["conditions"][0]["reason"]) == ("Failed", "RunFailed")
    for about in (("MailQueueTask", "once"), ("MailQueue", "broken")):
        assert ("Warning", "TaskFailed") in events_about(sandbox, *about)

    def run(name: str) -> Manifest | None:
        found = status(sandbox, name)
        return found if "finishedAt" in found else None

    nightly = eventually(lambda: run("nightly"), within_seconds=120)
    notes = [each["message"] for each in sandbox.events("TaskCompleted")]
    assert any(each.startswith("Remove: 3 of 3 mails, MailQueueTask nightly") for each in notes)
    assert (nightly["phase"], nightly["matched"] in (0, 3)) == ("Scheduled", True)
    assert left(sandbox, NIGHTLY, of="quiet") == 0
    assert reasons(nightly) == {
        "Ready": "AsDeclared",
        "Complete": "Completed",
        "Scheduled": "AsDeclared",
    }

    failing = eventually(lambda: run("failing"), within_seconds=120)
    assert reasons(failing)["Complete"] == "RunFailed"
    assert "POSTROAD_CASSANDRA_PORT" in failing["message"]
    assert ("Warning", "TaskFailed") in events_about(sandbox, "MailQueueTask", "failing")


def reasons(found: Manifest) -> dict[str, str]:
    return {each["type"]: each["reason"] for each in found["conditions"]}
