"""Lines of `entries` of one mail, as plain Python makes them of its parts: what Spark's columns are
held to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from postroad.domain.queues.entries import slice_of
from postroad.domain.values.instants import instant, optional_instant
from postroad.pipeline.archive.embedded_parts import HOUR, HistoryPart, PartKind
from postroad.pipeline.spark.lake.schema import ENTRIES

MICROSECOND = timedelta(microseconds=1)
Line = dict[str, Any]


class MailLines(NamedTuple):
    """Lines, in the order of the entries, and whether nothing more comes of the mail."""

    lines: list[Line]
    is_whole: bool


def lines_of(parts: Iterable[HistoryPart]) -> MailLines:
    """The lines of one mail."""
    known = {(each.entry_number, each.kind): each for each in parts}
    envelopes = [known[each] for each in sorted(known) if each[1] == PartKind.ENVELOPE]
    finish = next((each for each in known.values() if each.kind == PartKind.FINISH), None)
    attempts = {number: part for (number, kind), part in known.items() if kind == PartKind.OUTCOMES}
    entries: dict[str | None, list[HistoryPart]] = {}
    for each in envelopes:
        if not each.is_dead:
            entries.setdefault(each.enqueue_id, []).append(each)
    lines = [_line(same, envelopes, finish, attempts) for same in entries.values()]
    return MailLines(lines, finish is not None and _has_all(envelopes, finish))


def _has_all(envelopes: Sequence[HistoryPart], finish: HistoryPart) -> bool:
    before = {each.place: each.before for each in envelopes}
    where = finish.before
    while where is not None and where in before:
        where = before.pop(where)
    return where is None


def _line(
    same: Sequence[HistoryPart],
    envelopes: Sequence[HistoryPart],
    finish: HistoryPart | None,
    attempts: dict[int, HistoryPart],
) -> Line:
    first, last = same[0], same[-1]
    numbers = range(first.entry_number, last.entry_number + 1)
    kept = [attempts[each] for each in numbers if each in attempts]
    assert first.enqueued_at is not None
    enqueued = instant(first.enqueued_at)
    if first.entry_number and first.enqueued_at == first.accepted_at:
        enqueued += MICROSECOND
    state, ended, successor = _ending(last, envelopes, finish)
    if ended is not None and kept and kept[-1].at is not None:
        ended = kept[-1].at
    at = None if ended is None else max(instant(ended), enqueued)
    is_over, is_delivered = at is not None, state == "delivered"
    found = first._asdict() | {
        "slice_start": slice_of(enqueued, HOUR),
        "bucket_id": 0,
        "recipient_count": len(first.recipients or ()),
        "held": last.held,
        "accepted_at": optional_instant(first.accepted_at),
        "enqueued_at": enqueued,
        "due_at": optional_instant(first.due_at),
        "state": state,
        "is_final": is_over,
        "delivered_at": at if is_delivered else None,
        "ending": state if is_over and not is_delivered else None,
        "ended_at": at if is_over and not is_delivered else None,
        "successor": successor,
        "outcomes": kept[-1].outcomes if kept else None,
        "seconds": kept[-1].seconds if kept else None,
    }
    return {name: found[name] for name in ENTRIES.columns}


def _ending(
    last: HistoryPart, envelopes: Sequence[HistoryPart], finish: HistoryPart | None
) -> tuple[str, int | None, str | None]:
    later = next((each for each in envelopes if each.entry_number > last.entry_number), None)
    if later is not None:
        if later.is_dead:
            return "rejected", later.due_at, None
        return "replaced", later.enqueued_at, later.enqueue_id
    if finish is None or finish.entry_number < last.entry_number:
        return "waiting", None, None
    if finish.entry_number > last.entry_number:
        return "replaced", finish.since, None
    return "removed" if finish.is_removed else "delivered", finish.since, None
