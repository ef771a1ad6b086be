"""Jobs of the pipeline: CronJobs as declared, what their pods are given, and how they went."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import click
import pytest
from prometheus_client import REGISTRY
from pydantic import ValidationError

from postroad.cli import main
from postroad.cli.pipeline.archiving import AGE
from postroad.controller.kubernetes.api import (
    CRON_JOB,
    JOB,
    MAIL_QUEUE,
    POD,
    ROLE_BINDING,
    SECRET,
    SERVICE_ACCOUNT,
)
from postroad.controller.kubernetes.drift import is_current
from postroad.controller.pods.manifests import declared_hash
from postroad.controller.pods.pipeline_children import (
    EXECUTORS_FILE,
    TEMPLATE_FILE,
    job_name,
    pipeline_children,
)
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.parts import check_schedule
from postroad.controller.spec.pipeline import JOBS, ForgetSpec
from postroad.controller.spec.queue_resource import PipelineProgram, PodContext, Queue
from postroad.controller.spec.tls import CassandraTls
from postroad.delivery_settings.lake_catalog import LakeCatalog, read_catalog
from postroad.errors import InvalidInput
from postroad.pipeline.java.executors import Executors
from postroad.ports.kubernetes import Object
from postroad.settings import from_environment
from support.manual_loop import move, run
from support.resources import secret, workers
from support.running_controller import NAMESPACE, RunningController, running_controller

LOGIN = {"secretRef": {"name": "login"}}
CLUSTER = QueueClusterSpec.model_validate(
    {
        "rabbitmq": {"url": "amqp://rabbitmq:5672/%2F", **LOGIN},
        "cassandra": {
            "contactPoints": ["c1"],
            "keyspace": "k",
            "tls": {"mode": "Disabled"},
            **LOGIN,
        },
        "s3": {"url": "http://s3:9000", **LOGIN},
    }
)
CONTEXT = PodContext(
    CLUSTER, "postroad:1", pipeline=PipelineProgram("postroad-pipeline:1", "postroad-pipeline")
)
HOURLY = {"schedule": "7 * * * *"}
PLAIN: dict[str, Any] = {
    "archive": HOURLY,
    "addresses": {"keep": "Plain"},
    "image": "postroad-pipeline:2",
}
KEY = "0123456789abcdef"


def queue(name: str = "out", **pipeline: Any) -> Queue:
    return Queue.of(
        {
            "metadata": {"namespace": "mail", "name": name, "uid": "u1", "generation": 1},
            "spec": {"clusterRef": {"name": "main"}, "pipeline": pipeline},
        }
    )


def children(of: Queue, context: PodContext = CONTEXT) -> dict[tuple[str, str], Any]:
    return {
        (kind.name, each["metadata"]["name"]): each for kind, each in pipeline_children(of, context)
    }


def pod_of(cron_job: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """The pod of a run, its container, and the variables that have values."""
    pod = cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container, {each["name"]: each.get("value", "") for each in container["env"]}


def as_kubernetes(value: str) -> str:
    """Return what a container gets for a value of its spec, without a variable to replace."""
    left = value.replace("$$", "")
    assert "$(" not in left
    return value.replace("$$", "$")


def test_a_run_has_the_catalog_as_a_document_and_its_login_as_files() -> None:
    given: dict[str, Any] = {"type": "JDBC", "uri": "jdbc:postgresql://db/lakes", "namespace": "a"}
    given["properties"] = {"jdbc.options": "$(HOME)"}  # not the pod's
    login = {"secretRef": {"name": "catalog"}}

    found = children(
        queue(archive=HOURLY, addresses={"keep": "None"}, catalog=given | {"login": login})
    )

    pod, container, variables = pod_of(found["CronJob", "out-archive"])
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    (volume,) = (each for each in pod["volumes"] if each["name"] == "catalog")
    variables["POSTROAD_PIPELINE_CATALOG"] = as_kubernetes(variables["POSTROAD_PIPELINE_CATALOG"])
    read = read_catalog(from_environment(variables).pipeline.catalog)
    assert read == LakeCatalog.model_validate(given | {"login": {"folder": mounted["catalog"]}})
    assert volume["secret"]["secretName"] == "catalog"
    assert [each["path"] for each in volume["secret"]["items"]] == ["username", "password"]


@pytest.mark.parametrize(
    ("command", "more", "options"),
    [
        ("pipeline traffic", {}, []),
        ("pipeline destinations", {}, []),
        ("pipeline advise", {}, []),
        ("ages --spark", {}, []),
        ("audit --deep", {}, []),
        ("audit --deep", {"repair": True}, ["--repair"]),
        ("pipeline archive", {}, ["--wait", "15m"]),
        ("pipeline forget", {"olderThan": "9600h"}, ["--wait", "15m", "--older-than", "400d"]),
    ],
)
def test_a_job_runs_its_command_with_the_options_that_its_fields_name(
    command: str, more: dict[str, Any], options: list[str]
) -> None:
    words = command.split()
    job = words[1] if words[0] == "pipeline" else words[0]
    jobs: dict[str, Any] = {job: HOURLY | more}
    found = children(queue(addresses={"keep": "None"}, **jobs))
    _, container, _ = pod_of(found["CronJob", f"out-{job}"])

    arguments = [
        *(*words, "--queue", "distributed://mail.out", "--master", "local[2]"),
        *(*options, "--json"),
    ]
    assert container["args"] == arguments
    context, group = click.Context(main), main.get_command(click.Context(main), words[0])
    assert group is not None
    if isinstance(group, click.Group):
        group = group.get_command(context, job)
    assert group is not None
    assert group.make_context(job, arguments[2 if words[0] == "pipeline" else 1 :])  # it takes them


def test_each_job_has_a_cron_job_of_its_own() -> None:
    ages = {"forget": {"olderThan": "9600h"}}
    jobs: dict[str, Any] = {job: HOURLY | ages.get(job, {}) for job in JOBS}

    found = children(queue(addresses={"keep": "None"}, **jobs))

    assert set(found) == {("CronJob", f"out-{job}") for job in JOBS}


def test_a_job_runs_once_at_a_time_and_again_where_a_server_was_away() -> None:
    (cron_job,) = children(queue(archive=HOURLY, addresses={"keep": "None"})).values()

    spec = cron_job["spec"]
    assert (spec["schedule"], spec["timeZone"]) == ("7 * * * *", "Etc/UTC")
    assert spec["concurrencyPolicy"] == "Forbid"
    job = spec["jobTemplate"]["spec"]
    assert job["backoffLimit"] == 2
    disrupted, rule = job["podFailurePolicy"]["rules"]
    assert disrupted["action"] == "Ignore"
    assert (rule["action"], 75 in rule["onExitCodes"]["values"]) == ("FailJob", False)
    (owner,) = cron_job["metadata"]["ownerReferences"]
    assert owner["uid"] == "u1"


def test_a_run_has_its_settings_credentials_and_key_as_files() -> None:
    found = children(queue(archive=HOURLY, addresses={"keyRef": {"name": "key"}}))
    pod, container, variables = pod_of(found["CronJob", "out-archive"])

    settings = from_environment(variables).pipeline
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert str(settings.address_key_file) == f"{mounted['addresses']}/key"
    assert settings.summary_file is not None
    assert container["terminationMessagePath"] == str(settings.summary_file)
    assert {each["name"] for each in pod["volumes"]} == set(mounted)
    assert container["args"] == [
        *("pipeline", "archive", "--queue", "distributed://mail.out", "--master", "local[2]"),
        *("--wait", "15m", "--json"),
    ]
    assert container["image"] == "postroad-pipeline:1"
    assert pod["automountServiceAccountToken"] is False
    assert from_environment(variables).cassandra.login_folder is not None


@pytest.mark.parametrize("executors", [0, 2])
def test_pods_keep_to_the_restricted_profile(executors: int) -> None:
    of = queue(**PLAIN, executors={"instances": executors})
    found = children(of)
    pods = [pod_of(found["CronJob", "out-archive"])[0]]
    if executors:
        pods.append(json.loads(found["ConfigMap", "out-pipeline"]["data"][TEMPLATE_FILE])["spec"])
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_a_driver_may_make_pods_and_its_executors_may_nothing() -> None:
    found = children(queue(**PLAIN, executors={"instances": 2, "memory": "1536Mi"}))

    pod, container, variables = pod_of(found["CronJob", "out-archive"])
    assert pod["serviceAccountName"] == "out-pipeline"
    assert pod["automountServiceAccountToken"] is True
    binding = found["RoleBinding", "out-pipeline"]
    assert binding["roleRef"]["name"] == "postroad-pipeline"
    assert [each["name"] for each in binding["subjects"]] == ["out-pipeline"]
    assert container["args"][5].startswith("k8s://")
    folder = next(
        each["mountPath"] for each in container["volumeMounts"] if each["name"] == "configuration"
    )
    assert variables["POSTROAD_PIPELINE_EXECUTORS_FILE"] == f"{folder}/{EXECUTORS_FILE}"

    data = found["ConfigMap", "out-pipeline"]["data"]
    executors = Executors(**json.loads(data[EXECUTORS_FILE]))
    assert executors.template == f"{folder}/{TEMPLATE_FILE}"
    assert executors.image == "postroad-pipeline:2"
    executor = json.loads(data[TEMPLATE_FILE])
    assert executor["spec"]["automountServiceAccountToken"] is False
    assert executor["spec"]["serviceAccountName"] == "out-queue"
    assert executor["metadata"]["labels"]["app.kubernetes.io/instance"] == "out"


def test_the_template_changes_the_pods_of_jobs_and_of_executors() -> None:
    template = {
        "metadata": {"labels": {"team": "mail"}},
        "spec": {
            "nodeSelector": {"pool": "batch"},
            "containers": [{"name": "pipeline", "resources": {"limits": {"memory": "4Gi"}}}],
        },
    }
    found = children(queue(**PLAIN, executors={"instances": 1}, template=template))
    pod, container, _ = pod_of(found["CronJob", "out-archive"])
    executor = json.loads(found["ConfigMap", "out-pipeline"]["data"][TEMPLATE_FILE])

    assert pod["nodeSelector"]["pool"] == executor["spec"]["nodeSelector"]["pool"] == "batch"
    assert container["resources"]["limits"]["memory"] == "4Gi"
    assert "resources" not in executor["spec"]["containers"][0]
    assert executor["metadata"]["labels"]["team"] == "mail"


@pytest.mark.parametrize(
    ("pipeline", "said"),
    [
        ({"archive": {"schedule": "hourly"}}, "spec.pipeline.archive.schedule: 'hourly'"),
        ({"archive": {"schedule": "61 * * * *"}}, "schedule: the minute '61'"),
        ({"audit": {"schedule": "0 0 31 2 *"}}, "spec.pipeline.audit.schedule: .* never comes"),
        ({"addresses": {}}, "spec.pipeline.addresses.keyRef is missing"),
        ({"template": {"spec": []}}, "spec.pipeline.template.spec must be an object"),
    ],
)
def test_what_cannot_work_is_named_by_its_field(pipeline: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        children(queue(**PLAIN | pipeline))


def test_without_an_image_or_with_names_to_check_no_job_is_made() -> None:
    without = replace(CONTEXT, pipeline=PipelineProgram("", "postroad-pipeline"))
    with pytest.raises(InvalidInput, match=r"spec\.pipeline\.image is missing"):
        children(queue(archive=HOURLY, addresses={"keep": "None"}), without)
    tls = CassandraTls.model_validate({"mode": "VerifyFull"})
    cassandra = CLUSTER.cassandra.model_copy(update={"tls": tls})
    checked = replace(CONTEXT, cluster=CLUSTER.model_copy(update={"cassandra": cassandra}))
    with pytest.raises(InvalidInput, match="VerifyFull"):
        children(queue(**PLAIN), checked)


@pytest.mark.parametrize(
    "text",
    [
        *("@hourly", "*/5 * * * *", "0 4 1,15 jan-mar MON", "7,37 */2 * * 1-5", "? ? * * *"),
        *("@yearly", "0 0 * 2 *", "0 0 29 2 *", "0 0 31 2,apr,5 *", "0 0 30,1 feb *"),
        *("0 0 31 1/3 *", "0 0 */30 2 *", "0 0 ? 2 ?", "0 0 5-30 2 *"),
        # With a day of the week, either of the days is enough; a step makes it one.
        *("0 0 30 2 mon", "0 0 30 2 0-6", "0 0 30 2 */2"),
    ],
)
def test_a_schedule_of_kubernetes_is_accepted(text: str) -> None:
    check_schedule(text, "schedule")


@pytest.mark.parametrize(
    "text",
    [
        *("", "* * * *", "* * * * * *", "5-1 * * * *", "*/0 * * * *", "@every 5m", "x * * * *"),
        *("0 0 30 2 *", "0 0 31 4,jun,9,NOV ?", "0 0 30/1 feb *", "0 0 31 4-6/2 *,1"),
        *("0 0 30-31 2 */1", "*/5 * 31 2/9 *"),
        *("\u00b2 * * * *", "\u0663 * * * *", "*/\u0663 * * * *", f"*/{10**19} * * * *"),
    ],
)
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="schedule"):
        check_schedule(text, "schedule")


@pytest.mark.parametrize(
    "age", ["0h", "23h59m", "400", "400d", "239977h", "\u0664\u0660h", "400h\n"]
)
def test_an_age_that_no_run_could_use_is_refused(age: str) -> None:
    with pytest.raises(ValidationError):
        ForgetSpec.model_validate(HOURLY | {"olderThan": age})


def test_every_age_of_the_spec_is_one_for_the_command() -> None:
    longest = ForgetSpec.model_validate(HOURLY | {"olderThan": "239976h"})

    assert longest.options[-2:] == ("--older-than", "9999d")
    assert AGE.convert("9999d", None, None) == timedelta(days=9999)
    begun = ForgetSpec.model_validate(HOURLY | {"olderThan": "24h1s"})
    assert begun.options[-1] == "2d"


def test_a_long_name_is_shortened_and_stays_unique() -> None:
    names = {job_name(queue("a" * 51 + end), "destinations") for end in "bc"}

    assert len(names) == 2
    assert all(len(each) <= 52 for each in names)


def test_workers_are_not_replaced_because_of_jobs() -> None:
    assert declared_hash(queue(), CONTEXT) == declared_hash(queue(**PLAIN), CONTEXT)


# In a running operator


def cron_job(operator: RunningController, job: str = "archive") -> Object | None:
    return operator.at(CRON_JOB.plural, NAMESPACE, f"outgoing-{job}")


def pipeline_of(operator: RunningController) -> Any:
    return operator.found()["status"].get("pipeline")


def test_jobs_are_made_repaired_and_removed_with_their_executors() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(
                workers=workers(), pipeline=PLAIN | {"executors": {"instances": 1}}
            )
            assert operator.condition("PipelineReady")["status"] == "True"
            assert operator.at(ROLE_BINDING.plural, NAMESPACE, "outgoing-pipeline")

            await operator.delete(CRON_JOB, "outgoing-archive")
            await move(5)
            assert cron_job(operator)
            changed = {"spec": {"suspend": True, "schedule": "1 1 1 1 1"}}
            await operator.user.patch(CRON_JOB, NAMESPACE, "outgoing-archive", changed)
            await move(5)
            repaired = cron_job(operator)
            assert repaired is not None
            assert repaired["spec"]["schedule"] == "7 * * * *"
            assert operator.events("Repaired")

            await operator.change({"pipeline": {"executors": {"instances": 0}}})
            await move(5)
            for kind in (ROLE_BINDING, SERVICE_ACCOUNT):
                assert operator.at(kind.plural, NAMESPACE, "outgoing-pipeline") is None
            await operator.change({"pipeline": None})
            await move(5)
            assert cron_job(operator) is None
            assert operator.condition("PipelineReady")["status"] is None
            assert pipeline_of(operator) is None

    run(scene())


def test_a_bad_schedule_is_a_condition_and_leaves_what_runs() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers(), pipeline=PLAIN)

            await operator.change({"pipeline": {"archive": {"schedule": "7 24 * * *"}}})
            await move(5)

            found = operator.condition("PipelineReady")
            assert (found["status"], found["reason"]) == ("False", "InvalidSpec")
            assert "spec.pipeline.archive.schedule" in found["message"]
            assert operator.condition("Ready")["status"] == "True", "mail flows"
            assert cron_job(operator)
            assert operator.events("InvalidSpec")

            await operator.change({"pipeline": {"archive": HOURLY}})
            await move(5)
            assert operator.condition("PipelineReady")["status"] == "True"

    run(scene())


def test_a_key_that_is_missing_or_short_is_named_until_it_is_there() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            hashed = PLAIN | {"addresses": {"keyRef": {"name": "addresses"}}}
            await operator.declare(workers=workers(), pipeline=hashed)
            assert operator.condition("PipelineReady")["reason"] == "CredentialsMissing"
            assert cron_job(operator) is None

            await operator.create(secret(NAMESPACE, "addresses", {"key": KEY[:-1]}))
            await move(320)
            assert "fewer than 16" in operator.condition("PipelineReady")["message"]
            change = secret(NAMESPACE, "addresses", {"key": KEY})
            await operator.user.patch(SECRET, NAMESPACE, "addresses", {"data": change["data"]})
            await move(320)
            assert operator.condition("PipelineReady")["status"] == "True"
            assert KEY not in str(operator.kubernetes.objects.values()).replace(
                str(change["data"]), ""
            )

    run(scene())


def test_a_login_at_the_catalog_that_is_missing_is_named_until_it_is_there() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            login: dict[str, Any] = {"login": {"secretRef": {"name": "catalog"}}}
            catalog = {"type": "JDBC", "uri": "jdbc:postgresql://db/lakes"} | login
            await operator.declare(workers=workers(), pipeline=PLAIN | {"catalog": catalog})
            assert operator.condition("PipelineReady")["reason"] == "CredentialsMissing"
            assert cron_job(operator) is None

            given = {"username": "postroad", "password": "pw"}
            await operator.create(secret(NAMESPACE, "catalog", given))
            await move(320)
            assert operator.condition("PipelineReady")["status"] == "True"

    run(scene())


def a_run(name: str, outcome: str, at: int, message: str = "") -> tuple[Object, Object]:
    """A Job of the archive that has ended, with its pod."""
    labels = {
        "app.kubernetes.io/managed-by": "postroad",
        "app.kubernetes.io/instance": "outgoing",
        "app.kubernetes.io/component": "pipeline",
        "postroad.dev/job": "archive",
    }
    created = f"2026-01-01T{at:02}:00:00Z"
    metadata = {"name": name, "namespace": NAMESPACE, "labels": labels}
    conditions = [{"type": outcome, "status": "True", "message": "it reached the backoff limit"}]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**metadata, "creationTimestamp": created},
        "status": {"conditions": conditions},
    }
    ended = {"terminated": {"exitCode": 0 if outcome == "Complete" else 75, "message": message}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **metadata,
            "name": f"{name}-x",
            "labels": labels | {"batch.kubernetes.io/job-name": name},
        },
        "status": {"containerStatuses": [{"name": "pipeline", "state": ended}]},
    }
    return job, pod


async def end(operator: RunningController, *runs: tuple[Object, Object], success: str) -> None:
    """Let runs have ended, as the CronJob's controller reports it."""
    for job, pod in runs:
        owner = cron_job(operator)
        for kind, each in ((JOB, job), (POD, pod)):
            assert owner
            owners = [{"controller": True, "uid": owner["metadata"]["uid"]}]
            made = {"metadata": {"ownerReferences": owners, **each["metadata"]}}
            owner = await operator.user.create(kind, {**each, **made})
            await operator.user.replace_status(kind, {**owner, "status": each["status"]})
    for active in ([{"name": "a-run"}], []):
        found = cron_job(operator)
        assert found
        status = {"lastSuccessfulTime": success, "active": active}
        await operator.user.replace_status(CRON_JOB, {**found, "status": status})
        await move(5)


