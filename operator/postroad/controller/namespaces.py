"""Decides which namespaces' MailQueues may use a QueueCluster: pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from postroad.controller.cluster_spec import AllowedNamespaces, LabelRequirement, LabelSelector


def allowed_by(cluster: Mapping[str, Any]) -> AllowedNamespaces:
    """Return the namespaces that a QueueCluster allows: only its own where its spec is invalid."""
    try:
        return AllowedNamespaces.model_validate(cluster["spec"].get("allowedNamespaces") or {})
    except ValidationError:
        return AllowedNamespaces()


def allows(allowed: AllowedNamespaces, own: str, asking: str, labels: Mapping[str, str]) -> bool:
    """Return whether a QueueCluster in namespace `own` allows MailQueues of namespace `asking`,
    which has these labels."""
    if asking == own or allowed.from_ == "All":
        return True
    return (
        allowed.from_ == "Selector"
        and allowed.selector is not None
        and selects(allowed.selector, labels)
    )


def selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Return whether all requirements hold. As in Kubernetes, no requirement selects everything."""
    return all(labels.get(name) == value for name, value in selector.match_labels.items()) and all(
        _meets(each, labels) for each in selector.match_expressions
    )


def _meets(requirement: LabelRequirement, labels: Mapping[str, str]) -> bool:
    present = requirement.key in labels
    match requirement.operator:
        case "In":
            return present and labels[requirement.key] in requirement.values
        case "NotIn":
            return not present or labels[requirement.key] not in requirement.values
        case "Exists":
            return present
        case "DoesNotExist":
            return not present
