"""Asks the API server whether the operator may watch what it has to, and use its Lease.

A watch that is refused has no answer by which the operator could see that it sees nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from postroad.controller.api import CHILDREN, LEASE, MAIL_QUEUE, QUEUE_CLUSTER
from postroad.ports.kubernetes import Kubernetes

WATCHED = (MAIL_QUEUE, QUEUE_CLUSTER, *CHILDREN)
LEASE_VERBS = ("get", "create", "patch")


async def missing_rights(
    api: Kubernetes, lease_namespace: str, namespaces: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the rights that the operator lacks in the namespaces that it watches (none: in all),
    and those to its Lease, each as verb and resource. Raises: KubernetesError."""
    needed = [
        (verb, kind, namespace)
        for namespace in namespaces or (None,)
        for kind in WATCHED
        for verb in ("list", "watch")
    ]
    needed += [(verb, LEASE, lease_namespace) for verb in LEASE_VERBS]
    missing = [
        f"{verb} {kind.plural}" + (f" in namespace {namespace}" if namespace else "")
        for verb, kind, namespace in needed
        if not await api.may(verb, kind, namespace)
    ]
    return tuple(missing)
