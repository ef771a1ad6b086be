"""Reports for tests: one with all that a report can show, and an empty one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from postroad.domain.configuration.advice import SliceCount
from postroad.domain.queues.selection import AGES, age_name
from postroad.pipeline.archive.planning import Coverage, Gap, Stretch
from postroad.pipeline.results.lines import (
    AgesLine,
    Anomaly,
    DestinationLine,
    ReasonCount,
    Tally,
    TrafficLine,
)
from postroad.pipeline.results.report import QueueReport

HOUR = timedelta(hours=1)
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
HOSTILE = '<script>alert("1")</script>$x^$&\u202e.example'
"""A domain as a hostile client would write it."""

EMPTY = QueueReport(
    queue="mail.outgoing",
    made_at=NOON + 24 * HOUR,
    coverage=Coverage(Stretch(NOON, NOON + 24 * HOUR)),
    total=None,
    hours=(),
    destinations=(),
    ages=(),
    slices=(),
)


def traffic(hour: datetime | None, accepted: int, p50: float | None) -> TrafficLine:
    p95, p99 = (None, None) if p50 is None else (40 * p50, 900 * p50)
    return TrafficLine(
        hour, None, None, None, accepted, accepted - 30, 120, 20, 10, accepted, 9000, p50, p95, p99
    )


def destination(domain: str, *anomalies: Anomaly) -> DestinationLine:
    return DestinationLine(
        domain=domain,
        site="mx.example.net",
        outcomes=Tally(delivered=850, deferred=100, failed=50),
        classes={"rate": 100, "no_mailbox": 50},
        reasons=(ReasonCount("rate", 450, "<b>slow down</b> & wait", 100),),
        deferred_mails=90,
        recovered=80,
        anomalies=anomalies,
    )


def full(destinations: int = 3) -> QueueReport:
    lines = [destination(f"d{number}.example") for number in range(destinations)]
    lines[0] = destination(HOSTILE, Anomaly("rate", 0.1, 0.01))
    ages = {age_name(limit): place for place, limit in enumerate(AGES)}
    stretch = EMPTY.coverage.stretch
    return replace(
        EMPTY,
        coverage=Coverage(stretch, (Gap(NOON, NOON + 2 * HOUR),)),
        total=traffic(None, 48_000, 1.5),
        hours=[traffic(NOON + n * HOUR, 2000, None if n == 3 else 1.5) for n in range(24)],
        destinations=lines,
        ages=[AgesLine(HOSTILE, sum(ages.values()), ages), AgesLine("b.example", 0, ages)],
        slices=[SliceCount(NOON + n * HOUR, HOUR, 800 * n) for n in range(24)],
    )
