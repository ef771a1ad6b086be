"""Builds what runs the jobs of a MailQueue's pipeline: pure.

A CronJob for each scheduled job. Its pod runs Spark by itself; with executors it is Spark's driver,
and makes pods that it owns, by a ServiceAccount of its own. Source: ADR 0053."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from postroad.controller.kubernetes import api
from postroad.controller.kubernetes.drift import hash_of, with_hash
from postroad.controller.pods.manifests import Child, labels, own_account, owned_child
from postroad.controller.pods.pods import (
    CONTAINER_SECURITY,
    POD_SECURITY,
    SUMMARY,
    cron_job_spec,
    job_spec,
    placed,
    server_files,
    verbatim,
)
from postroad.controller.spec.parts import check_schedule
from postroad.controller.spec.pipeline import ADDRESS_KEY, OF_THE_SERVERS, Pipeline
from postroad.controller.spec.queue_resource import PodContext, Queue
from postroad.controller.spec.tls import FOLDER, READ_BY_ALL, ServerFiles
from postroad.delivery_settings.secret_references import with_files
from postroad.errors import InvalidInput
from postroad.logins import LOGIN
from postroad.ports.kubernetes import Kind
from postroad.tls import Encryption

PIPELINE, EXECUTOR = "pipeline", "executor"
"""Components: the pods of jobs, and the pods that share their work."""

RETRIES = 2
MAX_NAME = 52
"""Characters of a CronJob's name."""

CORES = 2
"""Tasks at a time of a run without executors."""

RESOURCES = {
    "requests": {"cpu": "500m", "memory": "1536Mi"},
    "limits": {"memory": "2Gi"},
}
TEMPLATE_FILE, EXECUTORS_FILE = "pod.json", "executors.json"
"""Spark reads YAML, of which JSON is a part."""

_ADDRESSES, _CATALOG = f"{FOLDER}/addresses", f"{FOLDER}/catalog"
_CONFIGURATION = f"{FOLDER}/pipeline"


class JobCommand(NamedTuple):
    """A command of the pipeline, and its options behind those of the queue and of Spark."""

    name: Sequence[str]
    options: Sequence[str] = ()

    @classmethod
    def of_job(cls, spec: Pipeline, job: str) -> Self:
        """Return the command of a job that `spec.pipeline` has."""
        return cls(OF_THE_SERVERS.get(job, (PIPELINE, job)), spec.scheduled[job].options)


def run_template(
    queue: Queue, context: PodContext, command: JobCommand, tags: Mapping[str, str]
) -> dict[str, Any]:
    """Return the template of pods that run a command once, with further labels. Raises:
    InvalidInput, which names the field."""
    spec = queue.spec.pipeline
    if spec is None:
        raise InvalidInput("spec.pipeline of the MailQueue is missing: it has no lake and no jobs")
    check(spec, context)
    files = server_files(queue, context, PIPELINE)
    ours = {**labels(queue, PIPELINE), api.MANAGED_BY: "postroad", **tags}
    return _template(queue, context, spec, command, files, ours)


def pipeline_children(queue: Queue, context: PodContext) -> list[Child]:
    """Return what runs the jobs. Raises: InvalidInput, which names the field."""
    spec = queue.spec.pipeline
    if spec is None:
        return []
    check(spec, context)
    files = server_files(queue, context, PIPELINE)
    tags = {**labels(queue, PIPELINE), api.MANAGED_BY: "postroad"}
    parts = []
    if spec.executors.instances:
        parts = _of_executors(queue, context, spec, files, tags)
    for job, when in spec.scheduled.items():
        of_job = {api.PIPELINE_JOB: job}
        command = JobCommand.of_job(spec, job)
        template = _template(queue, context, spec, command, files, {**tags, **of_job})
        run = job_spec(template, [PIPELINE], retries=RETRIES)
        body = {"spec": cron_job_spec(when.schedule, run, {**tags, **of_job})}
        parts.append((api.CRON_JOB, job_name(queue, job), body, of_job))
    children = [
        owned_child(queue, kind, name, PIPELINE, body, of_job) for kind, name, body, of_job in parts
    ]
    if spec.executors.instances:
        children += own_account(queue, PIPELINE)
    return [(kind, with_hash(child)) for kind, child in children]


