"""Search and look at mail: pages of listings, one mail, and why it waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from postroad.domain.mail.mail import QUARANTINE
from postroad.domain.queues.documents import MailView
from postroad.domain.queues.selection import Candidate, Selector
from postroad.errors import MailNotFound
from postroad.ports.clock import Clock
from postroad.ports.mail_queue import MailQueue

Views = Callable[[Selector], AsyncIterator[MailView]]
"""A listing of a queue: `browse` or `dead_letters`."""

SCAN_TIME = timedelta(milliseconds=200)
"""After which a page ends where it is, with fewer mails than asked for, or none, and its `next`."""

PULSE = timedelta(milliseconds=25)
"""Time after which an engine that finds nothing says how far it is; a page ends so much later."""


class MailState(StrEnum):
    """State of a mail."""

    DUE = "due"
    DELAYED = "delayed"
    HELD = "held"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class MailSearch:
    """The mails of a search. The engine applies `selector`, but to the mails by which it says how
    far it is; `state` and `text`, which stands in an address, the name or the last error whatever
    its case, are applied to what it yields."""

    selector: Selector
    state: MailState | None = None
    text: str | None = None

    def fits(self, view: MailView, now: datetime) -> bool:
        return (
            self.selector.matches(Candidate(view.enqueue_id, view.mail, view.accepted_at), now)
            and (self.state is None or state_of(view) is self.state)
            and (self.text is None or any(self.text.casefold() in each for each in _texts(view)))
        )


@dataclass(frozen=True, slots=True)
class FoundPage:
    """A page, and the id after which the next one begins; None: there is none."""

    views: list[MailView]
    next: UUID | None


def state_of(view: MailView) -> MailState:
    if view.reason is not None:
        return MailState.DEAD
    if view.held:
        return MailState.HELD
    return MailState.DUE if view.due_at is None else MailState.DELAYED


def _texts(view: MailView) -> list[str]:
    mail = view.mail
    texts = (mail.sender, mail.name, view.last_error, view.reason, *mail.recipients)
    return [each.casefold() for each in texts if each]


async def find_page(
    views: Views, search: MailSearch, after: UUID | None, limit: int, clock: Clock
) -> FoundPage:
    """Return a page of at most `limit` mails. A mail that gets another entry meanwhile may be on a
    later page again; none is missed. Raises: as the listing."""
    began, until = clock.now(), clock.elapsed() + SCAN_TIME
    found: list[MailView] = []
    last: UUID | None = None
    last_old: UUID | None = None
    wanted = replace(search.selector, after=after, pulse=PULSE)
    async with aclosing(views(wanted)) as stream:  # type: ignore[type-var]
        async for view in stream:
            if len(found) == limit or (last is not None and clock.elapsed() > until):
                return FoundPage(found, last_old or last)
            if search.fits(view, began):
                found.append(view)
            last = view.place or view.enqueue_id
            # An entry that came meanwhile may stand ahead of its place: after it, mail is missed.
            if view.place is not None or view.enqueued_at < began:
                last_old = max(last, last_old or last)
    return FoundPage(found, None)


async def find_mail(queue: MailQueue, enqueue_id: UUID) -> MailView:
    """Return one mail, waiting or dead. Raises: MailNotFound; as `browse`."""
    selector = Selector(enqueue_id=enqueue_id)
    for views in (queue.browse(selector), queue.dead_letters(selector)):
        async for view in views:
            return view
    raise MailNotFound


class WaitingCause(StrEnum):
    """Cause for which a mail is not delivered yet."""

    DUE = "Due"
    DELAYED = "Delayed"
    RETRIED = "Retried"
    HELD = "Held"
    QUARANTINED = "Quarantined"
    DEAD = "Dead"


def cause_of(view: MailView) -> tuple[WaitingCause, str]:
    """Return why a mail waits, with a text for people."""
    state = state_of(view)
    if state is MailState.DEAD:
        return WaitingCause.DEAD, f"It is given up: {view.reason}"
    if state is MailState.HELD:
        reason = view.mail.attributes.get(QUARANTINE)
        if reason is not None:
            return WaitingCause.QUARANTINED, f"A filter held it until it is released: {reason}"
        return WaitingCause.HELD, "An administrator holds it until it is released."
    if state is MailState.DELAYED:
        if view.last_error is None:
            return WaitingCause.DELAYED, "It was queued for later, or waits for its next attempt."
        return WaitingCause.RETRIED, f"It waits for its next attempt: {view.last_error}"
    return WaitingCause.DUE, "It is due, and waits for a worker that has a connection for it."
