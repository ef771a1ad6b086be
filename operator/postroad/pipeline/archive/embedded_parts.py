"""The history of mails in a store in a directory: parts of it, which archived segments have, and
the lines of the lake's table `entries` that the parts of a mail make. Pure.

The records of a mail lie in several segments, which a store lets go at different times. So what is
not whole yet is kept, without addresses that the lake has not either, until the rest of it comes.
Source: ADR 0063 (FORMAT.md 6 and 11 have the bytes)."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.mail.mail import domain_of
from postroad.domain.queues.documents import outcomes_of, outcomes_value
from postroad.domain.queues.entries import EndingKind, slice_of
from postroad.domain.values.instants import instant
from postroad.embedded.log.envelopes import NOWHERE, EnvelopeRecord, Unreadable
from postroad.embedded.log.frames import Frame
from postroad.embedded.log.layout import Lane
from postroad.embedded.log.records import FinishKind, FinishRecord, OutcomesRecord, decode
from postroad.embedded.log.segments import Header, position
from postroad.pipeline.addresses import KeptAddress
from postroad.pipeline.states import DELIVERED, WAITING

HOUR = timedelta(hours=1)
"""The slices of a lake whose queue has none, by when an entry was made."""

BUCKET = 0
MICROSECOND = timedelta(microseconds=1)


class PartKind(StrEnum):
    """Kind of a part: of a mail's history, or about the segment itself."""

    ENVELOPE = "envelope"
    OUTCOMES = "outcomes"
    FINISH = "finish"
    UNREADABLE = "unreadable"
    SEGMENT = "segment"
    """Up to which offset the lake has this segment, whose file may still be there."""


class HistoryPart(NamedTuple):
    """A part, as the table `parts` has it. `salt` names its segment, which was begun at
    `since_us`; `rest` is JSON."""

    mail_id: str
    entry_number: int
    kind: str
    salt: str
    since_us: int
    sender: str | None
    recipients: list[str | None] | None
    rest: str

    @property
    def values(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.rest)
        return found


class MailLines(NamedTuple):
    """Lines of `entries`, in its columns' order, and whether nothing more comes of the mail."""

    lines: list[tuple[Any, ...]]
    is_whole: bool


def parts_of(header: Header, frames: Iterable[Frame], kept: KeptAddress) -> Iterator[HistoryPart]:
    """Yield what frames of a segment have of the history of mails."""
    salt, since_us = header.salt.hex(), header.created_us
    for frame in frames:
        mail_id = str(UUID(bytes=frame.payload[:16].ljust(16, b"\0")))
        try:
            record = decode(frame.type, frame.payload)
        except Unreadable:
            yield HistoryPart(
                mail_id, 0, PartKind.UNREADABLE.value, salt, since_us, None, None, "{}"
            )
            continue
        place = (header.lane, position(header.sequence, frame.offset))
        found = _of_record(record, place, kept)
        if record is not None and found is not None:
            yield HistoryPart(
                mail_id, record.entry_number, found[0].value, salt, since_us, *found[1:]
            )


def segment_part(salt: str, end: int) -> HistoryPart:
    """Return the part that says that a segment was read up to an offset."""
    rest = json.dumps({"end": end})
    return HistoryPart("", 0, PartKind.SEGMENT.value, salt, 0, None, None, rest)


_Place = tuple[Lane, int]
"""A lane, and a position in it."""


def _of_record(
    record: object, place: _Place, kept: KeptAddress
) -> tuple[PartKind, str | None, list[str | None] | None, str] | None:
    match record:
        case EnvelopeRecord(envelope=envelope):
            recipients = list(map(kept, envelope.recipients))
            return PartKind.ENVELOPE, kept(envelope.sender or ""), recipients, _rest(record, place)
        case OutcomesRecord(document=document):
            value = _read(document)
            at = value.get("at")
            rest = {
                "outcomes": outcomes_value(outcomes_of(value)),
                "at": at if isinstance(at, int) else None,
            }
            return PartKind.OUTCOMES, None, None, json.dumps(rest)
        case FinishRecord(kind=kind, lane=lane, position=where):
            return PartKind.FINISH, None, None, json.dumps({"kind": int(kind), "of": (lane, where)})
    return None


def _read(document: bytes) -> dict[str, Any]:
    try:
        found = json.loads(document)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _rest(record: EnvelopeRecord, place: _Place) -> str:
    envelope = record.envelope
    counts = Counter(map(domain_of, envelope.recipients))
    return json.dumps(
        {
            "place": place,
            "predecessor": record.predecessor,
            "enqueue_id": str(UUID(bytes=record.enqueue_id)),
            "sender_domain": domain_of(envelope.sender or ""),
            "domain_counts": {each: counts[each] for each in envelope.domains},
            "size_bytes": record.size_bytes,
            "attempt": record.attempt,
            "held": record.held,
            "dead": record.dead,
            "accepted_us": record.accepted_us,
            "enqueued_us": record.enqueued_us,
            "due_us": record.due_us,
        }
    )


