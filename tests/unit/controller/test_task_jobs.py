"""The Jobs of MailQueueTasks: what their pods run, where, and with which rights."""

from __future__ import annotations

import json
from typing import Any

import pytest

from postroad.controller.pods.task_jobs import job_name, job_of
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.queue_resource import PipelineProgram, PodContext, Queue
from postroad.controller.spec.task import Task
from postroad.domain.queues.documents import selector_of
from postroad.errors import InvalidInput
from postroad.ports.kubernetes import Object
from support import resources
from support.resources import intake

CLUSTER = QueueClusterSpec.model_validate(resources.queue_cluster("mail")["spec"])
CONTEXT = PodContext(
    CLUSTER, "postroad:1", pipeline=PipelineProgram("postroad-pipeline:1", "postroad-pipeline")
)
RELAY = {"handler": {"relay": {"host": "sink"}}}
PIPELINE = {"archive": {"schedule": "@hourly"}, "addresses": {"keep": "Plain"}}


def queue(**spec: Any) -> Queue:
    metadata = {"namespace": "mail", "name": "outgoing", "uid": "q", "generation": 1}
    return Queue.of({"metadata": metadata, "spec": {"clusterRef": {"name": "main"}, **spec}})


def a_task(uid: str = "u1", **spec: Any) -> Task:
    metadata = {
        "namespace": "mail",
        "name": "spam",
        "uid": uid,
        "generation": 1,
        "creationTimestamp": "2026-01-01T10:00:00Z",
    }
    return Task.of({"metadata": metadata, "spec": {"queueRef": {"name": "outgoing"}, **spec}})


def pod_of(job: Object) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["template"]["spec"]
    return found


def job(of: Queue, **spec: Any) -> Object:
    return job_of(a_task(**spec), of, CONTEXT)[1]


REMOVE: dict[str, Any] = {"operation": "Remove", "selector": {"sender": "$(HOME)$x@example.org"}}


def test_a_schedule_that_never_comes_is_refused_with_its_field() -> None:
    with pytest.raises(InvalidInput, match=r"^spec\.schedule: .* never comes"):
        job(queue(workers=RELAY), schedule="0 0 30 2 *", **REMOVE)


def selector_in(container: dict[str, Any]) -> Any:
    (text,) = (
        each["value"] for each in container["env"] if each["name"] == "POSTROAD_TASK_SELECTOR"
    )
    return selector_of(json.loads(text.replace("$$", "$")))


def test_mails_are_counted_first_by_the_same_command() -> None:
    pod = pod_of(job(queue(workers=RELAY), **REMOVE))
    (counting,), (changing,) = pod["initContainers"], pod["containers"]

    assert changing["args"] == ["task", "remove", "--summary", "/dev/termination-log"]
    assert counting["args"] == [*changing["args"], "--count"]
    assert {**counting, "name": "task", "args": changing["args"]} == changing


def test_a_selector_ends_at_the_creation_and_keeps_its_signs_from_kubernetes() -> None:
    (container,) = pod_of(job(queue(workers=RELAY), **REMOVE))["containers"]
    found = selector_in(container)

    assert "$(" not in json.dumps(container["env"]).replace("$$", "")
    assert found.sender == "$(HOME)$x@example.org"
    assert found.accepted_before.isoformat() == "2026-01-01T10:00:01+00:00"


