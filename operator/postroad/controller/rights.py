"""Asks the API server whether the operator may watch what it has to.

A watch that is refused has no answer by which the operator could see that it sees nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from postroad.controller.api import CHILDREN, MAIL_QUEUE, QUEUE_CLUSTER
from postroad.ports.kubernetes import Kubernetes

WATCHED = (MAIL_QUEUE, QUEUE_CLUSTER, *CHILDREN)


async def missing_rights(api: Kubernetes, namespaces: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the rights that the operator lacks in the namespaces that it watches (none: in all),
    each as verb and resource. Raises: KubernetesError."""
    missing = [
        f"{verb} {kind.plural}" + (f" in namespace {namespace}" if namespace else "")
        for namespace in namespaces or (None,)
        for kind in WATCHED
        for verb in ("list", "watch")
        if not await api.may(verb, kind, namespace)
    ]
    return tuple(missing)
