"""Metrics are asked for in turn, and a status is not written for their age."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from postroad.controller.kubernetes.api import Key
from postroad.controller.mailqueue.queue_metrics import (
    STEP,
    TURNS_A_SECOND,
    MetricsSchedule,
    reported_metrics,
)
from postroad.distributed.reading.size import SizeCache
from postroad.domain.queues.documents import Sizes
from support.manual_loop import move, run
from support.running_controller import running_controller

NOW = datetime(2026, 1, 1, 10, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
METRICS: dict[str, Any] = {
    "size": 1000,
    "delayed": 0,
    "held": 0,
    "deadLetters": 2,
    "browseStart": "2026-01-01T09:00:00Z",
    "contentStart": None,
    "sizeAtLeast": None,
}
BEFORE = {key: each for key, each in METRICS.items() if each is not None} | {
    "metricsAt": "2026-01-01T10:00:00Z"
}


@pytest.mark.parametrize(
    ("before", "changed", "after", "expected"),
    [
        (BEFORE, {}, 60 * MINUTE, False),
        ({}, {}, MINUTE, True),
        ({**BEFORE, "metricsError": "TooSlow"}, {}, MINUTE, True),
        (BEFORE, {"size": 1010}, MINUTE, False),
        (BEFORE, {"size": 1011}, MINUTE, True),
        (BEFORE, {"size": 1010}, 5 * MINUTE, True),
        (BEFORE, {"deadLetters": 3}, MINUTE, True),
        (BEFORE, {"delayed": 1}, MINUTE, True),
        (BEFORE, {"browseStart": "2026-01-01T09:59:00Z"}, 60 * MINUTE, False),
        (BEFORE, {"browseStart": "2026-01-01T10:00:00Z"}, 60 * MINUTE, True),
        (BEFORE, {"contentStart": "2026-01-01T09:00:00Z"}, 60 * MINUTE, True),
        (BEFORE, {"contentStart": "2026-01-01T09:00:00Z"}, 59 * MINUTE, False),
        (BEFORE, {"sizeAtLeast": True}, 60 * MINUTE, True),
        ({**BEFORE, "sizeAtLeast": True}, {}, 60 * MINUTE, True),
    ],
    ids=[
        "only the age", "first", "after an error", "small", "large", "small but for long",
        "small number", "from nothing", "limit that moved little", "limit that moved",
        "first limit", "dropped just now", "too small from now on", "exact again",
    ],
)  # fmt: skip
def test_only_a_change_that_counts_is_written(
    before: dict[str, Any], changed: dict[str, Any], after: timedelta, expected: bool
) -> None:
    fields = reported_metrics(before, METRICS | changed, NOW + after)

    assert bool(fields) is expected
    if expected:
        assert fields["metricsAt"] == (NOW + after).strftime("%Y-%m-%dT%H:%M:%SZ")
        assert fields["metricsError"] is None


def queue(number: int) -> Key:
    return Key("MailQueue", "mail", f"q-{number}")


MAIN, OTHER = Key("QueueCluster", "mail", "main"), Key("QueueCluster", "mail", "other")
AT_LEAST = timedelta(seconds=30)


def test_few_queues_have_their_turns_at_the_interval_and_many_one_after_the_other() -> None:
    turns, now = MetricsSchedule(), timedelta(seconds=100)

    waits = [turns.wait(queue(number), MAIN, now, AT_LEAST) for number in range(1000)]

    assert waits[0] == AT_LEAST
    seconds = [each.total_seconds() for each in waits]
    assert [round(b - a, 6) for a, b in pairwise(seconds)] == [1 / TURNS_A_SECOND] * 999
    assert turns.wait(Key("MailQueue", "mail", "alone"), OTHER, now, AT_LEAST) == AT_LEAST
    first = now + waits[0]
    assert turns.wait(queue(0), MAIN, first, AT_LEAST).total_seconds() == 1000 / TURNS_A_SECOND


def test_a_turn_that_waits_is_kept() -> None:
    turns, now = MetricsSchedule(), timedelta(seconds=100)
    assert turns.is_due(queue(1), now)
    turns.wait(queue(1), MAIN, now, AT_LEAST)

    for second in (5, 10, 29):
        then = now + timedelta(seconds=second)
        assert not turns.is_due(queue(1), then)
        assert turns.wait(queue(1), MAIN, then, AT_LEAST) == AT_LEAST - timedelta(seconds=second)
    assert turns.is_due(queue(1), now + AT_LEAST)
    assert turns.wait(queue(2), MAIN, now, AT_LEAST) == AT_LEAST + timedelta(
        seconds=1 / TURNS_A_SECOND
    )
    turns.forget(queue(1))
    assert turns.is_due(queue(1), now)


def test_a_status_has_whether_its_numbers_may_be_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    is_at_least = True

    async def sizes(cache: SizeCache) -> Sizes:
        assert await cache._engine.row_lifetime() == timedelta(days=14)
        return Sizes(2, 1, 0, 0, is_at_least)

    monkeypatch.setattr(SizeCache, "get", sizes)

    async def scene() -> None:
        nonlocal is_at_least
        async with running_controller() as operator:
            await operator.declare()
            status = operator.found()["status"]
            assert (status["size"], status["sizeAtLeast"]) == (2, True)

            is_at_least = False
            await move(STEP.total_seconds() + 60)
            assert "sizeAtLeast" not in operator.found()["status"]

    run(scene())
