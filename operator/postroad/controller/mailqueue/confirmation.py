"""Whether the deletion of mail that waits is confirmed: pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from postroad.controller.kubernetes.api import CONFIRM_DELETION, FORCE_DELETION
from postroad.domain.queues.names import QueueName


def is_confirmed(found: Mapping[str, Any], namespace: Mapping[str, Any] | None) -> bool:
    """Whether the MailQueue, or its namespace for all in it, has the confirming annotation: each
    with its own name, so that an annotation which is copied confirms nothing."""
    return is_forced(found) or any(
        _annotations(each).get(CONFIRM_DELETION) == each["metadata"]["name"]
        for each in (found, namespace)
        if each is not None
    )


def is_forced(found: Mapping[str, Any]) -> bool:
    """Whether an administrator lets the deletion end with what can be deleted now."""
    name: str = found["metadata"]["name"]
    return _annotations(found).get(FORCE_DELETION) == name


def answers(found: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the annotations that a deletion depends on."""
    given = _annotations(found)
    return given.get(CONFIRM_DELETION), given.get(FORCE_DELETION)


def how_to_confirm(name: QueueName, *, in_namespace: bool) -> str:
    """Return the commands that decide about mail that waits. `in_namespace`: the namespace is
    deleted, which confirms or keeps all of its queues alike."""
    confirm = f"`kubectl annotate mailqueue {name.name} -n {name.namespace}"
    text = f"{confirm} {CONFIRM_DELETION}={name.name}` deletes them"
    if in_namespace:
        text += (
            f", `kubectl annotate namespace {name.namespace} {CONFIRM_DELETION}={name.namespace}` "
            "those of all queues in the namespace"
        )
    keep = '\'{"spec": {"deletionPolicy": "Retain"}}\''
    return (
        f"{text}; `kubectl patch mailqueue {name.name} -n {name.namespace} --type merge -p {keep}` "
        "keeps them"
    )


def how_to_force(namespace: str, name: str, list_: str) -> str:
    """Return how to end a deletion although something is left. `list_`: where that is listed."""
    command = f"kubectl annotate mailqueue {name} -n {namespace} {FORCE_DELETION}={name}"
    return f"`{command}` ends the deletion, and lists what is left in {list_}"


def _annotations(found: Mapping[str, Any]) -> Mapping[str, str]:
    annotations: Mapping[str, str] = found["metadata"].get("annotations") or {}
    return annotations
