"""References: messages of the broker that name an entry, and carry enough of it to deliver it.

A reference carries the whole envelope where that is small, so that a dequeue reads one mark and
nothing else, and so that a lost view could be rebuilt from the broker.

References as bytes: JSON, versioned, read strictly.

::

    {"v": 1, "slice": 1767261600, "bucket": 2, "id": "…", "mail": "…", "blob": "…",
     "size": 1234, "shape": "…" | null, "accepted": "2026-01-01T10:00:00.000001+00:00", "due": null,
     "attempt": 0, "error": null, "previous": [[slice, bucket, id], …], "claim": false,
     "crashes": 0, "envelope": {"sender": …, "to": […], …} | null}

A `previous` that names the message's own `id` says that the message is a repetition.

A reader refuses what it does not know entirely, so a new field is a new version: the message then
waits among the dead letters for a newer reader, and is not half understood.

Enqueue keys: what tells that two enqueues are one. Pure. Source: ADR 0045."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from postroad.domain.mail.envelope_documents import FIELDS, envelope_of, envelope_value
from postroad.domain.mail.mail import CONTENT_DIGEST, Envelope, Mail
from postroad.domain.mail.shapes import Shape
from postroad.domain.queues.entries import Entry, EntryKey
from postroad.domain.values.identifiers import EPOCH, moment_of
from postroad.domain.values.text import natural, optional_text, to_json, typed
from postroad.errors import InvalidInput, KeyReused, UnreadableReference


@dataclass(frozen=True, slots=True)
class Reference:
    """A message about one entry. `claim`: another message about the same mail can exist, so a
    consumer takes a claim before it transmits. A reference that names its own entry among
    `previous` is a repetition: the message that it repeats can exist, and carries no claim.
    `crashes` counts how often a consumer crashed while it had this entry. `envelope` is None when
    it was too large: the row has it, and the shape with it."""

    key: EntryKey
    mail_id: UUID
    blob_key: str
    size_bytes: int
    accepted_at: datetime
    due_at: datetime | None
    attempt: int
    last_error: str | None
    previous: tuple[EntryKey, ...]
    claim: bool
    crashes: int
    envelope: Envelope | None
    shape: Shape | None = None

    @classmethod
    def to(cls, entry: Entry, *, claim: bool) -> Reference:
        return cls(
            key=entry.key,
            mail_id=entry.mail_id,
            blob_key=entry.blob_key,
            size_bytes=entry.size_bytes,
            accepted_at=entry.accepted_at,
            due_at=entry.due_at,
            attempt=entry.attempt,
            last_error=entry.last_error,
            previous=entry.previous,
            claim=claim,
            crashes=0,
            envelope=entry.envelope,
            shape=entry.shape,
        )

    @classmethod
    def repeating(cls, entry: Entry) -> Reference:
        """Return a reference to publish after a first one, without a claim, was not confirmed."""
        return replace(cls.to(entry, claim=True), previous=(*entry.previous, entry.key))

    @property
    def is_repetition(self) -> bool:
        """True if a message without a claim about the same entry can exist."""
        return self.key in self.previous

    @property
    def entry(self) -> Entry | None:
        """The entry that the message carries; None without an envelope."""
        if self.envelope is None:
            return None
        return Entry(
            key=self.key,
            mail_id=self.mail_id,
            envelope=self.envelope,
            blob_key=self.blob_key,
            size_bytes=self.size_bytes,
            accepted_at=self.accepted_at,
            enqueued_at=moment_of(self.key.enqueue_id),
            due_at=self.due_at,
            attempt=self.attempt,
            last_error=self.last_error,
            previous=tuple(each for each in self.previous if each != self.key),
            shape=self.shape,
        )

    def again(self, crashes: int = 0) -> Reference:
        """Return the reference as it is published once more: from now on it needs a claim."""
        return replace(self, claim=True, crashes=self.crashes + crashes)


VERSION = 1
MAX_BODY = 16 * 1024
"""Octets of a message; a reference that would be larger leaves its envelope to the row."""
MAX_ERROR = 512
"""Characters of the last error that travel with a reference; the row has all of it."""

_MALFORMED = (*(ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError),)
_FIELDS = {
    *("v", "slice", "bucket", "id", "mail", "blob", "size", "shape", "accepted", "due"),
    *("attempt", "error", "previous", "claim", "crashes", "envelope"),
}


def encode(reference: Reference) -> bytes:
    """Return the message body, with the envelope if the whole stays within `MAX_BODY`."""
    body = _dump(reference, reference.envelope)
    return body if len(body) <= MAX_BODY else _dump(reference, None)


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
        "error": error[:MAX_ERROR] if error is not None else None,
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


KEY_LIFETIME = timedelta(hours=24)
"""Time for which an enqueue key stands for the mail that was queued with it."""

MAX_KEY = 512
"""Characters of a key."""


def token_of(key: str, *scope: bytes) -> bytes:
    """Return what is stored for a key, within a scope: 32 octets, from which the key cannot be
    read. Raises: InvalidInput, for a key that is empty or longer than `MAX_KEY`."""
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY:
        raise InvalidInput(f"an enqueue key has 1 to {MAX_KEY} characters")
    return hashlib.sha256(b"".join([*scope, key.encode(errors="surrogatepass")])).digest()


def digest_of(mail: Mail) -> bytes:
    """Return the digest of sender, recipients and content, or of the mail's CONTENT_DIGEST, by
    which two mails are the same: 32 octets. Raises: InvalidInput, where the mail has neither a
    content in memory nor a CONTENT_DIGEST."""
    if (given := mail.attributes.get(CONTENT_DIGEST)) is not None:
        return hashlib.sha256(given.encode()).digest()
    content: object = mail.content
    if not isinstance(content, bytes):
        raise InvalidInput("the content of a mail with an enqueue key has to be bytes")
    envelope = json.dumps([mail.sender, mail.recipients]).encode()
    return hashlib.sha256(envelope + b"\n" + content).digest()


def check_same(digest: bytes, queued: bytes) -> None:
    """Raises: KeyReused, where the key stands for a mail with another digest."""
    if digest != queued:
        raise KeyReused
