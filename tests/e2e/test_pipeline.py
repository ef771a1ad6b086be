"""Jobs of the pipeline in a cluster: a run writes the lake of a queue, from a pod alone or with
executors, and is repeated where its pods are killed."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from datetime import timedelta

import pytest

import stack
from postroad import Mail, open_queue
from postroad.bootstrap.cluster import connect
from postroad.domain.queues.entries import Partition, slice_of
from postroad.ports.view import ClosedSlice
from postroad.settings import from_environment
from support.installation import build_pipeline_image
from support.kubectl import Manifest, eventually
from support.sandbox import Sandbox
from support.servers import object_keys

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes", "mvn"),
    pytest.mark.timeout(1800, func_only=True),
    pytest.mark.skipif(
        "POSTROAD_TEST_PIPELINE" not in os.environ,
        reason="the image takes minutes, a run after a killed one too: set POSTROAD_TEST_PIPELINE",
    ),
]

HOUR = timedelta(hours=1)
MAILS = 7


@pytest.fixture(scope="session")
def pipeline_image(running_stack: stack.Stack) -> str:
    return build_pipeline_image(running_stack)


def archived(sandbox: Sandbox, image: str, executors: int) -> None:
    """Declare a queue that is archived, in a namespace that lets restricted pods in alone, with
    mails in a closed slice."""
    label = "pod-security.kubernetes.io/enforce=restricted"
    sandbox.kubectl("label", "namespace", sandbox.namespace, label)
    sandbox.apply(
        sandbox.mail_queue(
            workers=None,
            intake=None,
            pipeline={
                "archive": {"schedule": "0 0 1 1 *"},
                "addresses": {"keep": "Plain"},
                "image": image,
                "executors": {"instances": executors, "memory": "512Mi"},
            },
        )
    )
    sandbox.wait_ready()
    assert sandbox.condition("PipelineReady")["status"] == "True"
    asyncio.run(filled(sandbox))


async def filled(sandbox: Sandbox) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSTROAD_CASSANDRA_KEYSPACE", sandbox.keyspace)
        settings = from_environment()
        async with open_queue(f"distributed://{sandbox.namespace}.outgoing") as queue:
            for number in range(MAILS):
                mail = Mail(f"a{number}@example.org", ("b@example.net",), b"x")
                await queue.enqueue(mail, delay=HOUR)
    servers = connect(settings)
    view = servers.views().view(f"{sandbox.namespace}.outgoing")
    now = (await view.server_times()).times[0].time
    for start in (slice_of(now, HOUR) - HOUR, slice_of(now, HOUR)):
        rows: Counter[int] = Counter()
        for bucket in range(3):
            async for _ in view.rows(Partition(start, bucket)):
                rows[bucket] += 1
        await view.close_slice(ClosedSlice(start, HOUR, rows))
    await servers.close()


def start(sandbox: Sandbox, name: str) -> None:
    """Run the job now, as its CronJob would."""
    source = "--from=cronjob/outgoing-archive"
    sandbox.kubectl("create", "job", "-n", sandbox.namespace, source, name)


def ended(sandbox: Sandbox, name: str, within_seconds: float = 180) -> None:
    """Wait until a run has succeeded, and the operator reports it."""

    def succeeded() -> bool:
        status = sandbox.kubectl.get("job", name, sandbox.namespace).get("status", {})
        assert status.get("succeeded") == 1, (status, logs(sandbox))
        return True

    eventually(succeeded, within_seconds=within_seconds)


def logs(sandbox: Sandbox) -> str:
    return "".join(
        sandbox.kubectl("logs", "-n", sandbox.namespace, each["metadata"]["name"], "--tail=20")
        for each in pods(sandbox, "pipeline")
        if each["status"]["phase"] in ("Failed", "Running")
    )


def pods(sandbox: Sandbox, component: str, *phases: str) -> list[Manifest]:
    return [
        each for each in sandbox.pods(component) if not phases or each["status"]["phase"] in phases
    ]


def kill(sandbox: Sandbox, pod: Manifest) -> None:
    name = pod["metadata"]["name"]
    now = ("--grace-period=0", "--force")
    sandbox.kubectl("delete", "pod", "-n", sandbox.namespace, name, *now)


def assert_reported(sandbox: Sandbox) -> None:
    def reported() -> bool:
        (job,) = sandbox.status().get("pipeline") or [{}]
        assert f"{MAILS} rows" in job.get("result", ""), job
        assert "lastSuccess" in job
        assert "error" not in job
        return True

    eventually(reported, within_seconds=30)


def lake_files(sandbox: Sandbox) -> list[str]:
    keys = object_keys(f"postroad-{sandbox.namespace}-outgoing") or []
    return [each for each in keys if each.startswith(f"{sandbox.namespace}.outgoing/lake/")]


def test_a_run_in_a_restricted_namespace_writes_the_lake(
    sandbox: Sandbox, pipeline_image: str
) -> None:
    archived(sandbox, pipeline_image, executors=0)

    start(sandbox, "archive-now")
    ended(sandbox, "archive-now")

    assert_reported(sandbox)
    assert any("/entries/data/" in each for each in lake_files(sandbox))


def test_executors_are_pods_and_one_that_is_killed_is_made_again(
    sandbox: Sandbox, pipeline_image: str
) -> None:
    archived(sandbox, pipeline_image, executors=2)
    start(sandbox, "archive-now")
    both = eventually(lambda: two_run(sandbox), within_seconds=300)
    kill(sandbox, both[0])
    ended(sandbox, "archive-now", within_seconds=600)

    assert_reported(sandbox)
    none_is_left(sandbox)


def test_a_driver_that_is_killed_is_followed_by_another(
    sandbox: Sandbox, pipeline_image: str
) -> None:
    archived(sandbox, pipeline_image, executors=2)
    start(sandbox, "archive-now")
    eventually(lambda: two_run(sandbox), within_seconds=300)
    (driver,) = pods(sandbox, "pipeline", "Running")
    kill(sandbox, driver)
    ended(sandbox, "archive-now", within_seconds=1200)

    assert_reported(sandbox)
    none_is_left(sandbox)
    start(sandbox, "archive-again")  # it reads the lake, too
    ended(sandbox, "archive-again", within_seconds=300)


def two_run(sandbox: Sandbox) -> list[Manifest]:
    found = pods(sandbox, "executor", "Running")
    assert len(found) == 2, logs(sandbox)
    return found


def none_is_left(sandbox: Sandbox) -> None:
    def gone() -> bool:
        assert pods(sandbox, "executor") == []
        assert pods(sandbox, "pipeline", "Running", "Pending") == []
        return True

    eventually(gone, within_seconds=60)
