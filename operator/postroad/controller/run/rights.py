"""Asks the API server for the rights without which no condition can name what is missing.

A watch that is refused has no answer by which the operator could see that it sees nothing; a status
that cannot be read or written keeps its conditions; without its Lease the operator writes none.
"""

from __future__ import annotations

from collections.abc import Sequence

from postroad.controller.kubernetes.api import CHILDREN, LEASE
from postroad.controller.reads.indexes import OWN
from postroad.ports.kubernetes import Kubernetes

NEEDED = (
    *((verb, kind, "") for kind in (*OWN, *CHILDREN) for verb in ("list", "watch")),
    *(("get", kind, "") for kind in OWN),
    *(("update", kind, "status") for kind in OWN),
)
"""Verbs, kinds and subresources, in each namespace."""

LEASE_VERBS = ("get", "create", "patch")


async def missing_rights(
    api: Kubernetes, lease_namespace: str, namespaces: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the rights that the operator lacks in the namespaces that it watches (none: in all),
    and those to its Lease, each as verb and resource. Raises: KubernetesError."""
    needed = [
        (verb, kind, part, namespace)
        for namespace in namespaces or (None,)
        for verb, kind, part in NEEDED
    ]
    needed += [(verb, LEASE, "", lease_namespace) for verb in LEASE_VERBS]
    missing = [
        f"{verb} {kind.plural}{part and f'/{part}'}"
        + (f" in namespace {namespace}" if namespace else "")
        for verb, kind, part, namespace in needed
        if not await api.may(verb, kind, namespace, subresource=part)
    ]
    return tuple(missing)