SUMMARY = json.dumps({"counts": {"rows": 12, "gaps": 0}, "lag_seconds": 4200, "findings": 0})


def metric(what: str) -> float | None:
    labels = {"namespace": NAMESPACE, "name": "outgoing", "job_name": "archive"}
    return REGISTRY.get_sample_value(f"postroad_pipeline_job_{what}", labels)


def test_the_status_has_what_the_last_run_wrote_and_why_a_later_one_failed() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers(), pipeline=PLAIN)

            succeeded = a_run("outgoing-archive-1", "Complete", 10, SUMMARY)
            await end(operator, succeeded, success="2026-01-01T10:01:00Z")

            good = {
                "job": "archive",
                "lastSuccess": "2026-01-01T10:01:00Z",
                "result": "12 rows, 0 gaps",
                "lag": "1h10m",
                "findings": 0,
            }
            assert pipeline_of(operator) == [good]
            assert metric("lag_seconds") == 4200
            assert metric("last_success_timestamp_seconds") == 1767261660

            line = "WARN something\npostroad: the object store does not answer\n"
            await end(
                operator,
                a_run("outgoing-archive-2", "Failed", 11, line),
                success="2026-01-01T10:01:00Z",
            )
            assert pipeline_of(operator) == [good | {"error": "the object store does not answer"}]
            found = operator.condition("PipelineReady")
            assert (found["status"], found["reason"]) == ("False", "JobFailed")
            assert "archive failed: the object store" in found["message"]
            assert operator.condition("Ready")["status"] == "True"
            assert operator.events("JobFailed")

            await end(
                operator,
                a_run("outgoing-archive-3", "Complete", 12, "no summary"),
                success="2026-01-01T12:01:00Z",
            )
            assert pipeline_of(operator) == [good | {"lastSuccess": "2026-01-01T12:01:00Z"}]
            assert operator.condition("PipelineReady")["status"] == "True"
            assert operator.events("PipelineReady")

    run(scene())


