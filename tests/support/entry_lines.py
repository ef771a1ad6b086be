"""What the lake's table `entries` has of an entry, computed plainly by the domain."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from postroad.domain.delivery.attempts import AttemptOutcomes, OutcomeCount
from postroad.domain.mail.mail import domain_of
from postroad.domain.queues.entries import Entry, Mark
from postroad.pipeline.states import EntryState

CountLine = tuple[str, str, str, int, str | None, str, int]


class EntryLine(NamedTuple):
    """A line, in the order of the table's columns; addresses are plain."""

    slice_start: datetime
    bucket_id: int
    enqueue_id: str
    mail_id: str
    sender: str
    sender_domain: str
    recipients: tuple[str, ...]
    recipient_count: int
    domains: tuple[str, ...]
    domain_counts: tuple[int, ...]
    size_bytes: int
    attempt: int
    held: bool
    accepted_at: datetime
    enqueued_at: datetime
    due_at: datetime | None
    state: str
    is_final: bool
    delivered_at: datetime | None
    ending: str | None
    ended_at: datetime | None
    successor: str | None
    outcomes: tuple[CountLine, ...] | None
    seconds: float | None


def entry_line(
    entry: Entry, mark: Mark | None, outcomes: AttemptOutcomes | None = None
) -> EntryLine:
    envelope, state = entry.envelope, EntryState.of(mark)
    ending = None if mark is None else mark.ending
    successor = None if mark is None else mark.successor
    domains = [domain_of(each) for each in envelope.recipients]
    return EntryLine(
        slice_start=entry.key.slice_start,
        bucket_id=entry.key.bucket_id,
        enqueue_id=str(entry.enqueue_id),
        mail_id=str(entry.mail_id),
        sender=envelope.sender or "",
        sender_domain=domain_of(envelope.sender or ""),
        recipients=envelope.recipients,
        recipient_count=len(envelope.recipients),
        domains=envelope.domains,
        domain_counts=tuple(domains.count(each) for each in envelope.domains),
        size_bytes=entry.size_bytes,
        attempt=entry.attempt,
        held=entry.held,
        accepted_at=entry.accepted_at,
        enqueued_at=entry.enqueued_at,
        due_at=entry.due_at,
        state=state.name,
        is_final=state.is_final,
        delivered_at=None if mark is None else mark.delivered_at,
        ending=None if ending is None else ending.kind.value,
        ended_at=None if ending is None else ending.at,
        successor=None if successor is None else str(successor.enqueue_id),
        outcomes=None if outcomes is None else tuple(map(_count_line, outcomes.counts)),
        seconds=None if outcomes is None else outcomes.seconds,
    )


def _count_line(count: OutcomeCount) -> CountLine:
    reason = None if count.reason is None else count.reason.value
    place = (count.domain, count.site, count.kind.value, count.code)
    return (*place, reason, count.words, count.count)
