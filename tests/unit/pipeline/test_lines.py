"""Answers as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from postroad.domain.delivery.attempts import OutcomeCount
from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.smtp.bounces import BounceClass
from postroad.pipeline.archive.planning import Coverage, Gap, Stretch
from postroad.pipeline.results.lines import (
    Anomaly,
    DestinationLine,
    JobResult,
    ReasonCount,
    Tally,
    TraceLine,
    TrafficLine,
)

NOON, HOUR = datetime(2026, 3, 2, 12, tzinfo=UTC), timedelta(hours=1)
DAY = Coverage(Stretch(NOON, NOON + 24 * HOUR), (Gap(NOON, NOON + HOUR),))
BUSY = TrafficLine(NOON, "one.example", "b.example", "mx", 0, 12, 0, 0, 0, 13, 9000, 1.26, 60, 61.0)
IDLE = TrafficLine(NOON, "", "b.example", "", 100, 0, 0, 0, 0, 0, 0, None, None, None)
REFUSING = DestinationLine(
    "b.example",
    "mx",
    Tally(50, 30, 20),
    {"blocked": 20, "rate": 30},
    (ReasonCount("rate", 450, "slow down", 30), ReasonCount("blocked", 0, "listed", 20)),
    9,
    4,
    (Anomaly("blocked", 0.2, 0.01),),
)
ENTRY = TraceLine(
    "mail", "entry", "", "", (), ("b.example",), 700, 1, NOON, NOON, None, "replaced", None,
    NOON + HOUR, "next", 0.25,
    (OutcomeCount("b.example", "mx", OutcomeKind.DEFERRED, 450, BounceClass.RATE, "slow down", 2),),
)  # fmt: skip


def test_a_table_has_numbers_to_the_right_and_a_dash_for_what_is_not_there() -> None:
    head, *lines = JobResult("traffic", DAY, (BUSY, IDLE)).text().splitlines()

    noon = "03-02 12:00  "
    assert head.startswith("hour         from         to         site  accepted  delivered")
    assert [each.startswith(noon) for each in lines] == [True, True]
    assert lines[0].endswith("        13     9k  1.3s   1m   1m")
    assert lines[1].startswith(f"{noon}-            b.example  -          100          0")
    assert lines[1].endswith("         0      0     -    -    -")


def test_traffic_by_the_hour_fits_a_terminal() -> None:
    line = TrafficLine(
        NOON, None, None, None, 12_345_678, 120_000, 17_786, 5_540, 2_103, 83_166, 38_838_293_122,
        1.5, 240.0, 7200.5,
    )  # fmt: skip

    text = JobResult("traffic", DAY, (line,)).text()

    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[1].endswith(" 38.8G  1.5s   2h")


def test_a_column_in_which_no_line_has_anything_is_left_out() -> None:
    head, _ = JobResult("traffic", DAY, (IDLE,)).text().splitlines()

    assert head.split() == [
        *("hour", "to", "accepted", "delivered", "deferred", "rejected", "removed", "attempts"),
        "bytes",
    ]


def test_no_lines_are_no_table() -> None:
    assert JobResult("traffic", DAY, ()).text() == ""


def test_a_destination_as_text() -> None:
    assert REFUSING.cells() == (
        "b.example", "mx", "100", "50.0%", "30.0%", "20.0%", "4 of 9", "rate 30, blocked 20",
        "30 rate: 450 slow down; 20 blocked: listed", "blocked 20.0% (before: 1.0%)",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("recipients", "shown"),
    [
        ((None, None), "b.example"),  # a lake without addresses
        (("a@b.example", None), "a@b.example, -"),  # one that has forgotten the second
    ],
)
def test_addresses_that_the_lake_has_not_are_no_error(
    recipients: tuple[str | None, ...], shown: str
) -> None:
    entry = replace(ENTRY, sender=None, sender_domain="a.example", recipients=recipients)

    assert entry.cells()[2:4] == ("a.example", shown)


def test_an_entry_as_text() -> None:
    assert ENTRY.cells() == (
        "mail", "2026-03-02T12:00:00Z", "<>", "b.example", "700", "1", "replaced",
        "2026-03-02T13:00:00Z", "0.2", "2 deferred b.example at mx 450 rate slow down",
    )  # fmt: skip


def test_json_says_first_what_the_answer_is_about() -> None:
    head, *lines = JobResult("destinations", DAY, (REFUSING,)).documents()

    assert head == {
        "job": "destinations",
        "first": "2026-03-02T12:00:00.000Z",
        "before": "2026-03-03T12:00:00.000Z",
        "lacking": [{"first": "2026-03-02T12:00:00.000Z", "before": "2026-03-02T13:00:00.000Z"}],
        "as_of": None,
    }
    (line,) = json.loads(json.dumps(lines))
    assert line["outcomes"] == {"delivered": 50, "deferred": 30, "failed": 20}
    assert line["reasons"][0] == {
        "reason": "rate", "code": 450, "words": "slow down", "count": 30,
    }  # fmt: skip
    assert line["anomalies"] == [{"what": "blocked", "share": 0.2, "share_before": 0.01}]


def test_moments_and_kinds_in_json() -> None:
    _, line = json.loads(json.dumps(list(JobResult("trace", DAY, (ENTRY,)).documents())))

    assert line["ended_at"] == "2026-03-02T13:00:00.000Z"
    assert line["outcomes"][0]["kind"] == "deferred"
    assert line["delivered_at"] is None
