"""Builds the pod templates of workers and intake.

Pods keep to Pod Security's `restricted` profile with a read-only root, get their settings from the
queue's ConfigMap and credentials from files of the cluster's Secrets, which they read again when
these change, and serve probes and metrics on one port."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from postroad.controller.kubernetes.api import CONFIGURATION_HASH
from postroad.controller.kubernetes.drift import hash_of, merged
from postroad.controller.pods.settings_files import DeliveryFiles, IntakeFiles
from postroad.controller.spec.intake import HEALTH, Intake
from postroad.controller.spec.mailqueue import Workers
from postroad.controller.spec.pipeline import Pipeline
from postroad.controller.spec.placement import is_own
from postroad.controller.spec.queue_resource import PodContext, Queue
from postroad.controller.spec.tls import ServerFiles, StoreTls, keys_of
from postroad.errors import InvalidInput
from postroad.intake_settings.outbox import FileOutbox

HEALTH_PORT = 8080
"""For probes and metrics; the next port that is free where the intake listens on this one."""

FIRST_UNPRIVILEGED_PORT = 1024
GRACE_SECONDS = 30
"""From SIGTERM to SIGKILL; workers and intake drain within 25 s (`drain_seconds`)."""

DRAIN_SECONDS = 30
"""Time besides for the outbox of an intake to forward what waits."""

OUTBOX_VOLUME, OUTBOX_FOLDER = "outbox", str(FileOutbox.model_fields["directory"].default.parent)

OUTBOX_GROUP = 10001
"""That of the image's user, who can write to a volume of its group."""

POD_SECURITY: Mapping[str, Any] = {
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""Without a user: the image has one, and OpenShift gives each namespace others."""

CONTAINER_SECURITY: Mapping[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""Of the profile `restricted`."""

DEFAULT_RESOURCES = {
    "requests": {"cpu": "100m", "memory": "128Mi"},
    "limits": {"memory": "512Mi"},
}


def pod_template(
    queue: Queue,
    context: PodContext,
    component: str,
    labels: Mapping[str, str],
    configuration: Mapping[str, str],
    declared: Workers | Intake | None = None,
) -> dict[str, Any]:
    """Return the PodTemplateSpec of a component, with what the spec declares of pods. Raises:
    InvalidInput for a partial template of another shape."""
    ours = {
        "metadata": {"labels": dict(labels), "annotations": {}},
        "spec": context.pulled(_pod_spec(queue, context, component, labels)),
    }
    template: dict[str, Any] = ours
    if declared is not None:
        field = "spec.workers" if component == "worker" else "spec.intake"
        template = placed(ours, declared, field)
    read: list[object] = [_read_by(component, configuration), dict(context.tls_versions or {})]
    if component == "intake" and queue.spec.intake is not None:
        read.append(queue.spec.intake.fixed)
    template["metadata"]["annotations"] = {
        **template["metadata"].get("annotations", {}),
        CONFIGURATION_HASH: hash_of(read),
    }
    return template


def placed(
    ours: Mapping[str, Any], declared: Workers | Intake | Pipeline, field: str
) -> dict[str, Any]:
    """Return the operator's pod template with the `pod` of a part of the spec, and its `template`
    over both. Raises: InvalidInput for a partial template of another shape, or one that changes
    what pods cannot do without."""
    if declared.pod is not None:
        ours = declared.pod.applied(ours)
    template = merged(ours, declared.template, f"{field}.template")
    _refuse_ours(ours, declared.template, f"{field}.template")
    metadata = template.get("metadata") or {}
    kept = {name: each for name, each in ours["metadata"]["labels"].items() if is_own(name)}
    labels = {**metadata.get("labels", {}), **kept}
    return {**template, "metadata": {**metadata, "labels": labels}}


def _refuse_ours(ours: Mapping[str, Any], partial: Mapping[str, Any], field: str) -> None:
    """Raises: InvalidInput for a partial template that fits the operator's in its shape, but
    changes labels and annotations by which it finds pods, what their container runs, or the files
    that it reads."""
    metadata, spec = partial.get("metadata") or {}, partial.get("spec") or {}
    (own,) = ours["spec"]["containers"]
    changed = [each for each in spec.get("containers") or () if each["name"] == own["name"]]
    mounts = {each["mountPath"] for each in own["volumeMounts"]} - {"/tmp"}  # noqa: S108 - a pod's
    volumes = {each["name"] for each in ours["spec"]["volumes"] if "emptyDir" not in each}
    found = [
        f"metadata.{of}.{name}"
        for of in ("labels", "annotations")
        for name in metadata.get(of) or ()
        if is_own(name)
    ]
    found += [
        f"spec.volumes.{each['name']}"
        for each in spec.get("volumes") or ()
        if each["name"] in volumes
    ]
    place = f"spec.containers.{own['name']}"
    found += [f"{place}.{name}" for each in changed for name in ("command", "args") if name in each]
    found += [
        f"{place}.volumeMounts.{mount['mountPath']}"
        for each in changed
        for mount in each.get("volumeMounts") or ()
        if mount["mountPath"] in mounts
    ]
    if found:
        raise InvalidInput(
            f"{field}: the operator decides about {', '.join(found)}: leave it out, or choose "
            "another name"
        )


def _read_by(component: str, configuration: Mapping[str, str]) -> dict[str, str]:
    """Return the settings without those of workers, where a component is none, so that a change of
    these does not replace its pods."""
    others = ("POSTROAD_WORKER_",) if component != "worker" else ()
    return {name: value for name, value in configuration.items() if not name.startswith(others)}


def _pod_spec(
    queue: Queue, context: PodContext, component: str, labels: Mapping[str, str]
) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}]
    volumes += [each.volume() for each in server_files(queue, context, component)]
    for files in _settings_files(queue, component):
        volumes += files.volumes()
    security: dict[str, Any] = dict(POD_SECURITY)
    intake = queue.spec.intake if component == "intake" else None
    if intake and min(intake.ports.values()) < FIRST_UNPRIVILEGED_PORT:
        security["sysctls"] = [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]
    has_outbox = intake is not None and intake.outbox is not None
    if has_outbox:  # a new volume is root's
        security |= {"fsGroup": OUTBOX_GROUP, "fsGroupChangePolicy": "OnRootMismatch"}
    return {
        "serviceAccountName": queue.account(),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "terminationGracePeriodSeconds": GRACE_SECONDS + (DRAIN_SECONDS if has_outbox else 0),
        "securityContext": security,
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": dict(labels)},
            }
            for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
        ],
        "containers": [_container(queue, context, component)],
        "volumes": volumes,
    }


