"""Builds the children of a QueueCluster that are its console: pure.

They are named after the QueueCluster, owned by it, and found by a label of their own: its name may
be that of a MailQueue, whose selectors must not match them."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from postroad.controller.kubernetes import api
from postroad.controller.kubernetes.drift import with_hash
from postroad.controller.pods.manifests import Child, child_of, queue_configuration
from postroad.controller.pods.network_policies import console_policy
from postroad.controller.pods.pods import pod_template
from postroad.controller.spec.cluster import ConsoleSpec
from postroad.controller.spec.mailqueue import MailQueueSpec
from postroad.controller.spec.queue_resource import PodContext, Queue
from postroad.controller.spec.tls import ServerFiles, StoreTls
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

SECRET_FILE = "clientSecret"  # noqa: S105 - the name of a file
"""File of the issuer's folder that `console/openid.py` reads, beside `ca.crt`."""

MAX_FILE = 1_000_000
"""Octets of the file of queues; a ConfigMap holds 1 MiB."""

Shown = Sequence[tuple[str, str, str]]
"""Type, status and reason of the conditions of a MailQueue that its console shows."""

_LABEL = re.compile("[a-z]([-a-z0-9]{0,53}[a-z0-9])?")


def child_name(cluster: str) -> str:
    """Return what all children of the console are called. Raises: InvalidInput."""
    if not _LABEL.fullmatch(cluster):
        raise InvalidInput(
            "spec.console needs a QueueCluster whose name begins with a letter, has no dot, and at "
            "most 55 characters, because its Service is named after it"
        )
    return f"{cluster}-{CONSOLE}"


def labels(cluster: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "postroad-console",
        api.COMPONENT: CONSOLE,
        api.CONSOLE: cluster,
    }


def account_of(spec: ConsoleSpec, cluster: str) -> str:
    """Return the ServiceAccount of the pods."""
    declared = spec.service_account
    return (declared and declared.name) or child_name(cluster)


def console_children(
    found: Object, spec: ConsoleSpec, context: PodContext, queues: Iterable[tuple[Queue, Shown]]
) -> list[Child]:
    """Return the children. `queues`: those that the console serves, with their conditions. Raises:
    InvalidInput."""
    metadata = found["metadata"]
    owner = api.Key(api.QUEUE_CLUSTER.name, metadata["namespace"], metadata["name"])
    name = child_name(owner.name)
    tags = labels(owner.name)
    # One that declares nothing: its environment is what the console's queues share.
    plain = Queue(
        QueueName(owner.namespace, owner.name),
        "",
        1,
        MailQueueSpec.model_validate({"clusterRef": {"name": owner.name}}),
    )
    shared = queue_configuration(plain, context)
    base = {key: each for key, each in shared.items() if key not in _OF_ONE}
    port = {"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}
    service = {"type": "ClusterIP", "selector": tags, "ports": [port]}
    bodies: list[tuple[Kind, dict[str, Any]]] = [
        (api.CONFIG_MAP, {"data": {FILE: _file(queues, context, base)}}),
        (api.SERVICE, {"spec": service}),
        (api.DEPLOYMENT, {"spec": _deployment(plain, spec, context, base, tags)}),
    ]
    if account_of(spec, owner.name) == name:
        bodies.insert(0, (api.SERVICE_ACCOUNT, {"automountServiceAccountToken": False}))
    if spec.network_policy.enabled:
        bodies.append((api.NETWORK_POLICY, {"spec": console_policy(context.cluster, tags)}))
    made, declared = [], spec.service_account
    for kind, body in bodies:
        own = declared.annotations if declared and kind is api.SERVICE_ACCOUNT else None
        managed = {**tags, api.MANAGED_BY: "postroad"}
        _, child = child_of(owner, metadata["uid"], kind, name, managed, body, own)
        made.append((kind, with_hash(child)))
    return made


_OF_ONE = frozenset(("POSTROAD_QUEUE", "POSTROAD_S3_BUCKET"))


def _file(
    queues: Iterable[tuple[Queue, Shown]], context: PodContext, base: Mapping[str, str]
) -> str:
    served = {}
    for queue, shown in queues:
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
        conditions = {"conditions": shown} if shown else {}
        served[place] = {"uid": queue.uid, "environment": own, **hashed, **conditions}
    text = json.dumps(served, sort_keys=True, separators=(",", ":"))
    if len(text) > MAX_FILE:
        raise InvalidInput(
            f"spec.console: {len(served)} MailQueues are more than a ConfigMap names; leave the "
            "console out, or share them out among QueueClusters"
        )
    return text


_WORKERS = "POSTROAD_WORKER_"


def _deployment(
    plain: Queue,
    spec: ConsoleSpec,
    context: PodContext,
    base: Mapping[str, str],
    tags: Mapping[str, str],
) -> dict[str, Any]:
    namespace, cluster = plain.name.namespace, plain.name.name
    name = child_name(cluster)
    template = pod_template(plain, context, CONSOLE, {**tags, api.MANAGED_BY: "postroad"}, {})
    pod = template["spec"]
    (container,) = pod["containers"]
    del container["envFrom"]  # the settings of a MailQueue of this name
    del pod["topologySpreadConstraints"]
    services = [f"{name}.{namespace}.svc", f"{name}.{namespace}", name]
    container["args"] = [
        *("cluster-console", f"--queues={FOLDER}/{FILE}"),
        f"--audience={api.console_audience(namespace, cluster)}",
        *(f"--service={each}" for each in services),
        *(f"--host={each}" for each in spec.hosts),
    ]
    container["env"] += [{"name": key, "value": value} for key, value in sorted(base.items())]
    container["ports"].append({"name": "http", "containerPort": CONSOLE_PORT, "protocol": "TCP"})
    container["volumeMounts"].append({"name": "queues", "mountPath": FOLDER, "readOnly": True})
    pod["volumes"].append({"name": "queues", "configMap": {"name": name}})
    if (oidc := spec.oidc) is not None:
        container["args"] += [f"--issuer={oidc.issuer}", f"--client={oidc.client_id}"]
        keys = {SECRET_FILE: oidc.secret_ref.key} if oidc.secret_ref else {}
        files = ServerFiles("OIDC", oidc.tls or StoreTls(), oidc.secret_ref, keys)
        if not files.is_empty:
            container["args"].append(f"--issuer-files={files.mount()['mountPath']}")
            container["volumeMounts"].append(files.mount())
            pod["volumes"].append(files.volume())
    pod["serviceAccountName"] = account_of(spec, cluster)
    pod["automountServiceAccountToken"] = True  # to ask for reviews
    return {
        "replicas": 1,  # sessions are in the memory of one
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": dict(tags)},
        "template": template if spec.pod is None else spec.pod.applied(template),
    }
