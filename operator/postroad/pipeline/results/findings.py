"""Findings of an audit, and the age from which each is one. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar

from postroad.domain.queues.entries import Partition
from postroad.domain.values.instants import rfc3339
from postroad.pipeline.results.lines import MISSING
from postroad.ports.view import ClosedSlice

YOUNG = timedelta(hours=1)
"""Time before the start of an audit within which accepted mail is no finding."""


class FindingKind(StrEnum):
    """Kind of finding, in the order in which it is listed."""

    ORPHAN = "orphan bytes"
    WITHOUT_BYTES = "waiting mail without bytes"
    MARK_WITHOUT_ROW = "mark without a row"
    MISPLACED = "misplaced row"
    VANISHED = "vanished rows"
    LOST_MESSAGES = "lost messages"


@dataclass(frozen=True, slots=True)
class AuditTimes:
    """The moments that decide what is no finding yet, by when the audit `began`: what was accepted
    after `young`; what was over after `unsettled`, because its bytes, or its mark's row, may have
    been on their way out; objects after `uploaded`, because their rows may still come."""

    began: datetime
    young: datetime
    unsettled: datetime
    uploaded: datetime


@dataclass(frozen=True, slots=True)
class FindingLine:
    """One finding. `at`: when its mail was accepted, its entry made, or its slice began. `count`:
    of rows that vanished, or of messages that are lost at least."""

    HEAD: ClassVar[tuple[str, ...]] = (
        "finding", "slice", "bucket", "entry", "object", "since", "count",
    )  # fmt: skip

    kind: FindingKind
    at: datetime | None
    slice_start: datetime | None = None
    bucket_id: int | None = None
    enqueue_id: str | None = None
    blob_key: str | None = None
    count: int = 1

    def cells(self) -> tuple[str, ...]:
        place = (rfc3339(self.slice_start), self.bucket_id, self.enqueue_id, self.blob_key)
        cells = (MISSING if each is None else str(each) for each in (*place, rfc3339(self.at)))
        return (self.kind.value, *cells, str(self.count))


@dataclass(frozen=True, slots=True)
class FindingSummary:
    """Number of findings of one kind, found, and repaired."""

    HEAD: ClassVar[tuple[str, ...]] = ("finding", "found", "repaired", "left", "what to do")

    kind: FindingKind
    found: int
    repaired: int
    advice: str

    def cells(self) -> tuple[str, ...]:
        left = max(self.found - self.repaired, 0)
        advice = self.advice if left else MISSING
        return (self.kind.value, str(self.found), str(self.repaired), str(left), advice)


ADVICE: Mapping[FindingKind, str] = {
    FindingKind.ORPHAN: "--repair deletes those that the engine finds without a mail too",
    FindingKind.WITHOUT_BYTES: "--repair makes dead letters of them",
    FindingKind.MARK_WITHOUT_ROW: "rows were lost after their mail had ended: check the backups",
    FindingKind.MISPLACED: "another program wrote them: no browse sees them; delete them by hand",
    FindingKind.VANISHED: "restore the rows, or accept the loss: postroad maintain --accept-loss",
    FindingKind.LOST_MESSAGES: "--repair gives all mail that waits a new message",
}


def summaries(
    findings: Iterable[FindingLine], repaired: Mapping[FindingKind, int]
) -> tuple[FindingSummary, ...]:
    """Return one line for each kind, in order, those without findings too."""
    found: Counter[FindingKind] = Counter()
    for each in findings:
        found[each.kind] += each.count
    return tuple(
        FindingSummary(kind, found[kind], repaired.get(kind, 0), ADVICE[kind])
        for kind in FindingKind
    )


def vanished_rows(
    closed: Iterable[ClosedSlice], present: Mapping[Partition, int]
) -> tuple[FindingLine, ...]:
    """Return the partitions that have fewer entries than were counted when their slice was closed.
    `present` counts those that have a row where it belongs, or a mark: a row may expire behind
    it. A drained slice is over."""
    return tuple(
        FindingLine(
            FindingKind.VANISHED, each.slice_start, each.slice_start, bucket, count=rows - found
        )
        for each in closed
        if not each.drained
        for bucket, rows in sorted(each.rows.items())
        if (found := present.get(Partition(each.slice_start, bucket), 0)) < rows
    )
