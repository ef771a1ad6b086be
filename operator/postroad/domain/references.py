"""What a message of the broker says: which turn it is about, and enough of the turn to serve it.

A reference carries the whole envelope where that is small, so that a dequeue reads one mark and
nothing else, and so that a lost view could be rebuilt from the broker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from postroad.domain.entries import Turn
from postroad.domain.identifiers import moment_of
from postroad.domain.mail import Envelope
from postroad.domain.shapes import Shape
from postroad.domain.slices import TurnKey


@dataclass(frozen=True, slots=True)
class Reference:
    """A message about one turn.

    `claim`: another message about the same mail can exist, so a consumer that wants to transmit
    takes a claim first. A reference that names its own turn among `previous` is a repetition: the
    message that it repeats can exist, and carries no claim. `crashes` counts how often a consumer
    broke down while it had this turn. `envelope` is None when it was too large: the row has it, and
    the shape with it.
    """

    key: TurnKey
    mail_id: UUID
    blob_key: str
    size_bytes: int
    accepted_at: datetime
    due_at: datetime | None
    attempt: int
    last_error: str | None
    previous: tuple[TurnKey, ...]
    claim: bool
    crashes: int
    envelope: Envelope | None
    shape: Shape | None = None

    @classmethod
    def to(cls, turn: Turn, *, claim: bool) -> Reference:
        """Return a new reference to a turn."""
        return cls(
            key=turn.key,
            mail_id=turn.mail_id,
            blob_key=turn.blob_key,
            size_bytes=turn.size_bytes,
            accepted_at=turn.accepted_at,
            due_at=turn.due_at,
            attempt=turn.attempt,
            last_error=turn.last_error,
            previous=turn.previous,
            claim=claim,
            crashes=0,
            envelope=turn.envelope,
            shape=turn.shape,
        )

    @classmethod
    def repeating(cls, turn: Turn) -> Reference:
        """Return a reference to publish after a first one, without a claim, was not confirmed.

        A release that knows no repetitions reads it as any reference that needs a claim.
        """
        return replace(cls.to(turn, claim=True), previous=(*turn.previous, turn.key))

    @property
    def is_repetition(self) -> bool:
        """Whether a message without a claim about the same turn can exist."""
        return self.key in self.previous

    @property
    def turn(self) -> Turn | None:
        """The turn as far as the message knows it: all of it, or None without an envelope."""
        if self.envelope is None:
            return None
        return Turn(
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
