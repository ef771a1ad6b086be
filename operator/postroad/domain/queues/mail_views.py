"""What an engine shows of its mails: one that waits, one that is leased, and how many there are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Self
from uuid import UUID

from postroad.domain.delivery.endings import Endings
from postroad.domain.delivery.retries import SOONEST
from postroad.domain.mail.mail import Envelope
from postroad.domain.mail.shapes import Shape
from postroad.errors import PostroadError


@dataclass(frozen=True, slots=True)
class MailView:
    """A waiting mail as an administrator sees it. `due_at` is None when it is due; `reason` is a
    dead letter's. `accepted_at` is when the mail entered the queue, `enqueued_at` when this entry
    began."""

    enqueue_id: UUID
    mail_id: UUID
    mail: Envelope
    accepted_at: datetime
    enqueued_at: datetime
    due_at: datetime | None
    held: bool
    attempt: int
    size_bytes: int
    last_error: str | None = None
    reason: str | None = None


UNREADABLE = Envelope(sender=None, recipients=("postmaster",), name="unreadable mail")
"""Stands for the envelope of a mail that is set aside: what is stored of it cannot be read."""


@dataclass(eq=False, repr=False)
class LeasedMail(Endings):
    """What every engine's `Item` knows of its mail from the lease on.

    `mail` has the recipients left for this entry, less those already recorded; `attempt` is how
    many attempts were made before this one.
    """

    enqueue_id: UUID
    mail_id: UUID
    mail: Envelope
    accepted_at: datetime
    enqueued_at: datetime
    attempt: int
    size_bytes: int

    def __repr__(self) -> str:
        return f"<Item {self.enqueue_id}>"  # no address: items are written into logs

    give_back: ClassVar[Callable[..., Awaitable[None]]]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if kind is not None and isinstance(error, Exception):
            with suppress(PostroadError):
                return await self.retry(SOONEST, error=kind.__name__)
        return await self.give_back()

    def at_hand(self) -> tuple[bytes, Shape | None] | None:
        """See `Item`. Of an engine that fetches each content: None."""
        return None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Live mails; `delayed` and `held` are included in `size`, dead letters are not. These are None
    where they could not be counted; the number may be some time old where counting takes long.
    `at_least`: the three others may be too small, because an exact count would read too much."""

    size: int
    delayed: int
    held: int
    dead_letters: int | None
    at_least: bool = False