def _container(queue: Queue, context: PodContext, component: str) -> dict[str, Any]:
    intake = queue.spec.intake if component == "intake" else None
    health = _health_port(intake)
    ports = [{"name": HEALTH, "containerPort": health, "protocol": "TCP"}]
    mounts = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108 - the pod's own emptyDir
    environment = [{"name": "POSTROAD_HEALTH_HOST", "value": "*"}]
    if health != HEALTH_PORT:
        environment.append({"name": "POSTROAD_HEALTH_PORT", "value": str(health)})
    if intake:
        for name, port in intake.ports.items():
            ports.append({"name": name, "containerPort": port, "protocol": "TCP"})
    named: dict[str, str] = {}
    if intake and queue.spec.hostname is None:
        named["HOSTNAME"] = f"{queue.name.name}-intake.{queue.name.namespace}.svc"
    for each in server_files(queue, context, component):
        mounts.append(each.mount())
        named |= each.environment()
    if intake and intake.outbox is not None:
        mounts.append({"name": OUTBOX_VOLUME, "mountPath": OUTBOX_FOLDER})
    for files in _settings_files(queue, component):
        mounts += files.mounts()
        named |= files.environment()
    environment += [{"name": f"POSTROAD_{name}", "value": each} for name, each in named.items()]
    return {
        "name": component,
        "image": context.image,
        "args": [component],
        "envFrom": [{"configMapRef": {"name": f"{queue.name.name}-queue"}}],
        "env": environment,
        "ports": ports,
        **probes(),
        "resources": DEFAULT_RESOURCES,
        "securityContext": dict(CONTAINER_SECURITY),
        "volumeMounts": mounts,
    }


def _settings_files(queue: Queue, component: str) -> list[DeliveryFiles | IntakeFiles]:
    """Return the files of settings that a component follows."""
    delivery = DeliveryFiles.of_component(queue, component)
    intake = IntakeFiles.of(queue) if component == "intake" else None
    return [each for each in (delivery, intake) if each is not None]


