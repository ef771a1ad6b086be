"""References as bytes: JSON, versioned, read strictly.

::

    {"v": 1, "slice": 1767261600, "bucket": 2, "id": "…", "mail": "…", "blob": "…",
     "size": 1234, "shape": "…" | null, "accepted": "2026-01-01T10:00:00.000001+00:00", "due": null,
     "attempt": 0, "error": null, "previous": [[slice, bucket, id], …], "claim": false,
     "crashes": 0, "envelope": {"sender": …, "to": […], …} | null}

A `previous` that names the message's own `id` says that the message is a repetition.

A reader refuses what it does not know entirely, so a new field is a new version: the message then
waits among the dead letters for a newer reader, and is not half understood.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from postroad.domain.mail.envelope_documents import FIELDS, envelope_of, envelope_value
from postroad.domain.mail.mail import Envelope
from postroad.domain.mail.shapes import Shape
from postroad.domain.queues.entries import Entry
from postroad.domain.queues.references import Reference
from postroad.domain.queues.slices import EntryKey
from postroad.domain.values.identifiers import EPOCH
from postroad.domain.values.json_values import natural, optional_text, to_json, typed
from postroad.errors import InvalidInput, UnreadableReference

VERSION = 1
LARGEST_BODY = 16 * 1024
"""Octets of a message; a reference that would be larger leaves its envelope to the row."""
LONGEST_ERROR = 512
"""Characters of the last error that travel with a reference; the row has all of it."""

_MALFORMED = (*(ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError),)
_FIELDS = {
    *("v", "slice", "bucket", "id", "mail", "blob", "size", "shape", "accepted", "due"),
    *("attempt", "error", "previous", "claim", "crashes", "envelope"),
}


def encode(reference: Reference) -> bytes:
    """Return the message body, with the envelope if the whole stays within `LARGEST_BODY`."""
    body = _dump(reference, reference.envelope)
    return body if len(body) <= LARGEST_BODY else _dump(reference, None)


def size_of(entry: Entry) -> int:
    """Return about how many octets an entry's row has: as many as its reference with the envelope,
    however large, since both have the same fields."""
    return len(_dump(Reference.to(entry, claim=False), entry.envelope))


def decode(body: bytes) -> Reference:
    """Read a message body. Raises: UnreadableReference (its text quotes nothing of the body)."""
    try:
        values = json.loads(body)
        return _reference(values)
    except InvalidInput as error:
        raise UnreadableReference(str(error)) from error
    except _MALFORMED as error:
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
        "shape": reference.shape and reference.shape.as_text(),
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
        "envelope": envelope and envelope_value(envelope),
    }
    return to_json(values)


def _reference(values: Any) -> Reference:
    if not isinstance(values, dict) or natural(values.get("v")) != VERSION:
        raise UnreadableReference("not a reference of a version that is known here")
    if values.keys() != _FIELDS:
        raise UnreadableReference("a field is missing or unknown")
    due, shape, envelope = values["due"], values["shape"], values["envelope"]
    if envelope is not None and not typed(envelope, dict).keys() <= FIELDS:
        raise UnreadableReference("a field of the envelope is unknown")
    return Reference(
        key=_key([values["slice"], values["bucket"], values["id"]]),
        mail_id=UUID(typed(values["mail"], str)),
        blob_key=typed(values["blob"], str),
        size_bytes=natural(values["size"]),
        accepted_at=_moment(values["accepted"]),
        due_at=None if due is None else _moment(due),
        attempt=natural(values["attempt"]),
        last_error=optional_text(values["error"]),
        previous=tuple(_key(each) for each in typed(values["previous"], list)),
        claim=typed(values["claim"], bool),
        crashes=natural(values["crashes"]),
        envelope=None if envelope is None else envelope_of(envelope),
        shape=None if shape is None else Shape.from_text(typed(shape, str)),
    )


def _key(values: Any) -> EntryKey:
    seconds, bucket_id, enqueue_id = typed(values, list)
    slice_start = EPOCH + timedelta(seconds=natural(seconds))
    return EntryKey(slice_start, natural(bucket_id), UUID(typed(enqueue_id, str)))


def _seconds(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(seconds=1)


def _moment(text: Any) -> datetime:
    moment = datetime.fromisoformat(typed(text, str))
    if moment.tzinfo is None:
        raise UnreadableReference("a time has no zone")
    return moment.astimezone(UTC)
