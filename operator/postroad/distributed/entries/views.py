"""Entries as browsing and listings show them."""

from datetime import datetime

from postroad.domain.queues.documents import MailView
from postroad.domain.queues.entries import Entry
from postroad.ports.view import DeadLetter


def view_of(entry: Entry, now: datetime, dead_letter: DeadLetter | None = None) -> MailView:
    due_at = entry.due_at if entry.due_at is not None and entry.due_at > now else None
    return MailView(
        enqueue_id=entry.enqueue_id,
        mail_id=entry.mail_id,
        mail=entry.envelope,
        accepted_at=entry.accepted_at,
        enqueued_at=entry.enqueued_at,
        due_at=due_at,
        held=entry.held,
        attempt=entry.attempt,
        size_bytes=entry.size_bytes,
        last_error=entry.last_error,
        reason=dead_letter.reason if dead_letter is not None else None,
    )
