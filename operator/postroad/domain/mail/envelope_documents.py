"""Envelopes as JSON and back, for all that store and send them: bodies of the broker, spool files
and the log (FORMAT.md 4), the socket. What is not given is left out. Source: ADR 0030.

A mail as a program of the administrator gets it: over HTTP, or as a function in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import UUID

from postroad.domain.mail.mail import DsnOptions, Envelope, Origin, RecipientDsn

if TYPE_CHECKING:
    from email.message import EmailMessage

FIELDS = frozenset(("sender", "to", "name", "attributes", "origin", "dsn", "priority"))
"""All that an envelope may have."""


def envelope_value(envelope: Envelope) -> dict[str, Any]:
    found: dict[str, Any] = {"sender": envelope.sender, "to": envelope.recipients}
    if envelope.name is not None:
        found["name"] = envelope.name
    if envelope.attributes:
        found["attributes"] = dict(envelope.attributes)
    if envelope.origin is not None:
        origin = envelope.origin
        found["origin"] = [origin.host, origin.address, origin.protocol]
    if (dsn := envelope.dsn) is not None:
        each = {to: [options.notify, options.orcpt] for to, options in dsn.recipients.items()}
        found["dsn"] = [dsn.ret, dsn.envid, each]
    if envelope.priority:
        found["priority"] = envelope.priority
    return found


def envelope_of(found: Mapping[str, Any]) -> Envelope:
    """Return the envelope that `envelope_value` wrote; passes over fields that it does not know.
    Raises: ValueError, LookupError, TypeError, AttributeError, InvalidInput for what that cannot
    have written."""
    origin, dsn = found.get("origin"), found.get("dsn")
    return Envelope(
        found["sender"],
        found["to"],
        found.get("name"),
        found.get("attributes", {}),
        None if origin is None else Origin(*origin),
        None if dsn is None else _brief_dsn(*dsn),
        found.get("priority", 0),
    )


def _brief_dsn(ret: str | None, envid: str | None, recipients: Mapping[str, Any]) -> DsnOptions:
    each = {to: RecipientDsn(tuple(notify), orcpt) for to, (notify, orcpt) in recipients.items()}
    return DsnOptions(ret, envid, each)


KEY_DIGITS = 32

MAX_HANDING = timedelta(minutes=10)
"""That an administrator can allow a program for one mail: a consumer has it in flight meanwhile."""

MAX_HANDED = 50 * 2**20
"""Octets of a mail, which is in memory while a program gets it: as much as an intake accepts."""


def handing_key(mail_id: UUID, recipients: tuple[str, ...]) -> str:
    """Return the key of one handing over: the same at each attempt, in each process, and after a
    kill, for the same mail and the same recipients in any order."""
    digest = sha256("\0".join(sorted(recipients)).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{mail_id}_{digest[:KEY_DIGITS]}"


@dataclass(frozen=True, slots=True)
class HandedMail:
    """A mail for a function. Its repr shows no address. `recipients` are those that are left, at
    most a hundred at a time; `key` is the same whenever the same mail comes for the same
    recipients, which happens after an error, and after a kill of this process."""

    key: str
    mail_id: UUID
    sender: str | None
    recipients: tuple[str, ...]
    content: bytes
    priority: int
    tenant: str | None
    attributes: Mapping[str, str]

    @classmethod
    def of(cls, mail_id: UUID, envelope: Envelope, content: bytes) -> HandedMail:
        return cls(
            handing_key(mail_id, envelope.recipients),
            mail_id,
            envelope.sender,
            envelope.recipients,
            content,
            envelope.priority,
            envelope.tenant,
            envelope.attributes,
        )

    def message(self) -> EmailMessage:
        """Return the content parsed; a new one each time."""
        import email.policy

        return email.message_from_bytes(self.content, policy=email.policy.default)

    def __repr__(self) -> str:
        return f"<HandedMail {self.key} octets={len(self.content)}>"
