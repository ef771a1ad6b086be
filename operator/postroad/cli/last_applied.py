"""What `kubectl apply` leaves of a resource's specification, found out without applying it.

A field that a manifest leaves out keeps its stored value, unless the same applier named it before:
then it is removed, and the API server fills in the default. So the defaults of this release are no
guide to what an apply changes. The rules are those of kubectl's three-way merge
(https://kubernetes.io/docs/tasks/manage-kubernetes-objects/declarative-config/).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from postroad.cli.kubectl import Resource

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def specification_after(manifest: Resource, stored: Resource | None) -> Mapping[str, Any]:
    """Return `spec` as it is after an apply of a manifest, before the API server's defaults."""
    wanted = _mapping(manifest.get("spec"))
    if stored is None:
        return wanted
    return merged(_mapping(stored.get("spec")), _last_applied(stored), wanted)


def merged(
    stored: Mapping[str, Any], last: Mapping[str, Any], wanted: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the stored fields, less those that the last apply named and this one does not, with
    what this one says."""
    result = {name: value for name, value in stored.items() if name in wanted or name not in last}
    for name, value in wanted.items():
        before = result.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            result[name] = merged(before, _mapping(last.get(name)), value)
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
