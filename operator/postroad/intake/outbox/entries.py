"""Form of a mail that waits in an outbox: what the queue is to obey stands in one attribute, since
the store would obey it itself, and hold or delay the mail on its way. Pure."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from postroad.domain.mail.mail import CONTENT_DIGEST, QUARANTINE, Envelope, Mail
from postroad.domain.queues.references import digest_of
from postroad.domain.values.text import to_json
from postroad.errors import InvalidInput

OUTBOX = "postroad.outbox"
"""The attribute: JSON with the enqueue key, when the mail is due, and why it is to be held."""


class ForwardedMail(NamedTuple):
    """A mail of the outbox as the queue is to have it. `due_at`: None if it is due at once."""

    envelope: Envelope
    key: str
    due_at: datetime | None


def keyed(mail: Mail, key: str | None, new_key: Callable[[], str]) -> tuple[Mail, str]:
    """Return a mail with what two enqueues of it are compared by, and its key: the client's, or a
    new one. Raises: InvalidInput, for a client's key without that and without a content in
    memory."""
    if key is not None and CONTENT_DIGEST in mail.attributes:
        return mail, key
    known, key = key is not None, key or new_key()
    digest = digest_of(mail).hex() if known else key
    return _with(mail, {**mail.attributes, CONTENT_DIGEST: digest}), key


def packed(mail: Mail, key: str, due_at: datetime | None) -> Mail:
    """Return a mail as it waits in the outbox."""
    attributes = dict(mail.attributes)
    due = None if due_at is None else due_at.isoformat()
    own = {"key": key, "due": due, "quarantine": attributes.pop(QUARANTINE, None)}
    return _with(mail, {**attributes, OUTBOX: to_json(own).decode()})


def unpacked(envelope: Envelope, mail_id: UUID) -> ForwardedMail:
    """Return what `packed` was given. A mail that another program put there has its id as key.
    Raises: InvalidInput, where the attribute cannot be read."""
    attributes = dict(envelope.attributes)
    if (text := attributes.pop(OUTBOX, None)) is None:
        key = str(mail_id)
        return ForwardedMail(
            replace(envelope, attributes={**attributes, CONTENT_DIGEST: key}), key, None
        )
    try:
        key, due, quarantine = (json.loads(text)[each] for each in ("key", "due", "quarantine"))
        due_at = None if due is None else datetime.fromisoformat(due)
    except (ValueError, TypeError, LookupError) as error:
        raise InvalidInput(f"the attribute {OUTBOX} cannot be read") from error
    if quarantine is not None:
        attributes[QUARANTINE] = quarantine
    return ForwardedMail(replace(envelope, attributes=attributes), key, due_at)


def _with(mail: Mail, attributes: Mapping[str, str]) -> Mail:
    changed = Mail.of(replace(mail.envelope, attributes=attributes), mail.content)
    return changed if mail.shape is None else changed.of_shape(mail.shape)
