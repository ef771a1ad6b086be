"""Parts of the history of mails in a store in a directory, as segments of its log have them.

The records of a mail lie in several segments, which a store lets go at different times. So what is
not whole yet is kept, without addresses that the lake has not either, until the rest of it comes.
Source: ADR 0063 (FORMAT.md 6 and 11 have the bytes)."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from postroad.domain.delivery.attempts import OutcomeCount
from postroad.domain.mail.mail import domain_of
from postroad.domain.queues.documents import outcomes_of
from postroad.embedded.history import HistorySegment, read_segment
from postroad.embedded.log.envelopes import (
    ENVELOPE_BYTES,
    NOWHERE,
    UNDECODED,
    Unreadable,
    read_head,
)
from postroad.embedded.log.frames import Frame
from postroad.embedded.log.layout import Lane, Layout
from postroad.embedded.log.records import (
    ENVELOPE,
    FINISH,
    OUTCOMES,
    FinishKind,
    FinishRecord,
    OutcomesRecord,
    decode,
)
from postroad.embedded.log.segments import Header, position
from postroad.pipeline.addresses import KeptAddress
from postroad.ports.files import Files

HOUR = timedelta(hours=1)
"""The slices of a lake whose queue has none, by when an entry was made."""


class PartKind(StrEnum):
    """Kind of a part: of a mail's history, or about the segment itself."""

    ENVELOPE = "envelope"
    OUTCOMES = "outcomes"
    FINISH = "finish"
    UNREADABLE = "unreadable"
    SEGMENT = "segment"
    """Up to which offset the lake has this segment, whose file may still be there."""


class HistoryPart(NamedTuple):
    """A part, in the order of the columns of the table `parts`; moments in microseconds since 1970.
    `salt` names its segment, which was begun at `since`. `place` is that of an ENVELOPE, `before`
    that of the one before it, or which ended; None: there is none."""

    mail_id: str
    entry_number: int
    kind: str
    salt: str
    since: int
    place: str | None = None
    before: str | None = None
    enqueue_id: str | None = None
    sender: str | None = None
    sender_domain: str | None = None
    recipients: list[str | None] | None = None
    domains: list[str] | None = None
    domain_counts: list[int] | None = None
    size_bytes: int | None = None
    attempt: int | None = None
    held: bool | None = None
    is_dead: bool | None = None
    accepted_at: int | None = None
    enqueued_at: int | None = None
    due_at: int | None = None
    outcomes: list[dict[str, Any]] | None = None
    seconds: float | None = None
    at: int | None = None
    is_removed: bool | None = None
    end: int | None = None


def parts_of(header: Header, frames: Iterable[Frame], kept: KeptAddress) -> Iterator[HistoryPart]:
    """Yield what frames of a segment have of the history of mails."""
    salt, since = header.salt.hex(), header.created_us
    for frame in frames:
        if frame.type not in _PARTS:
            continue
        origin = _text(frame.payload[:16]), salt, since
        try:
            if frame.type == ENVELOPE:
                place = _place(header.lane, position(header.sequence, frame.offset))
                part = _envelope(frame.payload, origin, place, kept)
            else:
                part = _end(decode(frame.type, frame.payload), origin)
        except (Unreadable, *UNDECODED):
            part = unreadable_part(salt)
        yield part


_PARTS = frozenset((ENVELOPE, OUTCOMES, FINISH))


def _text(identifier: bytes) -> str:
    """Return an id as text: as `str` of an UUID, in a tenth of the time."""
    digits = identifier.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def segment_part(salt: str, end: int) -> HistoryPart:
    """Return the part that says that a segment was read up to an offset."""
    return HistoryPart("", 0, PartKind.SEGMENT.value, salt, 0, end=end)


def unreadable_part(salt: str) -> HistoryPart:
    """Return the part that says that something of a segment cannot be read."""
    return HistoryPart("", 0, PartKind.UNREADABLE.value, salt, 0)


def _place(lane: Lane, where: int) -> str | None:
    return None if where == NOWHERE else f"{lane}:{where}"


_Origin = tuple[str, str, int]
"""The id of a mail, the salt of a segment and when that was begun."""


def _envelope(payload: bytes, origin: _Origin, place: str | None, kept: KeptAddress) -> HistoryPart:
    """Read an ENVELOPE, and of its JSON the addresses alone. Raises: Unreadable, as UNDECODED."""
    head = read_head(payload)
    envelope = json.loads(payload[ENVELOPE_BYTES + head.domains_length :])
    sender, recipients = envelope["sender"] or "", envelope["to"]
    counts = Counter(map(domain_of, recipients))
    domains = sorted(counts)
    mail_id, salt, since = origin
    return HistoryPart(
        *(mail_id, head.entry_number, PartKind.ENVELOPE.value, salt, since, place),
        _place(head.predecessor_lane, head.predecessor),
        _text(head.enqueue_id),
        kept(sender),
        domain_of(sender),
        list(map(kept, recipients)),
        domains,
        [counts[each] for each in domains],
        *(head.size_bytes, head.attempt, head.held, head.dead),
        *(head.accepted_us, head.enqueued_us, head.due_us or None),
    )


def _end(record: object, origin: _Origin) -> HistoryPart:
    mail_id, salt, since = origin
    if isinstance(record, FinishRecord):
        return HistoryPart(
            *(mail_id, record.entry_number, PartKind.FINISH.value, salt, since),
            before=_place(record.lane, record.position),
            is_removed=record.kind == FinishKind.REMOVED,
        )
    assert isinstance(record, OutcomesRecord)
    value = _read(record.document)
    found, at = outcomes_of(value), value.get("at")
    return HistoryPart(
        *(mail_id, record.entry_number, PartKind.OUTCOMES.value, salt, since),
        outcomes=None if found is None else _counts(found.counts),
        seconds=None if found is None else found.seconds,
        at=at if isinstance(at, int) else None,
    )


@lru_cache(maxsize=1024)  # most mails are delivered, to few domains
def _counts(counts: tuple[OutcomeCount, ...]) -> list[dict[str, Any]]:
    return [dict(zip(_COUNT, attrgetter(*_COUNT)(each), strict=True)) for each in counts]


_COUNT = ("domain", "site", "kind", "code", "reason", "words", "count")


def _read(document: bytes) -> dict[str, Any]:
    try:
        found = json.loads(document)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


MAX_KEPT = 65_536
"""Addresses whose form in the lake is not computed again within a segment."""


@dataclass(frozen=True, slots=True)
class HistoryReader:
    """Reads segments of a store, each from an offset on, in any process of this machine."""

    files: Files
    layout: Layout
    kept: KeptAddress
    segments: Sequence[tuple[HistorySegment, int]]

    def parts(self, number: int) -> Iterator[HistoryPart]:
        """Yield the parts of one segment, and, behind them, either that it was read whole or what
        could not be; nothing of one that was dropped meanwhile."""
        segment, first = self.segments[number]
        found = read_segment(self.files, self.layout, segment, first)
        if found is None:
            return
        is_whole, salt = found.is_whole, segment.salt.hex()
        kept = lru_cache(maxsize=MAX_KEPT)(self.kept)  # the same senders send again
        if found.header is not None:
            for part in parts_of(found.header, found.frames, kept):
                is_whole &= part.kind != PartKind.UNREADABLE
                yield part
        if is_whole:
            yield segment_part(salt, segment.end)
        elif not found.is_whole:
            yield unreadable_part(salt)
