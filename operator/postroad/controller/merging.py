"""Merges a partial PodTemplateSpec into ours, as `kubectl patch` would (strategic merge).

Lists of named things are merged by name, so that a partial container changes ours instead of
replacing it; other lists are replaced. A null removes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MERGE_KEYS: dict[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
}
"""Field → what identifies an entry of its list, as the PodSpec declares it."""


def merged(base: Mapping[str, Any], partial: Mapping[str, Any]) -> dict[str, Any]:
    """Return the base with the partial laid over it; neither is changed.

    >>> merged({"a": 1, "env": [{"name": "x", "value": "1"}]}, {"a": None, "env": [{"name": "y"}]})
    {'env': [{'name': 'x', 'value': '1'}, {'name': 'y'}]}
    """
    result = dict(base)
    for field, value in partial.items():
        if value is None:
            result.pop(field, None)
        else:
            result[field] = _merged_value(field, base.get(field), value)
    return result


def _merged_value(field: str, base: Any, partial: Any) -> Any:
    if isinstance(partial, Mapping):
        return merged(base if isinstance(base, Mapping) else {}, partial)
    key = MERGE_KEYS.get(field)
    if key and isinstance(base, list) and isinstance(partial, list):
        return _merged_list(key, base, partial)
    return partial


def _merged_list(key: str, base: Sequence[Any], partial: Sequence[Any]) -> list[Any]:
    ours = {each.get(key): each for each in base}
    theirs = {each.get(key): each for each in partial if isinstance(each, Mapping)}
    changed = [
        merged(each, theirs[name]) if name in theirs else each for name, each in ours.items()
    ]
    return changed + [merged({}, each) for name, each in theirs.items() if name not in ours]
