"""Chooses the one of several operators that reconciles a QueueCluster: its status has the
namespaces that one watches.

An operator of some namespaces sees their MailQueues alone. Tables computed over these would not
fit the others, and a QueueCluster that none of these uses would be let go. So an operator
leaves a QueueCluster and its MailQueues alone while the operator that it is assigned to watches a
namespace that this one does not. The API server decides between two at once, by the version of the
status."""

from collections.abc import Mapping, Sequence
from typing import Any

from postroad.errors import ResourceConflict

ALL = "*"
"""Stands for all namespaces."""

WATCHED_NAMESPACES = "watchedNamespaces"
"""The field of the status."""

MAX_WATCHED = 1000
"""Namespaces that one operator may name, and the field has room for; it watches all without."""


def watched_namespaces(namespaces: Sequence[str]) -> list[str]:
    """Return what an operator of these namespaces writes into the status; none: all.

    >>> watched_namespaces(["mail", "infra"]), watched_namespaces([])
    (['infra', 'mail'], ['*'])
    """
    return sorted(set(namespaces)) or [ALL]


def is_assigned_elsewhere(found: Mapping[str, Any], namespaces: Sequence[str]) -> bool:
    """True if a QueueCluster is assigned to an operator that watches more than these namespaces."""
    recorded = set((found.get("status") or {}).get(WATCHED_NAMESPACES) or ())
    return bool(namespaces) and not recorded <= set(namespaces)


def is_left(cluster: Mapping[str, Any], queue_in: str, namespaces: Sequence[str]) -> bool:
    """True if the operator that a QueueCluster is assigned to reconciles its MailQueues of a
    namespace too, so that this one leaves them alone."""
    recorded = (cluster.get("status") or {}).get(WATCHED_NAMESPACES) or ()
    return is_assigned_elsewhere(cluster, namespaces) and (ALL in recorded or queue_in in recorded)


def assigned_elsewhere(found: Mapping[str, Any], namespaces: Sequence[str]) -> ResourceConflict:
    """Return the error about such a QueueCluster."""
    metadata = found["metadata"]
    recorded = (found.get("status") or {}).get(WATCHED_NAMESPACES) or ()
    place = f"{metadata['namespace']}/{metadata['name']}"
    return ResourceConflict(
        f"QueueCluster {place} is assigned to an operator that watches {_named(recorded)},"
        f" and this one watches {_named(watched_namespaces(namespaces))}",
        hint="let one operator watch all namespaces with MailQueues of the QueueCluster; where the"
        f" other one is gone for good, remove {WATCHED_NAMESPACES} from the QueueCluster's status",
    )


def _named(recorded: Sequence[str]) -> str:
    return "all namespaces" if ALL in recorded else f"namespaces {', '.join(recorded)}"
