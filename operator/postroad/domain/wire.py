"""References as bytes: JSON, versioned, read strictly.

::

    {"v": 1, "slice": 1767261600, "bucket": 2, "id": "…", "mail": "…", "blob": "…",
     "size": 1234, "header": 0, "accepted": "2026-01-01T10:00:00.000001+00:00", "due": null,
     "attempt": 0, "error": null, "previous": [[slice, bucket, id], …], "claim": false,
     "crashes": 0, "envelope": {"sender": …, "recipients": […], "name": …, "attributes": {…},
     "origin": {…} | null, "dsn": {…} | null} | null}

`header` is always 0 and is not read.
A `previous` that names the message's own `id` says that the message is a repetition.

A reader refuses what it does not know entirely, so a new field is a new version: the message then
waits among the dead letters for a newer reader, and is not half understood.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID

from postroad.domain.entries import EnqueuedMail
from postroad.domain.identifiers import EPOCH
from postroad.domain.mail import DsnOptions, Envelope, Origin, RecipientDsn
from postroad.domain.references import Reference
from postroad.domain.shapes import ATTRIBUTE, Shape, with_shape, without_shape
from postroad.domain.slices import EntryKey
from postroad.errors import InvalidMail, UnreadableReference

VERSION = 1
LARGEST_BODY = 16 * 1024
"""Octets of a message; a reference that would be larger leaves its envelope to the row."""
LONGEST_ERROR = 512
"""Characters of the last error that travel with a reference; the row has all of it."""

_FIELDS = {
    *("v", "slice", "bucket", "id", "mail", "blob", "size", "header", "accepted", "due"),
    *("attempt", "error", "previous", "claim", "crashes", "envelope"),
}
_ENVELOPE_FIELDS = {"sender", "recipients", "name", "attributes", "origin", "dsn"}


def encode(reference: Reference) -> bytes:
    """Return the message body, with the envelope if the whole stays within `LARGEST_BODY`."""
    body = _dump(reference, reference.envelope)
    return body if len(body) <= LARGEST_BODY else _dump(reference, None)


def size_of(entry: EnqueuedMail) -> int:
    """Return about how many octets an entry's row has: as many as its reference with the envelope,
    however large, since both have the same fields."""
    return len(_dump(Reference.to(entry, claim=False), entry.envelope))


def decode(body: bytes) -> Reference:
    """Read a message body. Raises: UnreadableReference (its text quotes nothing of the body)."""
    try:
        values = json.loads(body)
        return _reference(values)
    except UnreadableReference:
        raise
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, InvalidMail) as error:
        raise UnreadableReference(f"not a reference: {type(error).__name__}") from error


def _dump(reference: Reference, envelope: Envelope | None) -> bytes:
    error = reference.last_error
    values = {
        "v": VERSION,
        "slice": _seconds(reference.key.slice_start),
        "bucket": reference.key.bucket_id,
        "id": str(reference.key.enqueue_id),
        "mail": str(reference.mail_id),
        "blob": reference.blob_key,
        "size": reference.size_bytes,
        "header": 0,  # releases before this one refuse a message without a number here
        "accepted": reference.accepted_at.isoformat(),
        "due": reference.due_at.isoformat() if reference.due_at else None,
        "attempt": reference.attempt,
        "error": error[:LONGEST_ERROR] if error is not None else None,
        "previous": [
            [_seconds(key.slice_start), key.bucket_id, str(key.enqueue_id)]
            for key in reference.previous
        ],
        "claim": reference.claim,
        "crashes": reference.crashes,
        "envelope": envelope and _stored(envelope, reference),
    }
    return json.dumps(values, separators=(",", ":")).encode()


def _stored(envelope: Envelope, reference: Reference) -> dict[str, object]:
    """Return an envelope as JSON values, with the shape among its attributes: a new field would
    make the message unreadable for the release before."""
    values = envelope_values(envelope)
    values["attributes"] = dict(with_shape(envelope.attributes, reference.shape, reference.mail_id))
    return values


def envelope_values(envelope: Envelope) -> dict[str, object]:
    """Return an envelope as JSON values."""
    origin, dsn = envelope.origin, envelope.dsn
    return {
        "sender": envelope.sender,
        "recipients": list(envelope.recipients),
        "name": envelope.name,
        "attributes": dict(envelope.attributes),
        "origin": origin and [origin.host, origin.address, origin.protocol],
        "dsn": dsn
        and {
            "ret": dsn.ret,
            "envid": dsn.envid,
            "recipients": {
                address: [list(each.notify), each.orcpt] for address, each in dsn.recipients.items()
            },
        },
    }


def _reference(values: Any) -> Reference:
    if not isinstance(values, dict) or _natural(values.get("v")) != VERSION:
        raise UnreadableReference("not a reference of a version that is known here")
    if values.keys() != _FIELDS:
        raise UnreadableReference("a field is missing or unknown")
    due, mail_id = values["due"], UUID(_typed(values["mail"], str))
    envelope = None if values["envelope"] is None else envelope_from(values["envelope"])
    shape: Shape | None = None
    if envelope is not None and ATTRIBUTE in envelope.attributes:
        attributes, shape = without_shape(envelope.attributes, mail_id)
        envelope = replace(envelope, attributes=MappingProxyType(dict(attributes)))
    return Reference(
        key=_key([values["slice"], values["bucket"], values["id"]]),
        mail_id=mail_id,
        blob_key=_typed(values["blob"], str),
        size_bytes=_natural(values["size"]),
        accepted_at=_moment(values["accepted"]),
        due_at=None if due is None else _moment(due),
        attempt=_natural(values["attempt"]),
        last_error=_optional(values["error"]),
        previous=tuple(_key(each) for each in _typed(values["previous"], list)),
        claim=_typed(values["claim"], bool),
        crashes=_natural(values["crashes"]),
        envelope=envelope,
        shape=shape,
    )


def envelope_from(values: Any) -> Envelope:
    """Read an envelope from JSON values. Raises: TypeError, KeyError, ValueError, InvalidMail,
    UnreadableReference."""
    if _typed(values, dict).keys() != _ENVELOPE_FIELDS:
        raise UnreadableReference("a field of the envelope is missing or unknown")
    origin, dsn = values["origin"], values["dsn"]
    return Envelope(
        sender=_optional(values["sender"]),
        recipients=tuple(_texts(values["recipients"])),
        name=_optional(values["name"]),
        attributes=_attributes(values["attributes"]),
        origin=None if origin is None else _origin(origin),
        dsn=None if dsn is None else _dsn(dsn),
    )


def _attributes(values: Any) -> Mapping[str, str]:
    found = {name: _typed(value, str) for name, value in _typed(values, dict).items()}
    return MappingProxyType(found)


def _origin(values: Any) -> Origin:
    host, address, protocol = _typed(values, list)
    return Origin(_optional(host), _optional(address), _optional(protocol))


def _dsn(values: Any) -> DsnOptions:
    recipients: dict[str, RecipientDsn] = {}
    for address, (notify, orcpt) in _typed(values["recipients"], dict).items():
        recipients[address] = RecipientDsn(tuple(_texts(notify)), _optional(orcpt))
    return DsnOptions(_optional(values["ret"]), _optional(values["envid"]), recipients)


def _key(values: Any) -> EntryKey:
    seconds, bucket_id, enqueue_id = _typed(values, list)
    slice_start = EPOCH + timedelta(seconds=_natural(seconds))
    return EntryKey(slice_start, _natural(bucket_id), UUID(_typed(enqueue_id, str)))


def _seconds(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(seconds=1)


def _moment(text: Any) -> datetime:
    moment = datetime.fromisoformat(_typed(text, str))
    if moment.tzinfo is None:
        raise UnreadableReference("a time has no zone")
    return moment.astimezone(UTC)


def _texts(values: Any) -> list[str]:
    return [_typed(each, str) for each in _typed(values, list)]


def _optional(value: Any) -> str | None:
    return None if value is None else _text(value)


def _text(value: Any) -> str:
    found: str = _typed(value, str)
    return found


def _natural(value: Any) -> int:
    number: int = _typed(value, int)
    if number < 0 or isinstance(value, bool):
        raise UnreadableReference("a number is negative")
    return number


def _typed(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise UnreadableReference(f"a value is no {kind.__name__}")
    return value
