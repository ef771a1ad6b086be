"""The part of a queue's pod that a command needs, whether `kubectl mailqueue` runs it or a Job."""

from collections.abc import Mapping
from typing import Any

_OF_THE_POD = (
    *("serviceAccountName", "automountServiceAccountToken", "enableServiceLinks"),
    *("securityContext", "volumes", "imagePullSecrets", "nodeSelector", "tolerations"),
    *("affinity", "priorityClassName", "runtimeClassName"),
)
_OF_THE_CONTAINER = (
    *("image", "imagePullPolicy", "envFrom", "env", "resources", "securityContext"),
    "volumeMounts",
)


def command_pod(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a pod of commands has of the spec of a queue's pod: no probes, ports or spread.
    It ends within a second of its deletion, as Python leaves signals to the kernel, which keeps
    them from the first process of a container."""
    found = {name: spec[name] for name in _OF_THE_POD if name in spec}
    return {**found, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}


def command_container(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same of a container."""
    return {name: container[name] for name in _OF_THE_CONTAINER if name in container}
