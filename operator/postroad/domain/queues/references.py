"""References: messages of the broker that name an entry, and carry enough of it to deliver it.

A reference carries the whole envelope where that is small, so that a dequeue reads one mark and
nothing else, and so that a lost view could be rebuilt from the broker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from postroad.domain.mail.mail import Envelope
from postroad.domain.mail.shapes import Shape
from postroad.domain.queues.entries import Entry
from postroad.domain.queues.slices import EntryKey
from postroad.domain.values.identifiers import moment_of


@dataclass(frozen=True, slots=True)
class Reference:
    """A message about one entry.

    `claim`: another message about the same mail can exist, so a consumer takes a claim before it
    transmits. A reference that names its own entry among `previous` is a repetition: the message
    that it repeats can exist, and carries no claim. `crashes` counts how often a consumer crashed
    while it had this entry. `envelope` is None when it was too large: the row has it, and the shape
    with it.
    """

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
        """Return a new reference to an entry."""
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
        """Whether a message without a claim about the same entry can exist."""
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