def server_files(queue: Queue, context: PodContext, component: str) -> list[ServerFiles]:
    """Return the files with which a component connects. They stand in the pod template: containers
    of an earlier template read the ConfigMap when they restart, and have no such files."""
    cluster, workers = context.cluster, queue.spec.workers
    rabbitmq, cassandra, s3 = cluster.rabbitmq, cluster.cassandra, cluster.s3
    found = [
        ServerFiles(section, tls or StoreTls(), login, keys_of(login))
        for section, tls, login in (
            ("RABBITMQ", rabbitmq.tls, rabbitmq.secret_ref),
            ("CASSANDRA", cassandra.tls, cassandra.secret_ref),
            ("S3", s3.tls, s3.secret_ref),
        )
    ]
    webhook = workers.handler.webhook if component == "worker" and workers else None
    if webhook is not None:
        tls = webhook.tls or StoreTls()
        found.append(ServerFiles("WORKER_WEBHOOK", tls, webhook.secret_ref, {"secret": "secret"}))
    return [each for each in found if not each.is_empty]


def _health_port(intake: Intake | None) -> int:
    taken = intake.ports.values() if intake else ()
    return next(port for port in itertools.count(HEALTH_PORT) if port not in taken)


def probes() -> dict[str, Any]:
    """Return the probes of a container."""
    return {
        "readinessProbe": _probe("/readyz", period=5, failures=2),
        "livenessProbe": _probe("/healthz", period=10, failures=6),
        "startupProbe": _probe("/healthz", period=2, failures=60),
    }


def _probe(path: str, period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": HEALTH},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


JOB_OF_POD = "batch.kubernetes.io/job-name"
"""Label of a pod, with the name of its Job."""

SUMMARY = "/dev/termination-log"
"""File of a container, from which the operator reads the result of a run."""

MAX_RUN_SECONDS = 24 * 3600
"""A run that hangs would keep all later ones away."""

STARTING_DEADLINE_SECONDS = 900
"""Without one, a CronJob that missed a hundred runs starts none any more."""

MENDED_FIRST = [1, 2]
"""Exit codes of a run that fails again until an administrator acts."""


def job_spec(
    template: Mapping[str, Any], containers: Sequence[str], *, retries: int
) -> dict[str, Any]:
    """Return the spec of a Job. `containers`: those whose exit codes end it, for a sidecar that a
    mesh adds has codes of its own. A pod that is evicted counts as no failure."""
    codes = {"operator": "In", "values": MENDED_FIRST}
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    return {
        "backoffLimit": retries,
        "activeDeadlineSeconds": MAX_RUN_SECONDS,
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [disrupted]},
                *(
                    {"action": "FailJob", "onExitCodes": {"containerName": name, **codes}}
                    for name in containers
                ),
            ]
        },
        "template": template,
    }


def cron_job_spec(schedule: str, job: Mapping[str, Any], tags: Mapping[str, str]) -> dict[str, Any]:
    """Return the spec of a CronJob, by whose schedule Jobs with these labels are made."""
    return {
        "schedule": schedule,
        "timeZone": "Etc/UTC",
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": STARTING_DEADLINE_SECONDS,
        "successfulJobsHistoryLimit": 1,
        "failedJobsHistoryLimit": 1,
        "jobTemplate": {"metadata": {"labels": tags}, "spec": job},
    }


_OF_A_SERVER = (
    *("containers", "initContainers", "topologySpreadConstraints", "readinessGates"),
    *("restartPolicy", "terminationGracePeriodSeconds", "hostname", "subdomain"),
)
_OF_THE_CONTAINER = (
    *("image", "imagePullPolicy", "envFrom", "env", "resources", "securityContext"),
    "volumeMounts",
)


def command_pod(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a pod of commands has of the spec of a queue's pod: no probes, ports or spread.
    It ends within a second of its deletion, as Python leaves signals to the kernel, which keeps
    them from the first process of a container."""
    found = {name: each for name, each in spec.items() if name not in _OF_A_SERVER}
    return {**found, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}


def verbatim(value: str) -> str:
    """Return a variable's value that Kubernetes leaves as it was: it replaces $(NAME), and takes $$
    for $."""
    return value.replace("$", "$$")


def command_container(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same of a container."""
    return {name: container[name] for name in _OF_THE_CONTAINER if name in container}