def lost_moments(parts: Iterable[HistoryPart]) -> Iterator[int]:
    """Yield when something happened to an entry of one mail whose ENVELOPE is not among these
    parts, in microseconds since 1970."""
    known = list(parts)
    entries = {each.entry_number for each in known if each.kind == PartKind.ENVELOPE}
    for each in known:
        if each.entry_number not in entries:
            yield each.values.get("at") or each.since_us


class _Ending(NamedTuple):
    state: str
    at: datetime | None = None
    successor: str | None = None


def lines_of(parts: Iterable[HistoryPart]) -> MailLines:
    """Return the lines of one mail. Parts in any order, and more than once, make the same."""
    known = {(each.entry_number, each.kind): each for each in parts}
    envelopes = [known[each] for each in sorted(known) if each[1] == PartKind.ENVELOPE]
    finish = next((each for each in known.values() if each.kind == PartKind.FINISH), None)
    attempts = {number: part for (number, kind), part in known.items() if kind == PartKind.OUTCOMES}
    entries: dict[str, list[HistoryPart]] = {}
    for each in envelopes:
        if not each.values["dead"]:
            entries.setdefault(each.values["enqueue_id"], []).append(each)
    lines = [_line(same, envelopes, finish, attempts) for same in entries.values()]
    return MailLines(lines, finish is not None and _has_all(envelopes, finish))


def _has_all(envelopes: Sequence[HistoryPart], finish: HistoryPart) -> bool:
    """True if the ENVELOPE that ended is there, and each one before it."""
    before = {tuple(each.values["place"]): each.values["predecessor"] for each in envelopes}
    lane, where = finish.values["of"]
    while where != NOWHERE and (lane, where) in before:
        lane, where = before.pop((lane, where))
    return bool(where == NOWHERE)


def _line(
    same: Sequence[HistoryPart],
    envelopes: Sequence[HistoryPart],
    finish: HistoryPart | None,
    attempts: dict[int, HistoryPart],
) -> tuple[Any, ...]:
    """Return the line of one entry, which has several ENVELOPEs where it was written again."""
    first, last = same[0], same[-1]
    numbers = range(first.entry_number, last.entry_number + 1)
    kept = [attempts[each].values for each in numbers if each in attempts]
    outcomes = outcomes_of(kept[-1]["outcomes"]) if kept else None
    told = kept[-1]["at"] if kept else None
    values, enqueued = first.values, instant(first.values["enqueued_us"])
    if first.entry_number and enqueued == instant(values["accepted_us"]):
        enqueued += MICROSECOND  # else it would count as accepted once more
    ending = _ending(last, envelopes, finish)
    at = ending.at if told is None or ending.at is None else instant(told)
    at = None if at is None else max(at, enqueued)
    is_over, is_delivered = at is not None, ending.state == DELIVERED
    counts = values["domain_counts"]
    return (
        slice_of(enqueued, HOUR),
        BUCKET,
        values["enqueue_id"],
        first.mail_id,
        first.sender,
        values["sender_domain"],
        first.recipients,
        sum(counts.values()),
        list(counts),
        list(counts.values()),
        values["size_bytes"],
        values["attempt"],
        last.values["held"],
        instant(values["accepted_us"]),
        enqueued,
        instant(values["due_us"]) if values["due_us"] else None,
        ending.state,
        is_over,
        at if is_delivered else None,
        ending.state if is_over and not is_delivered else None,
        at if is_over and not is_delivered else None,
        ending.successor,
        _counts(outcomes),
        None if outcomes is None else outcomes.seconds,
    )


def _ending(
    last: HistoryPart, envelopes: Sequence[HistoryPart], finish: HistoryPart | None
) -> _Ending:
    """Return what came of an entry. An ending without a moment of its own was no earlier than the
    segment of its record was begun. Of a later entry, the ENVELOPE may be lost."""
    later = next((each for each in envelopes if each.entry_number > last.entry_number), None)
    if later is not None and later.values["dead"]:
        return _Ending(EndingKind.REJECTED.value, instant(later.values["due_us"]))
    if later is not None:
        at = instant(later.values["enqueued_us"])
        return _Ending(EndingKind.REPLACED.value, at, later.values["enqueue_id"])
    if finish is None or finish.entry_number < last.entry_number:
        return _Ending(WAITING)
    if finish.entry_number > last.entry_number:
        return _Ending(EndingKind.REPLACED.value, instant(finish.since_us))
    is_removed = finish.values["kind"] == FinishKind.REMOVED
    return _Ending(EndingKind.REMOVED.value if is_removed else DELIVERED, instant(finish.since_us))


def _counts(outcomes: AttemptOutcomes | None) -> list[tuple[Any, ...]] | None:
    if outcomes is None:
        return None
    return [
        (
            *(each.domain, each.site, each.kind.value, each.code),
            None if each.reason is None else each.reason.value,
            *(each.words, each.count),
        )
        for each in outcomes.counts
    ]
