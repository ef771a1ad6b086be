"""Which answers suspend a site, and how suspensions are posted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from postroad.domain.delivery.sites import (
    MAX_SHOWN,
    ReplyCounts,
    SiteState,
    SiteView,
    SuspendedBy,
    Suspension,
    published_views,
    read_views,
)
from postroad.domain.mail.mail import Outcome, OutcomeKind, Responder
from postroad.errors import InvalidInput

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MX = Responder("mx.example")
GMAIL = "421 4.7.0 Try again later, closing connection. <b@dest.example>"
YAHOO = "421 4.7.0 [TSS04] Messages from 192.0.2.1 temporarily deferred due to unexpected volume"
LISTED = "550 5.7.1 Service unavailable; client [192.0.2.1] blocked using zen.example"
TOO_MANY = "451 4.7.1 too many messages from b@dest.example"
UNKNOWN = "550 5.1.1 no such user"


def answer(text: str, responder: Responder | None = MX) -> Outcome:
    kind = {"2": OutcomeKind.DELIVERED, "4": OutcomeKind.DEFERRED, "5": OutcomeKind.FAILED}
    return Outcome(kind[text[0]], text, responder=responder)


@pytest.mark.parametrize(
    ("texts", "minutes"),
    [
        ([YAHOO], 10),
        ([GMAIL], None),
        ([GMAIL, GMAIL], 10),
        ([GMAIL, "250 2.0.0 ok", GMAIL], None),
        ([GMAIL, UNKNOWN, GMAIL], 10),
        ([LISTED, LISTED], None),
        ([LISTED] * 3, 30),
        ([LISTED, LISTED, "250 ok", LISTED, LISTED], None),
        ([TOO_MANY] * 4, None),
        ([TOO_MANY] * 5, 15),
        ([UNKNOWN] * 50, None),
        (["451 4.7.1 greylisted, come back in 300 seconds"] * 50, None),
        (["421 4.3.2 system shutting down"] * 50, None),
    ],
)
def test_answers_in_succession_suspend_a_site(texts: list[str], minutes: int | None) -> None:
    counts, found = ReplyCounts(), None
    for text in texts:
        assert found is None, "it took fewer answers"
        found = counts.on_outcomes("mx.example", [answer(text)], NOW)

    if minutes is None:
        assert found is None
        return
    assert found is not None
    assert (found.site, found.by) == ("mx.example", SuspendedBy.REPLIES)
    assert found.until == NOW + timedelta(minutes=minutes)
    for hidden in ("192.0.2.1", "dest.example", "zen.example"):
        assert hidden not in found.reason


def test_one_transmission_is_one_answer_however_many_recipients_it_has() -> None:
    counts = ReplyCounts()

    assert counts.on_outcomes("a", [answer(LISTED)] * 100, NOW) is None
    assert counts.on_outcomes("a", [answer(LISTED), answer("250 ok")], NOW) is None
    assert counts.on_outcomes("a", [answer(LISTED)], NOW) is None
    assert counts.on_outcomes("a", [answer(LISTED), answer(UNKNOWN)], NOW) is None
    assert counts.on_outcomes("a", [answer(UNKNOWN), answer(LISTED)], NOW) is not None


def test_what_no_server_of_the_site_answered_does_not_count() -> None:
    counts = ReplyCounts()
    for _ in range(10):
        assert counts.on_outcomes("a", [answer(YAHOO, None)], NOW) is None


def test_what_is_about_one_mailbox_suspends_no_site() -> None:
    counts = ReplyCounts()
    for text in (
        "450 4.2.1 the user receives mail too quickly",
        "452 4.1.1 too many recent messages",
    ):
        for _ in range(9):
            assert counts.on_outcomes("a", [answer(text)], NOW) is None
    assert counts.on_outcomes("a", [answer("421 4.2.1 too many connections")], NOW) is not None


def test_a_limit_behind_a_wrapper_suspends_a_site_as_any_limit_does() -> None:
    counts, text = ReplyCounts(), "450 4.7.1 <b@x.example>: Recipient address rejected: rate limit"
    found = [counts.on_outcomes("a", [answer(text)], NOW) for _ in range(5)]
    assert [each is not None for each in found] == [False] * 4 + [True]


def test_sites_are_counted_apart() -> None:
    counts = ReplyCounts()
    for site in ("a", "b"):
        assert counts.on_outcomes(site, [answer(LISTED)], NOW) is None
        assert counts.on_outcomes(site, [answer(LISTED)], NOW) is None


def test_a_suspension_is_posted_and_read() -> None:
    made = Suspension("mx.example", NOW, "blocked: 5.7.1", SuspendedBy.REPLIES)

    assert Suspension.of("mx.example", made.text()) == made


def test_one_of_a_later_release_is_obeyed() -> None:
    text = '{"until": "2026-01-02T03:04:05.000Z", "reason": "x", "by": "moon", "more": 1}'

    assert Suspension.of("a", text) == Suspension("a", NOW, "x", SuspendedBy.ADMINISTRATOR)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "1",
        '{"until": "soon", "reason": "x"}',
        '{"until": 5, "reason": "x"}',
        '{"until": "9999-12-31T23:59:59-23:59", "reason": "x"}',
    ],
)
def test_what_is_no_suspension_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        Suspension.of("a", text)


def test_the_note_of_a_worker_has_the_sites_with_the_most_to_show() -> None:
    views = [SiteView(f"s{n:03}", SiteState.IDLE) for n in range(MAX_SHOWN)]
    views += [
        SiteView("busy", SiteState.ACTIVE, 3, 2, 1, reply="250 ok", replied_at="x"),
        SiteView("backing-off", SiteState.BACKING_OFF, until="y"),
    ]

    found, more = read_views(published_views(views))

    assert [each.site for each in found[:3]] == ["backing-off", "busy", "s000"]
    assert found[1] == views[-2]
    assert (len(found), more) == (MAX_SHOWN, 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"sites": [1], "more": 0}',
        '{"sites": [{"site": "a", "state": "x"}]}',
        '{"sites": [], "more": Infinity}',
    ],
)
def test_what_is_no_note_of_a_worker_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_views(text)


def test_a_note_of_a_later_release_may_have_more_fields() -> None:
    text = '{"sites": [{"site": "a", "state": "idle", "colour": "red"}], "more": 0, "also": 1}'

    assert read_views(text) == ([SiteView("a", SiteState.IDLE)], 0)
