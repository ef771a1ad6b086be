"""Builds the pod in which a command runs while no pod of the queue does.

It has what a command needs of a worker's pod, sleeps while commands run in it, and ends by itself
after an hour if it is not deleted.
"""

from __future__ import annotations

import secrets
from typing import Any

from postroad.cli.kubectl.plugin import Kubectl, Resource
from postroad.controller.kubernetes.api import GROUP, INSTANCE, QUEUE_CLUSTER
from postroad.controller.pods.children import INTAKE, WORKER, labels
from postroad.controller.pods.pods import pod_template
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.queue_resource import PodContext, Queue, cluster_of_pods
from postroad.domain.queues.names import QueueName
from postroad.errors import ClusterNotFound

COMPONENTS = (WORKER, INTAKE)
"""The containers of the queue's pods, each of which has what a command needs."""

CONTAINER = "postroad"
LONGEST_SECONDS = 3600
"""After this time the pod ends by itself."""

_OF_THE_POD = (
    *("serviceAccountName", "automountServiceAccountToken", "enableServiceLinks"),
    *("securityContext", "volumes", "imagePullSecrets", "nodeSelector", "tolerations"),
    *("affinity", "priorityClassName", "runtimeClassName"),
)
_OF_THE_CONTAINER = (
    *("image", "imagePullPolicy", "envFrom", "env", "resources", "securityContext"),
    "volumeMounts",
)


def labels_of(queue: QueueName) -> str:
    """Return the selector of the queue's pods and Deployments."""
    return f"app.kubernetes.io/name=postroad,{INSTANCE}={queue.name}"


def debug_pod(kubectl: Kubectl, resource: Resource, queue: QueueName, image: str) -> Resource:
    """Return the pod, from the template of one of the queue's Deployments; for a queue without
    Deployments with `image`.

    Raises: ClusterNotFound, KubernetesUnavailable, KubernetesRefused.
    """
    deployments = kubectl.list("deployments", labels_of(queue), queue.namespace)
    templates = [each["spec"]["template"]["spec"] for each in deployments]
    spec = templates[0] if templates else _spec(kubectl, resource, image)
    (container,) = (each for each in spec["containers"] if each["name"] in COMPONENTS)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{queue.name}-cli-{secrets.token_hex(2)}",
            "namespace": queue.namespace,
            "labels": {
                "app.kubernetes.io/name": "postroad",
                INSTANCE: queue.name,
                "app.kubernetes.io/component": "command",
            },
        },
        "spec": {
            **_chosen(spec, _OF_THE_POD),
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LONGEST_SECONDS,
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    **_chosen(container, _OF_THE_CONTAINER),
                    "name": CONTAINER,
                    "command": ["sleep", str(LONGEST_SECONDS)],
                }
            ],
        },
    }


def _spec(kubectl: Kubectl, resource: Resource, image: str) -> dict[str, Any]:
    """Return the spec of a worker's pod."""
    queue = Queue.of(resource)
    name, namespace = queue.spec.cluster_ref.name, queue.cluster_namespace
    cluster = kubectl.get(f"{QUEUE_CLUSTER.plural}.{GROUP}", name, namespace)
    if cluster is None:
        raise ClusterNotFound(f"there is no QueueCluster {namespace}/{name}")
    servers = QueueClusterSpec.model_validate(cluster["spec"])
    context = PodContext(cluster_of_pods(servers, queue), image)
    template = pod_template(queue, context, WORKER, labels(queue, WORKER), {})
    spec: dict[str, Any] = template["spec"]
    return spec


def _chosen(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}
