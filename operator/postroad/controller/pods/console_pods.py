"""Builds the children of a QueueCluster that are its console: pure.

They are named after the QueueCluster, owned by it, and found by a label of their own: its name may
be that of a MailQueue, whose selectors must not match them."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from postroad.controller.kubernetes import api
from postroad.controller.kubernetes.drift import hash_of, with_hash
from postroad.controller.pods.manifests import Child, queue_configuration
from postroad.controller.pods.network_policies import console_policy
from postroad.controller.pods.pods import (
    CONTAINER_SECURITY,
    DEFAULT_RESOURCES,
    GRACE_SECONDS,
    HEALTH_PORT,
    POD_SECURITY,
    cluster_files,
    probes,
)
from postroad.controller.spec.cluster import ConsoleSpec
from postroad.controller.spec.intake import HEALTH
from postroad.controller.spec.mailqueue import MailQueueSpec
from postroad.controller.spec.queue_resource import PodContext, Queue
from postroad.domain.queues.names import QueueName
from postroad.errors import InvalidInput
from postroad.ports.kubernetes import Kind, Object

CONSOLE, CONSOLE_PORT = "console", 8600
KINDS = (
    *(api.CONFIG_MAP, api.SERVICE_ACCOUNT, api.SERVICE, api.DEPLOYMENT),
    api.NETWORK_POLICY,
)
"""Kinds of the children."""

FOLDER, FILE = "/etc/postroad/queues", "queues.json"

MAX_FILE = 1_000_000
"""Octets of the file of queues; a ConfigMap holds 1 MiB."""

_LABEL = re.compile("[a-z]([-a-z0-9]{0,53}[a-z0-9])?")


def child_name(cluster: str) -> str:
    """Return what all children of the console are called. Raises: InvalidInput."""
    if not _LABEL.fullmatch(cluster):
        raise InvalidInput(
            "spec.console needs a QueueCluster whose name begins with a letter, has no dot, and at "
            "most 55 characters, because its Service is named after it"
        )
    return f"{cluster}-{CONSOLE}"


def account_of(spec: ConsoleSpec, cluster: str) -> str:
    """Return the ServiceAccount of the pods."""
    declared = spec.service_account
    return (declared and declared.name) or child_name(cluster)


def console_children(
    found: Object, spec: ConsoleSpec, context: PodContext, queues: Iterable[Queue]
) -> list[Child]:
    """Return the children. `queues`: those that the console serves. Raises: InvalidInput."""
    cluster, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
    name = child_name(cluster)
    tags = {
        "app.kubernetes.io/name": "postroad-console",
        api.COMPONENT: CONSOLE,
        api.CONSOLE: cluster,
    }
    base = _configuration(QueueName(namespace, cluster), context)
    bodies: list[tuple[Kind, dict[str, Any]]] = [
        (api.CONFIG_MAP, {"data": {FILE: _file(queues, context, base)}}),
        (api.SERVICE, {"spec": _service(tags)}),
        (api.DEPLOYMENT, {"spec": _deployment(found, spec, context, base, tags)}),
    ]
    if account_of(spec, cluster) == name:
        bodies.insert(0, (api.SERVICE_ACCOUNT, {"automountServiceAccountToken": False}))
    if spec.network_policy.enabled:
        bodies.append((api.NETWORK_POLICY, {"spec": console_policy(context.cluster, tags)}))
    owner = {
        "apiVersion": api.API_VERSION,
        "kind": api.QUEUE_CLUSTER.name,
        "name": cluster,
        "uid": found["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {
        "name": name,
        "namespace": namespace,
        "labels": {**tags, api.MANAGED_BY: "postroad"},
        "ownerReferences": [owner],
    }
    made = []
    for kind, body in bodies:
        own = dict(metadata)
        if kind is api.SERVICE_ACCOUNT and spec.service_account is not None:
            own["annotations"] = dict(spec.service_account.annotations)
        type_meta = {"apiVersion": kind.api_version, "kind": kind.name}
        made.append((kind, with_hash({**type_meta, "metadata": own, **body})))
    return made


def _configuration(name: QueueName, context: PodContext) -> dict[str, str]:
    """Return the environment of a queue that declares nothing: what it shares with others."""
    spec = MailQueueSpec.model_validate({"clusterRef": {"name": name.name}})
    shared = queue_configuration(Queue(name, "", 1, spec), context)
    return {key: each for key, each in shared.items() if key not in _OF_ONE}


_OF_ONE = frozenset(("POSTROAD_QUEUE", "POSTROAD_S3_BUCKET"))


def _file(queues: Iterable[Queue], context: PodContext, base: Mapping[str, str]) -> str:
    served = {}
    for queue in queues:
        own = {
            name: value
            for name, value in queue_configuration(queue, context).items()
            if base.get(name) != value and not name.startswith(("POSTROAD_QUEUE", _WORKERS))
        }
        delivery = queue.spec.delivery
        suppression = None if delivery is None else delivery.suppression
        is_hashed = suppression is not None and suppression.addresses == "Hashed"
        hashed = {"keeps_hashes": True} if is_hashed else {}
        place = f"{queue.name.namespace}/{queue.name.name}"
        served[place] = {"uid": queue.uid, "environment": own, **hashed}
    text = json.dumps(served, sort_keys=True, separators=(",", ":"))
    if len(text) > MAX_FILE:
        raise InvalidInput(
            f"spec.console: {len(served)} MailQueues are more than a ConfigMap names; leave the "
            "console out, or share them out among QueueClusters"
        )
    return text


_WORKERS = "POSTROAD_WORKER_"


def _service(tags: Mapping[str, str]) -> dict[str, Any]:
    port = {"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}
    return {"type": "ClusterIP", "selector": dict(tags), "ports": [port]}


def _deployment(
    found: Object,
    spec: ConsoleSpec,
    context: PodContext,
    base: Mapping[str, str],
    tags: Mapping[str, str],
) -> dict[str, Any]:
    cluster, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
    name, files = child_name(cluster), cluster_files(context.cluster)
    environment = {**base, "POSTROAD_HEALTH_HOST": "*"}
    for each in files:
        environment |= {f"POSTROAD_{key}": value for key, value in each.environment().items()}
    services = [f"{name}.{namespace}.svc", f"{name}.{namespace}", name]
    container = {
        "name": CONSOLE,
        "image": context.image,
        "args": [
            *("cluster-console", f"--queues={FOLDER}/{FILE}"),
            f"--audience={api.console_audience(namespace, cluster)}",
            *(f"--service={each}" for each in services),
            *(f"--host={each}" for each in spec.hosts),
        ],
        "env": [{"name": key, "value": value} for key, value in sorted(environment.items())],
        "ports": [
            {"name": "http", "containerPort": CONSOLE_PORT, "protocol": "TCP"},
            {"name": HEALTH, "containerPort": HEALTH_PORT, "protocol": "TCP"},
        ],
        **probes(),
        "resources": DEFAULT_RESOURCES,
        "securityContext": dict(CONTAINER_SECURITY),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own emptyDir
            {"name": "queues", "mountPath": FOLDER, "readOnly": True},
            *(each.mount() for each in files),
        ],
    }
    pod = {
        "serviceAccountName": account_of(spec, cluster),
        "automountServiceAccountToken": True,  # to ask for reviews
        "enableServiceLinks": False,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": dict(POD_SECURITY),
        "containers": [container],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "queues", "configMap": {"name": name}},
            *(each.volume() for each in files),
        ],
    }
    labels = {**tags, api.MANAGED_BY: "postroad"}
    template: Mapping[str, Any] = {
        "metadata": {"labels": labels, "annotations": {}},
        "spec": context.pulled(pod),
    }
    if spec.pod is not None:
        template = spec.pod.applied(template)
    versions = hash_of(dict(context.tls_versions or {}))
    metadata = template["metadata"]
    annotations = {**metadata["annotations"], api.CONFIGURATION_HASH: versions}
    return {
        "replicas": 1,  # sessions are in the memory of one
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": dict(tags)},
        "template": {**template, "metadata": {**metadata, "annotations": annotations}},
    }