def test_pods_of_a_schedule_take_the_time_of_their_run_from_the_name_of_the_job() -> None:
    kind, cron_job = job_of(a_task(schedule="@daily", **REMOVE), queue(workers=RELAY), CONTEXT)
    pod = cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    label = {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/job-name']"}}

    assert kind.name == "CronJob"
    assert cron_job["spec"]["concurrencyPolicy"] == "Forbid"
    assert selector_in(container).accepted_before is None
    for each in (container, *pod["initContainers"]):
        assert {"name": "POSTROAD_TASK_JOB", "valueFrom": label} in each["env"]
    once = pod_of(job(queue(workers=RELAY), **REMOVE))["containers"][0]["env"]
    assert "POSTROAD_TASK_JOB" not in {each["name"] for each in once}


def test_a_dry_run_has_the_counting_container_alone() -> None:
    pod = pod_of(job(queue(workers=RELAY), dryRun=True, **REMOVE))

    assert "initContainers" not in pod
    assert pod["containers"][0]["args"][-1] == "--count"


def test_the_name_follows_from_the_uid() -> None:
    one, other = a_task("u1", **REMOVE), a_task("u2", **REMOVE)

    assert job_name(one) == job_name(a_task("u1", operation="Purge")) != job_name(other)


def test_a_pod_has_the_placement_of_workers_and_neither_their_sidecars_nor_their_keys() -> None:
    placed = {
        "pod": {"nodeSelector": {"disk": "fast"}, "priorityClassName": "high"},
        "template": {
            "spec": {
                "tolerations": [{"key": "mail"}],
                "hostAliases": [{"ip": "192.0.2.2", "hostnames": ["cassandra.example.org"]}],
                "dnsPolicy": "Default",
                "terminationGracePeriodSeconds": 99,
                "containers": [
                    {"name": "worker", "resources": {"limits": {"memory": "1Gi"}}},
                    {"name": "proxy", "image": "proxy:1"},
                ],
                "initContainers": [{"name": "wait", "image": "wait:1"}],
            }
        },
    }
    webhook = {"webhook": {"url": "https://app.example.org", "secretRef": {"name": "webhook"}}}
    pod = pod_of(job(queue(workers={"handler": webhook, **placed}), **REMOVE))

    assert [each["name"] for each in pod["containers"]] == ["task"]
    assert [each["name"] for each in pod["initContainers"]] == ["count"]
    assert pod["containers"][0]["resources"] == {
        "requests": {"cpu": "100m", "memory": "128Mi"},
        "limits": {"memory": "1Gi"},
    }
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "disk": "fast"}
    assert (pod["priorityClassName"], pod["tolerations"]) == ("high", [{"key": "mail"}])
    assert pod["hostAliases"][0]["ip"] == "192.0.2.2"
    assert (pod["dnsPolicy"], pod["terminationGracePeriodSeconds"]) == ("Default", 1)
    assert "webhook" not in json.dumps(pod)


def test_a_pod_has_no_right_in_kubernetes_and_keeps_to_the_restricted_profile() -> None:
    pod = pod_of(job(queue(intake=intake()), **REMOVE))

    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["restartPolicy"] == "Never"
    for each in (*pod["containers"], *pod["initContainers"]):
        assert each["securityContext"]["allowPrivilegeEscalation"] is False
        assert each["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ({"operation": "Maintain"}, ["task"]),
        (REMOVE, ["count", "task"]),
        ({**REMOVE, "dryRun": True}, ["task"]),
        ({"operation": "Export"}, ["pipeline"]),
    ],
)
def test_a_job_gives_up_at_once_where_an_administrator_must_act(
    spec: dict[str, Any], names: list[str]
) -> None:
    rules = job(queue(pipeline=PIPELINE), **spec)["spec"]["podFailurePolicy"]["rules"]

    assert [each["onExitCodes"] for each in rules if each["action"] == "FailJob"] == [
        {"containerName": name, "operator": "In", "values": [1, 2]} for name in names
    ]


def test_jobs_of_the_pipeline_run_as_they_are_declared() -> None:
    of = queue(pipeline=PIPELINE)
    archive = pod_of(job(of, operation="Pipeline", job="Archive"))["containers"][0]
    export = pod_of(job(of, operation="Export"))["containers"][0]

    assert archive["image"] == export["image"] == "postroad-pipeline:1"
    assert archive["args"][:2] == ["pipeline", "archive"]
    folder = "s3a://postroad-mail-outgoing/mail.outgoing/exports/$(POD_NAME)"
    assert export["args"][:3] == ["pipeline", "export", folder]
    assert "POD_NAME" in {each["name"] for each in export["env"]}
    named = pod_of(job(of, operation="Export", folder="audit/2026"))["containers"][0]
    assert named["args"][2] == folder.replace("exports/", "exports/audit/2026/")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"operation": "Pipeline", "job": "Audit"}, "spec.pipeline.audit"),
        (REMOVE | {"schedule": "61 * * * *"}, "spec.schedule: the minute"),
    ],
)
def test_what_cannot_be_run_is_named(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        job(queue(pipeline=PIPELINE), **spec)
