"""The MailQueues of manifests, and what `kubectl apply` would leave of their specifications.

A field that a manifest leaves out keeps its stored value, unless the same applier named it before:
then it is removed, and the API server fills in the default. So the defaults of this release are no
guide to what an apply changes. The rules are those of kubectl's three-way merge
(https://kubernetes.io/docs/tasks/manage-kubernetes-objects/declarative-config/).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import yaml

from postroad.cli.kubectl.plugin import Kubectl, Resource
from postroad.controller.kubernetes.api import API_VERSION, LAST_APPLIED, MAIL_QUEUE
from postroad.domain.queues.names import QueueName
from postroad.errors import InvalidInput


def mail_queues(manifests: tuple[BinaryIO, ...]) -> Iterator[Resource]:
    """Yield the MailQueues of manifests, those in Lists too. Raises: InvalidInput."""
    for file in manifests:
        try:
            documents = [each for each in yaml.safe_load_all(file) if isinstance(each, dict)]
        except yaml.YAMLError as error:
            raise InvalidInput(f"{file.name} is not YAML: {error}") from error
        for document in documents:
            items = document.get("items") if document.get("kind") == "List" else [document]
            for item in items or ():
                if (item.get("apiVersion"), item.get("kind")) == (API_VERSION, MAIL_QUEUE.name):
                    yield item


def queue_of(resource: Resource, kubectl: Kubectl) -> QueueName:
    """Return the name of a resource's queue. Raises: InvalidInput."""
    metadata = resource.get("metadata") or {}
    if not metadata.get("name"):
        raise InvalidInput("a MailQueue in the manifests has no name")
    return QueueName(metadata.get("namespace") or kubectl.default_namespace(), metadata["name"])


def specification_after(manifest: Resource, stored: Resource | None) -> Mapping[str, Any]:
    """Return `spec` as it is after an apply of a manifest, before the API server's defaults."""
    wanted = _mapping(manifest.get("spec"))
    if stored is None:
        return wanted
    return _merged(_mapping(stored.get("spec")), _last_applied(stored), wanted)


def _merged(
    stored: Mapping[str, Any], last: Mapping[str, Any], wanted: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the stored fields, less those that the last apply named and this one does not, with
    those of this one."""
    result = {name: value for name, value in stored.items() if name in wanted or name not in last}
    for name, value in wanted.items():
        before = result.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            result[name] = _merged(before, _mapping(last.get(name)), value)
        elif value is not None:
            result[name] = value
        elif name not in last or last[name] is not None:
            # A null removes the stored value when it is first applied; repeated, it does nothing.
            result.pop(name, None)
    return result


def _last_applied(stored: Resource) -> Mapping[str, Any]:
    """Return the specification that was applied last; nothing when `kubectl apply` made none of
    it. Server-side appliers, as Flux is one, are recorded as owners of fields instead."""
    metadata = _mapping(stored.get("metadata"))
    text = _mapping(metadata.get("annotations")).get(LAST_APPLIED)
    if text is not None:
        try:
            return _mapping(_mapping(json.loads(text)).get("spec"))
        except ValueError:
            return {}
    owned: dict[str, Any] = {}
    for entry in metadata.get("managedFields") or ():
        if entry.get("operation") == "Apply" and not entry.get("subresource"):
            _add(owned, _mapping(_mapping(entry.get("fieldsV1")).get("f:spec")))
    return owned


def _add(owned: dict[str, Any], fields: Mapping[str, Any]) -> None:
    """Add the fields of one owner; those of a mapping are written with `f:` in front."""
    for name, inner in fields.items():
        if name.startswith("f:"):
            _add(owned.setdefault(name.removeprefix("f:"), {}), _mapping(inner))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
