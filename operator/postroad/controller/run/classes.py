"""Which operator a resource is for, by the class that its QueueCluster names.

One operator of a class leads, so that no two have effects on one QueueCluster, or on a MailQueue
that refers to it. The class of a QueueCluster cannot be changed. Source: ADR 0041.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from postroad.controller.kubernetes.api import QUEUE_CLUSTER
from postroad.controller.reads.indexes import Indexes
from postroad.controller.spec.cluster import DEFAULT_CLASS, class_of_cluster
from postroad.controller.spec.queue_resource import cluster_of
from postroad.errors import KubernetesRefused
from postroad.ports.kubernetes import Kubernetes


def lease_name(operator_class: str) -> str:
    """Return the name of the Lease that the operators of a class share.

    >>> lease_name("default")
    'postroad-operator-default'
    """
    return f"postroad-operator-{operator_class}"


def pipeline_role(operator_class: str) -> str:
    """Return the name of the ClusterRole that an installation of a class ships for drivers.

    >>> pipeline_role("default"), pipeline_role("canary")
    ('postroad-pipeline', 'postroad-pipeline-canary')
    """
    end = "" if operator_class == DEFAULT_CLASS else f"-{operator_class}"
    return f"postroad-pipeline{end}"


class OperatorClass:
    """The class of this operator."""

    def __init__(self, name: str, api: Kubernetes, indexes: Indexes) -> None:
        self._name = name
        self._api = api
        self._indexes = indexes

    async def has(self, found: Mapping[str, Any]) -> bool:
        """Whether a resource is for this operator. A MailQueue whose QueueCluster is missing is for
        the operator that reported about it before, else for one of the default class: another one
        could belong to it. Raises: KubernetesUnavailable."""
        if found["kind"] == QUEUE_CLUSTER.name:
            return class_of_cluster(found) == self._name
        of_cluster = await self._class_of_cluster_of(found)
        reported = (found.get("status") or {}).get("operatorClass")
        return (of_cluster or reported or DEFAULT_CLASS) == self._name

    async def _class_of_cluster_of(self, queue: Mapping[str, Any]) -> str | None:
        key = cluster_of(queue)
        indexed = self._indexes.class_of(key)
        if indexed is not None:
            return indexed
        try:
            cluster = await self._api.get(QUEUE_CLUSTER, key.namespace, key.name)
        except KubernetesRefused:  # the reconcile gets the same answer, and reports it
            return None
        return None if cluster is None else class_of_cluster(cluster)