def test_a_job_that_only_has_the_labels_of_a_run_is_none() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers(), pipeline=PLAIN)
            job, pod = a_run("outgoing-archive-1", "Complete", 10, SUMMARY)
            stray = {**job, "metadata": {**job["metadata"], "ownerReferences": []}}
            await end(operator, (stray, pod), success="2026-01-01T10:01:00Z")
            (archive,) = pipeline_of(operator)
            assert archive == {"job": "archive", "lastSuccess": "2026-01-01T10:01:00Z"}

            job, pod = a_run("outgoing-archive-2", "Complete", 11, SUMMARY)
            other = {**pod, "metadata": {**pod["metadata"], "ownerReferences": []}}
            await end(operator, (job, other), success="2026-01-01T11:01:00Z")
            (archive,) = pipeline_of(operator)
            assert archive == {"job": "archive", "lastSuccess": "2026-01-01T11:01:00Z"}

    run(scene())


def test_a_run_that_kubernetes_ended_has_its_reason() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers(), pipeline=PLAIN)
            killed = a_run("outgoing-archive-1", "Failed", 10)
            await end(operator, killed, success="2026-01-01T09:00:00Z")

            assert pipeline_of(operator)[0]["error"] == "it reached the backoff limit"

    run(scene())


def test_a_deletion_ends_the_jobs_first() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(pipeline=PLAIN, deletionPolicy="Delete")
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(5)
            assert cron_job(operator) is None

    run(scene())


def test_children_at_rest_are_current() -> None:
    for kind, child in pipeline_children(queue(**PLAIN, executors={"instances": 1}), CONTEXT):
        assert is_current(child, json.loads(json.dumps(child))), kind.name
