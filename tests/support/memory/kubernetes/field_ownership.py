"""Managers of an object's fields, and server-side apply over them.

A field is the path of a leaf: of a scalar, an empty mapping, or a list that is replaced as a whole.
Entries of lists with keys are fields of their own, named by these keys.
Source: Kubernetes documentation (Server-Side Apply).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from postroad.errors import KubernetesConflict
from support.memory.kubernetes.world import copied

Path = tuple[str, ...]
"""Steps as `fieldsV1` has them: `f:NAME`, `k:{KEYS}` of a list's entry, `v:VALUE` of a set's."""

POD = ("f:spec", "f:template", "f:spec")
LIST_KEYS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("f:metadata", "f:ownerReferences"): ("uid",),
    ("f:spec", "f:ports"): ("port", "protocol"),
    (*POD, "f:containers"): ("name",),
    (*POD, "f:containers", "f:env"): ("name",),
    (*POD, "f:containers", "f:ports"): ("containerPort", "protocol"),
    (*POD, "f:containers", "f:volumeMounts"): ("mountPath",),
    (*POD, "f:volumes"): ("name",),
    (*POD, "f:topologySpreadConstraints"): ("topologyKey", "whenUnsatisfiable"),
}
"""Of Deployments and Services. Lists of postroad's own kinds are replaced as a whole."""

SETS = frozenset({"finalizers"})
SERVER_FIELDS = frozenset(
    {"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp"}
    | {"deletionTimestamp", "managedFields"}
)


class Manager(NamedTuple):
    """A field manager: its name, `Apply` or `Update`, and the subresource it wrote."""

    name: str
    operation: str
    subresource: str = ""


Owners = dict[Manager, frozenset[Path]]


def applied(
    found: Mapping[str, Any], wanted: Mapping[str, Any], manager: Manager, *, force: bool
) -> dict[str, Any]:
    """Return the object after an apply, with its new owners. Raises: KubernetesConflict."""
    owners = owners_in(found)
    fields = frozenset(_values(_owned(wanted)))
    contested = {
        other: taken
        for other, theirs in owners.items()
        if other != manager
        and (taken := {each for each in fields & theirs if _differs(found, wanted, each)})
    }
    if contested and not force:
        names = ", ".join(sorted({other.name for other in contested}))
        raise KubernetesConflict(f"Apply failed with conflicts with {names}")
    dropped = owners.get(manager, frozenset()) - fields
    for other, taken in contested.items():
        owners[other] -= taken
    owners[manager] = fields
    result = _merged(copied(dict(found)), _owned(wanted), ())
    kept = frozenset[Path]().union(*owners.values())
    for field in sorted(dropped - kept, key=len):
        _remove(result, field)
    return with_owners(result, owners)


def updated(
    found: Mapping[str, Any], changed: Mapping[str, Any], manager: Manager
) -> dict[str, Any]:
    """Return a changed object with its new owners: who changes a field has it, alone."""
    owners, old, owned = owners_in(found), _owned(found), _owned(changed)
    same = {part for part, each in old.items() if part in owned and owned[part] == each}
    before, after = (
        _values({part: each for part, each in whole.items() if part not in same})
        for whole in (old, owned)
    )
    gone = frozenset(before.keys() - after.keys())
    new = frozenset(
        each
        for each, value in after.items()
        if each not in before or (_has_value(each) and before[each] != value)
    )
    owners = {other: theirs - gone - new for other, theirs in owners.items()}
    owners[manager] = owners.get(manager, frozenset()) | new
    return with_owners(dict(changed), owners)


def owners_in(found: Mapping[str, Any]) -> Owners:
    """Return the fields of each manager."""
    listed = (found.get("metadata") or {}).get("managedFields") or []
    return {
        Manager(each["manager"], each["operation"], each.get("subresource", "")): frozenset(
            _paths(each["fieldsV1"], ())
        )
        for each in listed
    }


def with_owners(found: dict[str, Any], owners: Owners) -> dict[str, Any]:
    """Return the object with these owners in its `managedFields`."""
    entries = []
    for manager, fields in owners.items():
        if fields:
            entry: dict[str, Any] = {"manager": manager.name, "operation": manager.operation}
            if manager.subresource:
                entry["subresource"] = manager.subresource
            entry |= {"apiVersion": found.get("apiVersion"), "fieldsType": "FieldsV1"}
            entries.append({**entry, "fieldsV1": _tree(fields)})
    return {**found, "metadata": {**found["metadata"], "managedFields": entries}}


