"""Which namespaces a QueueCluster allows: the part of its spec, and what follows from labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from postroad.controller.spec.parts import Model


class LabelRequirement(Model):
    """A requirement on one label."""

    key: Annotated[str, Field(min_length=1, max_length=317)]
    """Name of the label."""

    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the label relates to the values."""

    values: list[Annotated[str, Field(max_length=63)]] = Field(default=[], max_length=64)
    """Values for In and NotIn; empty for Exists and DoesNotExist."""


class LabelSelector(Model):
    """Selects by labels; all requirements must hold."""

    match_labels: dict[str, Annotated[str, Field(max_length=63)]] = Field(default={}, max_length=64)
    """Labels that must have exactly these values."""

    match_expressions: list[LabelRequirement] = Field(default=[], max_length=64)
    """Further requirements."""


class AllowedNamespaces(Model):
    """Namespaces whose MailQueues may use this cluster."""

    from_: Annotated[Literal["Same", "All", "Selector"], Field(alias="from")] = "Same"
    """Same: only the QueueCluster's own namespace. All: every namespace. Selector: the namespaces
    that `selector` selects, and its own."""

    selector: LabelSelector | None = None
    """Selects namespaces by their labels; with `from: Selector` only."""


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
