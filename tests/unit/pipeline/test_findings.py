"""Findings of an audit: which rows vanished, and how much of each kind there is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from postroad.domain.queues.entries import Partition
from postroad.pipeline.results.findings import FindingKind, FindingLine, summaries, vanished_rows
from postroad.ports.view import ClosedSlice

START, HOUR = datetime(2026, 3, 2, 10, tzinfo=UTC), timedelta(hours=1)


def test_a_partition_with_fewer_entries_than_at_its_close_lacks_rows() -> None:
    closed = [
        ClosedSlice(START, HOUR, {0: 5, 1: 2, 2: 1}),
        ClosedSlice(START + HOUR, HOUR, {0: 7}, drained=True),
    ]
    present = {Partition(START, 0): 3, Partition(START, 1): 2, Partition(START, 7): 4}

    found = vanished_rows(closed, present)

    assert [(each.slice_start, each.bucket_id, each.count) for each in found] == [
        (START, 0, 2),
        (START, 2, 1),
    ]


def test_a_late_row_makes_up_for_none_that_vanished_elsewhere() -> None:
    closed = [ClosedSlice(START, HOUR, {0: 1, 1: 1})]

    (found,) = vanished_rows(closed, {Partition(START, 0): 2})

    assert (found.bucket_id, found.count) == (1, 1)


def test_each_kind_has_a_summary_with_what_to_do_about_the_rest() -> None:
    findings = [
        FindingLine(FindingKind.ORPHAN, START, blob_key="key"),
        FindingLine(FindingKind.ORPHAN, START, blob_key="other"),
        FindingLine(FindingKind.VANISHED, START, START, 1, count=5),
    ]

    found = {each.kind: each for each in summaries(findings, {FindingKind.ORPHAN: 2})}

    assert list(found) == list(FindingKind)
    assert found[FindingKind.ORPHAN].cells() == ("orphan bytes", "2", "2", "0", "-")
    kind, *numbers, advice = found[FindingKind.VANISHED].cells()
    assert (kind, numbers) == ("vanished rows", ["5", "0", "5"])
    assert "--accept-loss" in advice
    assert found[FindingKind.MISPLACED].found == 0


def test_a_finding_as_text() -> None:
    line = FindingLine(FindingKind.MISPLACED, START, START, 2, "entry", "key")

    assert line.cells() == (
        *("misplaced row", "2026-03-02T10:00:00.000Z", "2", "entry", "key"),
        *("2026-03-02T10:00:00.000Z", "1"),
    )
