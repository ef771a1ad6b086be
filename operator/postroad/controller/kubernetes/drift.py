"""Compares a child in the cluster with the wanted one, to save the request of an apply; merges the
user's partial PodTemplateSpec into the operator's, as `kubectl patch` does (strategic merge).

The comparison covers the wanted fields alone, because the API server adds defaults and other
managers add fields. The hash in an annotation covers fields that were applied and are no longer
wanted."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

from postroad.controller.kubernetes.api import APPLIED_HASH
from postroad.errors import InvalidInput
from postroad.ports.clock import Clock

_IDENTITIES = ("name", "mountPath", "containerPort", "topologyKey", "port", "type", "key")
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
_UNITS = {
    "": Decimal(1), "m": Decimal("0.001"),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
}  # fmt: skip


MAX_ANSWERS = 10_000
"""Children whose responses are kept; a further one costs all of them one apply."""

ANSWER_AGE = timedelta(minutes=10)
"""After so long a response is asked for again: the webhook may be gone, or have been mended."""

MAX_REPAIRS = 5
"""Repairs of a child within `ANSWER_AGE`. Another controller that undoes so many undoes the next
one, too."""

FIELDS_OF_SERVICE = (("data",), ("spec", "replicas"), ("spec", "ports"), ("spec", "selector"))
"""Fields without whose values a queue does not work: pods get other settings, or no mail, or there
are none. Those of pod templates show in the pods."""

_sorted_json = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""Made once: `json.dumps` with options makes an encoder for each call."""


def hash_of(wanted: Any) -> str:
    """Return a short hash of JSON, independent of the order of keys."""
    return hashlib.sha256(_sorted_json(wanted).encode()).hexdigest()[:16]


def with_hash(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with its own hash among its annotations."""
    metadata = wanted["metadata"]
    annotations = metadata.get("annotations", {}) | {APPLIED_HASH: hash_of(wanted)}
    return {**wanted, "metadata": {**metadata, "annotations": annotations}}


def is_current(wanted: Mapping[str, Any], found: Mapping[str, Any] | None) -> bool:
    """True if applying the wanted object (with its hash) would change nothing."""
    return found is not None and _holds(wanted, found)


class ApplyResponses:
    """Outcome of an apply for children, where it is not as applied: an admission webhook rewrites a
    field. To apply the same again would change nothing for some time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, tuple[str, timedelta]] = {}
        self._repairs: dict[str, list[timedelta]] = {}

    def is_settled(self, wanted: Mapping[str, Any], found: Mapping[str, Any] | None) -> bool:
        """True if applying the wanted object would change nothing, as far as is known."""
        if found is None or is_current(wanted, found):
            return found is not None
        _, at = self._known.get(found["metadata"]["uid"], ("", timedelta()))
        is_recent = self._clock.elapsed() - at < ANSWER_AGE
        return is_recent and self.is_answer(wanted, found)

    def is_answer(self, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
        """True if an object is as the API server last made it of the wanted one."""
        known, _ = self._known.get(found["metadata"]["uid"], ("", None))
        return known == _fingerprint(wanted, found)

    def count_repair(self, found: Mapping[str, Any]) -> bool:
        """Count a repair of a child; False, and none is counted, after `MAX_REPAIRS` of late."""
        uid, now = found["metadata"]["uid"], self._clock.elapsed()
        recent = [at for at in self._repairs.get(uid, ()) if now - at < ANSWER_AGE]
        if len(recent) >= MAX_REPAIRS:
            return False
        if len(self._repairs) >= MAX_ANSWERS:
            self._repairs.clear()
        self._repairs[uid] = [*recent, now]
        return True

    def note(self, wanted: Mapping[str, Any], response: Mapping[str, Any]) -> None:
        """Keep the response to an apply."""
        if len(self._known) >= MAX_ANSWERS:
            self._known.clear()
        if not is_current(wanted, response):
            answered = _fingerprint(wanted, response), self._clock.elapsed()
            self._known[response["metadata"]["uid"]] = answered


def rewritten_fields(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return the fields that a queue needs and another process keeps from their values."""
    altered = []
    for path in FIELDS_OF_SERVICE:
        value: Any = wanted
        stored: Any = found
        for field in path:
            value, stored = (value or {}).get(field), (stored or {}).get(field)
        if value is not None and not _holds(value, stored):
            altered.append(".".join(path))
    return altered


def _fingerprint(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return a hash of what is wanted, and of an object without what the API server counts."""
    metadata, content = found["metadata"], {**found, "metadata": None, "status": None}
    kept = [metadata.get(each) for each in ("labels", "annotations", "ownerReferences")]
    return hash_of([wanted["metadata"]["annotations"][APPLIED_HASH], content, kept])


def repair_of(
    wanted: Mapping[str, Any], found: Mapping[str, Any] | None, *, expected: bool
) -> str | None:
    """Return what another process did to a child, as a verb; None where the operator wants the
    child for the first time, or another than it applied last."""
    if found is None:
        return "deleted" if expected else None
    applied = (found["metadata"].get("annotations") or {}).get(APPLIED_HASH)
    return "changed" if applied == wanted["metadata"]["annotations"][APPLIED_HASH] else None


def _holds(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, str) and wanted == found:  # most are
        return True
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            _holds(value, found.get(field)) for field, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(found, list) and _list_holds(wanted, found)
    if wanted == found and isinstance(wanted, bool) == isinstance(found, bool):
        return True
    if found is None:  # the API server leaves out what is empty, zero or false
        return wanted in ("", [], {}, 0, False)
    return isinstance(wanted, str) and isinstance(found, str) and _same_quantity(wanted, found)


def _list_holds(wanted: Sequence[Any], found: Sequence[Any]) -> bool:
    identity = _identity(wanted)
    if identity is None:
        return len(wanted) == len(found) and all(map(_holds, wanted, found))
    known = {each.get(identity): each for each in found if isinstance(each, Mapping)}
    return all(_holds(each, known.get(each[identity])) for each in wanted)


def _identity(entries: Sequence[Any]) -> str | None:
    """Return a field that tells the entries apart: tolerations of one key have none."""
    for field in _IDENTITIES:
        named = [each for each in entries if isinstance(each, Mapping) and field in each]
        if entries and len({str(each[field]) for each in named}) == len(entries):
            return field
    return None


def _same_quantity(wanted: str, found: str) -> bool:
    """The API server rewrites quantities (0.5 as 500m), so texts alone would differ for ever."""
    one, other = _QUANTITY.fullmatch(wanted), _QUANTITY.fullmatch(found)
    if one is None or other is None:
        return False
    return Decimal(one[1]) * _UNITS[one[2] or ""] == Decimal(other[1]) * _UNITS[other[2] or ""]


def hash_in(found: Mapping[str, Any], annotation: str) -> str | None:
    """Return a hash that the operator wrote into the annotations of an object."""
    value: str | None = (found["metadata"].get("annotations") or {}).get(annotation)
    return value


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