def _owned(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an object that managers own."""
    rest = {key: each for key, each in found.items() if key not in ("apiVersion", "kind")}
    metadata = found.get("metadata") or {}
    rest["metadata"] = {key: each for key, each in metadata.items() if key not in SERVER_FIELDS}
    return rest if rest["metadata"] else {k: v for k, v in rest.items() if k != "metadata"}


@lru_cache(maxsize=10_000)
def _keys(path: Path) -> tuple[str, ...] | None:
    """Return the keys of the list at this path, None where it is replaced as a whole."""
    return LIST_KEYS.get(tuple(each for each in path if each.startswith("f:")))


def _entry(each: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    named = {key: each.get(key, "TCP" if key == "protocol" else None) for key in keys}
    return "k:" + _sorted_json(named)


_sorted_json = json.JSONEncoder(sort_keys=True).encode
"""Made once: `json.dumps` with sorted keys makes an encoder for each call."""


def _is_set(path: Path) -> bool:
    return bool(path) and path[-1][2:] in SETS


def _values(value: Any) -> dict[Path, Any]:
    """Return the fields of an object, each with its value."""
    found: dict[Path, Any] = {}
    _collect(value, (), found)
    return found


def _collect(value: Any, path: Path, found: dict[Path, Any]) -> None:
    if isinstance(value, str):  # most are, and to ask an abstract class takes long
        found[path] = value
    elif isinstance(value, Mapping) and value:
        for name, each in value.items():
            _collect(each, (*path, f"f:{name}"), found)
    elif isinstance(value, list) and (keys := _keys(path)):
        for each in value:
            place = (*path, _entry(each, keys))
            found[place] = each
            _collect(each, place, found)
    elif isinstance(value, list) and _is_set(path):
        for each in value:
            found[(*path, f"v:{json.dumps(each)}")] = each
    elif path:
        found[path] = value


def _has_value(path: Path) -> bool:
    """True if a field is more than that an entry of a list is there."""
    return not path[-1].startswith("k:")


def _differs(one: Any, other: Any, path: Path) -> bool:
    return _has_value(path) and _at(one, path) != _at(other, path)


def _at(value: Any, path: Path, done: Path = ()) -> Any:
    """Return the value at a path; None when there is none."""
    if not path or value is None:
        return value
    step, rest = path[0], path[1:]
    if step.startswith("f:"):
        inner = value.get(step[2:]) if isinstance(value, Mapping) else None
    elif not isinstance(value, list):
        inner = None
    elif step.startswith("v:"):
        inner = json.loads(step[2:]) if json.loads(step[2:]) in value else None
    else:
        keys = _keys(done) or ()
        inner = next((each for each in value if _entry(each, keys) == step), None)
    return _at(inner, rest, (*done, step))


def _merged(found: Any, wanted: Any, path: Path) -> Any:
    keys = _keys(path)
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        result = dict(found)
        for name, each in wanted.items():
            result[name] = _merged(found.get(name), each, (*path, f"f:{name}"))
        return result
    if isinstance(wanted, list) and isinstance(found, list) and keys:
        theirs = {_entry(each, keys): each for each in found}
        for each in wanted:
            name = _entry(each, keys)
            theirs[name] = _merged(theirs.get(name), each, (*path, name))
        return list(theirs.values())
    if isinstance(wanted, list) and isinstance(found, list) and _is_set(path):
        return [*found, *(each for each in wanted if each not in found)]
    return copied(wanted)


def _remove(value: Any, path: Path) -> None:
    """Remove a field, and what is empty without it."""
    parent, step = _at(value, path[:-1]), path[-1]
    if isinstance(parent, dict) and step.startswith("f:"):
        parent.pop(step[2:], None)
    elif isinstance(parent, list):
        keys = _keys(path[:-1]) or ()
        name = json.loads(step[2:]) if step.startswith("v:") else None
        parent[:] = [
            each for each in parent if (each != name if name else _entry(each, keys) != step)
        ]
    if len(path) > 2 and parent in ({}, []):
        _remove(value, path[:-1])


def _tree(fields: frozenset[Path]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for field in sorted(fields):
        place = tree
        for step in field:
            place = place.setdefault(step, {})
        if field[-1].startswith("k:"):
            place.setdefault(".", {})
    return tree


def _paths(tree: Mapping[str, Any], path: Path) -> Iterator[Path]:
    for step, inner in tree.items():
        if step == ".":
            yield path
        elif inner:
            yield from _paths(inner, (*path, step))
        else:
            yield (*path, step)
