"""A mail as a program of the administrator gets it: over HTTP, or as a function in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from uuid import UUID

from postroad.domain.mail.mail import Envelope

KEY_DIGITS = 32

LONGEST_HANDING = timedelta(minutes=10)
"""That an administrator can allow a program for one mail: a consumer has it in hand meanwhile."""

LARGEST_HANDED = 50 * 2**20
"""Octets of a mail, which is in memory while a program gets it: as much as an intake accepts."""


def handing_key(mail_id: UUID, recipients: tuple[str, ...]) -> str:
    """Return the key of one handing over: the same at each attempt, in each process, and after a
    kill, for the same mail and the same recipients in any order."""
    digest = sha256("\0".join(sorted(recipients)).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{mail_id}_{digest[:KEY_DIGITS]}"


@dataclass(frozen=True, slots=True)
class HandedMail:
    """A mail for a function. Its repr shows no address.

    `recipients` are those that are left, at most a hundred at a time; `key` is the same whenever
    the same mail comes for the same recipients, which happens after an error, and after a kill of
    this process.
    """

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
        """Return a mail with its key."""
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

    def __repr__(self) -> str:
        return f"<HandedMail {self.key} octets={len(self.content)}>"