def check(spec: Pipeline, context: PodContext) -> None:
    """Raises: InvalidInput for what makes every run fail."""
    for name, job in spec.scheduled.items():
        check_schedule(job.schedule, f"spec.pipeline.{name}.schedule")
    if spec.addresses.keep == "Hashed" and spec.addresses.key_ref is None:
        raise InvalidInput(
            "spec.pipeline.addresses.keyRef is missing: name a Secret whose `key` is the key of "
            "hashed addresses, or keep plain ones or none"
        )
    if not (spec.image or context.pipeline.image):
        raise InvalidInput(
            "spec.pipeline.image is missing: the operator names no image of the pipeline "
            "(pipelineImage of the chart)"
        )
    if context.cluster.cassandra.tls.mode is Encryption.VERIFY_FULL:
        raise InvalidInput(
            "spec.pipeline: Spark's connector checks no names, and spec.cassandra.tls.mode of the "
            "QueueCluster is VerifyFull; jobs run with VerifyCA"
        )


def job_name(queue: Queue, job: str) -> str:
    name = f"{queue.name.name}-{job}"
    if len(name) <= MAX_NAME:
        return name
    end = f"-{hash_of(queue.name.name)[:8]}-{job}"
    return queue.name.name[: MAX_NAME - len(end)].rstrip("-.") + end


def _template(
    queue: Queue,
    context: PodContext,
    spec: Pipeline,
    command: JobCommand,
    files: Sequence[ServerFiles],
    tags: Mapping[str, str],
) -> dict[str, Any]:
    container = _driver(queue, context, spec, command, files)
    ours = {
        "metadata": {"labels": dict(tags), "annotations": {}},
        "spec": context.pulled(_pod_spec(queue, spec, container, files)),
    }
    return placed(ours, spec, "spec.pipeline")


