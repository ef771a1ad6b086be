"""Merges the user's partial PodTemplateSpec into the operator's, as `kubectl patch` does (strategic
merge).

Lists whose entries have a merge key are merged by it, so that a partial container changes the
operator's instead of replacing it; other lists are replaced. A null removes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from postroad.errors import InvalidInput

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
"""List field → merge key of its entries, as the PodSpec declares it."""


def merged(
    base: Mapping[str, Any], partial: Mapping[str, Any], path: str = "template"
) -> dict[str, Any]:
    """Return a new mapping: the base, changed by the partial.

    Raises: InvalidInput, with the field's path, where the partial is not of the base's type.

    >>> merged({"a": 1, "env": [{"name": "x", "value": "1"}]}, {"a": None, "env": [{"name": "y"}]})
    {'env': [{'name': 'x', 'value': '1'}, {'name': 'y'}]}
    """
    result = dict(base)
    for field, value in partial.items():
        if value is None:
            result.pop(field, None)
        else:
            result[field] = _merged_value(f"{path}.{field}", field, base.get(field), value)
    return result


def _merged_value(path: str, field: str, base: Any, partial: Any) -> Any:
    if isinstance(base, Mapping) and not isinstance(partial, Mapping):
        raise InvalidInput(f"{path} must be an object")
    if isinstance(base, list) and not isinstance(partial, list):
        raise InvalidInput(f"{path} must be a list")
    if isinstance(partial, Mapping):
        return merged(base if isinstance(base, Mapping) else {}, partial, path)
    key = MERGE_KEYS.get(field)
    if key and isinstance(partial, list):
        return _merged_list(path, key, base if isinstance(base, list) else [], partial)
    return partial


def _merged_list(path: str, key: str, base: Sequence[Any], partial: Sequence[Any]) -> list[Any]:
    for number, each in enumerate(partial):
        if not isinstance(each, Mapping) or not isinstance(each.get(key), str | int):
            raise InvalidInput(f"{path}[{number}] must be an object with a {key}")
    ours = {each.get(key): each for each in base}
    theirs = {each[key]: each for each in partial}
    changed = [
        merged(each, theirs[name], f"{path}[{name}]") if name in theirs else each
        for name, each in ours.items()
    ]
    return changed + [
        merged({}, each, f"{path}[{name}]") for name, each in theirs.items() if name not in ours
    ]
