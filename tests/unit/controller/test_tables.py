"""Which windows bind the shared tables, and which queues do not fit them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from postroad.controller.cluster.plans import (
    Need,
    need_of,
    refused_by_lifetime,
    table_options,
)
from postroad.controller.spec.cluster import Cassandra
from postroad.controller.spec.queue_resource import Queue
from postroad.domain.configuration.documents import effective_document, to_document
from postroad.domain.configuration.history import ConfigurationEvent, decide, fold, replay
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.errors import ConfigurationRefused
from support import resources, spec_cases

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)


def mail_queue(*windows: timedelta, **spec: Any) -> dict[str, Any]:
    """Return a MailQueue whose status has what the history made of these windows, in turn."""
    events: list[ConfigurationEvent] = []
    for window in windows:
        decision = decide(events, ViewConfiguration(window), at=NOON)
        events += [decision.event] if decision.event else []
    found = resources.mail_queue("mail", **spec)
    found["metadata"] |= {"uid": "one", "generation": 1}
    if state := replay(events):
        history = [to_document(each) for each in fold(events)]
        found["status"] = {"configuration": effective_document(state, NOON), "history": history}
    return found


def cassandra(**fields: Any) -> Cassandra:
    return Cassandra.model_validate(spec_cases.CASSANDRA | fields)


@pytest.mark.parametrize(
    ("found", "longest"),
    [
        (mail_queue(), None),
        (mail_queue(view=resources.view("80h", 1)), None),
        (mail_queue(HOUR, view=resources.view("80h", 1)), HOUR),
        (mail_queue(HOUR, 80 * HOUR), HOUR),
        (mail_queue(4 * HOUR, HOUR), 4 * HOUR),
    ],
    ids=["nothing", "wanted first", "wanted after", "refused", "accepted before"],
)
def test_only_accepted_windows_bind_the_tables(
    found: dict[str, Any], longest: timedelta | None
) -> None:
    assert need_of(found) == (Need("mail/outgoing", longest) if longest else None)


def test_a_lifetime_too_short_for_rows_that_live_is_refused_and_the_queue_is_named() -> None:
    needs = [Need("mail/outgoing", HOUR), Need("mail/news", 2 * HOUR)]

    assert table_options(cassandra(rowLifetime="8h"), needs).row_lifetime == 8 * HOUR
    with pytest.raises(ConfigurationRefused) as refused:
        table_options(cassandra(rowLifetime="7h"), needs)

    assert "mail/news" in str(refused.value)
    assert "at least 8h" in refused.value.hint


@pytest.mark.parametrize(
    ("spec", "window_said", "step_said"),
    [
        ({"view": resources.view("84h", 1)}, "", ""),
        ({"view": resources.view("100h", 1)}, "at most 84h", ""),
        ({"retry": {"lanes": ["100h"]}}, "", ""),
        ({"retry": {"lanes": ["1m", "168h"], "maxAge": "200h"}}, "", "at most 167h59m59s"),
    ],
    ids=["four slices", "fewer", "a long step", "half a lifetime"],
)
def test_a_queue_that_does_not_fit_reads_what_would(
    spec: dict[str, Any], window_said: str, step_said: str
) -> None:
    queue = Queue.of(mail_queue(**spec))

    refusals = refused_by_lifetime(queue, 336 * HOUR)

    for refusal, said in zip(refusals, (window_said, step_said), strict=True):
        assert (refusal is None) == (not said)
        assert refusal is None or said in refusal.message


def test_what_a_refusal_allows_fits_and_a_second_more_does_not() -> None:
    for window in (84 * HOUR, 84 * HOUR + SECOND):
        queue = Queue.of(mail_queue(view={"sliceWindow": f"{window // SECOND}s"}))
        refused, _ = refused_by_lifetime(queue, 336 * HOUR)
        assert (refused is None) == (window == 84 * HOUR)