def _driver(
    queue: Queue,
    context: PodContext,
    spec: Pipeline,
    command: JobCommand,
    files: Sequence[ServerFiles],
) -> dict[str, Any]:
    environment: dict[str, Any] = {
        "PIPELINE_ADDRESSES": spec.addresses.keep.lower(),
        "PIPELINE_SUMMARY_FILE": SUMMARY,
    }
    mounts = []
    if spec.addresses.key_ref is not None:
        environment["PIPELINE_ADDRESS_KEY_FILE"] = f"{_ADDRESSES}/{ADDRESS_KEY}"
        mounts.append({"name": "addresses", "mountPath": _ADDRESSES, "readOnly": True})
    if spec.catalog is not None:
        document = spec.catalog.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        found = with_files(document, lambda _: _CATALOG)
        environment["PIPELINE_CATALOG"] = verbatim(json.dumps(found, sort_keys=True))
        if spec.catalog_secret is not None:
            mounts.append({"name": "catalog", "mountPath": _CATALOG, "readOnly": True})
    fields = {}
    master = f"local[{CORES}]"
    if spec.executors.instances:
        master = "k8s://https://$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)"
        environment["PIPELINE_EXECUTORS_FILE"] = f"{_CONFIGURATION}/{EXECUTORS_FILE}"
        fields = {"PIPELINE_POD_NAME": "metadata.name", "PIPELINE_POD_IP": "status.podIP"}
        mounts.append({"name": "configuration", "mountPath": _CONFIGURATION, "readOnly": True})
    arguments = [*command.name, "--queue", f"distributed://{queue.name}", "--master", master]
    arguments += command.options
    container = _container(queue, context, spec, files, environment)
    container["env"] += [
        {"name": f"POSTROAD_{name}", "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in fields.items()
    ]
    container["volumeMounts"] += mounts
    policy = {
        "terminationMessagePath": SUMMARY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return {**container, "args": [*arguments, "--json"], "resources": RESOURCES, **policy}


def _container(
    queue: Queue,
    context: PodContext,
    spec: Pipeline,
    files: Sequence[ServerFiles],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Return what the containers of jobs and executors have in common."""
    values = dict(environment)
    for each in files:
        values |= each.environment()
    return {
        "name": PIPELINE,
        "image": spec.image or context.pipeline.image,
        "envFrom": [{"configMapRef": {"name": f"{queue.name.name}-queue"}}],
        "env": [{"name": f"POSTROAD_{name}", "value": value} for name, value in values.items()],
        "securityContext": dict(CONTAINER_SECURITY),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own emptyDir
            *(each.mount() for each in files),
        ],
    }


def _pod_spec(
    queue: Queue, spec: Pipeline, container: Mapping[str, Any], files: Sequence[ServerFiles]
) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}]
    volumes += [each.volume() for each in files]
    mounted = {each["name"] for each in container["volumeMounts"]}
    secrets = {
        "addresses": (spec.addresses.key_ref, (ADDRESS_KEY,)),
        "catalog": (spec.catalog_secret, LOGIN),
    }
    for name, (reference, keys) in secrets.items():
        if reference is not None and name in mounted:
            items = [{"key": each, "path": each} for each in keys]
            secret = {"secretName": reference.name, "items": items, "defaultMode": READ_BY_ALL}
            volumes.append({"name": name, "secret": secret})
    drives = "configuration" in mounted
    if drives:
        configuration = f"{queue.name.name}-{PIPELINE}"
        volumes.append({"name": "configuration", "configMap": {"name": configuration}})
    return {
        "serviceAccountName": queue.account(PIPELINE) if drives else queue.account(),
        "automountServiceAccountToken": drives,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "securityContext": dict(POD_SECURITY),
        "containers": [container],
        "volumes": volumes,
    }


def _of_executors(
    queue: Queue,
    context: PodContext,
    spec: Pipeline,
    files: Sequence[ServerFiles],
    tags: Mapping[str, str],
) -> list[tuple[Kind, str, dict[str, Any], dict[str, str]]]:
    """Return what a driver needs beside its ServiceAccount: rights to pods, and how to make
    them."""
    name = f"{queue.name.name}-{PIPELINE}"
    role = {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": context.pipeline.role,
    }
    account, namespace = queue.account(PIPELINE), queue.name.namespace
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    executors = {
        **spec.executors.model_dump(),
        "namespace": namespace,
        "image": spec.image or context.pipeline.image,
        "template": f"{_CONFIGURATION}/{TEMPLATE_FILE}",
        "container": PIPELINE,
    }
    data = {
        TEMPLATE_FILE: json.dumps(_executor(queue, context, spec, files, tags), sort_keys=True),
        EXECUTORS_FILE: json.dumps(executors, sort_keys=True),
    }
    return [
        (api.CONFIG_MAP, name, {"data": data}, {}),
        (api.ROLE_BINDING, name, {"roleRef": role, "subjects": [subject]}, {}),
    ]


def _executor(
    queue: Queue,
    context: PodContext,
    spec: Pipeline,
    files: Sequence[ServerFiles],
    tags: Mapping[str, str],
) -> dict[str, Any]:
    """Return the template of executors. Spark adds what differs between them, and resources."""
    tags, container = {**tags, api.COMPONENT: EXECUTOR}, _container(queue, context, spec, files, {})
    ours = {
        "metadata": {"labels": tags, "annotations": {}},
        "spec": context.pulled(_pod_spec(queue, spec, container, files)),
    }
    theirs = placed(ours, spec, "spec.pipeline")
    for container in theirs["spec"]["containers"]:
        if container["name"] == PIPELINE:
            container.pop("resources", None)
    return {"apiVersion": "v1", "kind": "Pod", **theirs}
