"""How suppressed addresses are compared, kept and written."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.delivery.suppressed import (
    SuppressedAddress,
    SuppressedBy,
    SuppressionRules,
    compared,
    learnt,
    read_line,
    strongest,
    suppressed,
    token_of,
)
from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.smtp.bounces import BounceClass, bounce_of
from postroad.errors import InvalidInput

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ADMINISTRATOR = SuppressedBy.ADMINISTRATOR


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ann@example.org", "Ann@EXAMPLE.org"),
        ("ann@bücher.example", "ANN@xn--bcher-kva.example"),
        ('"ann"@example.org', "ann@example.org"),
        ('"a b"@example.org', '"A\\ b"@example.org'),
        ("straße@example.org", "STRASSE@example.org"),
        ("caf\u00e9@example.org", "cafe\u0301@example.org"),
        ("a@[IPv6:2001:DB8::1]", "a@[ipv6:2001:db8::1]"),
    ],
)
def test_one_mailbox_has_one_token(one: str, other: str) -> None:
    assert token_of(one) == token_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ann@example.org", "ann@example.com"),
        ("ann+a@example.org", "ann@example.org"),
        ("a.nn@example.org", "ann@example.org"),
        ('"a b"@example.org', '"ab"@example.org'),
    ],
)
def test_other_mailboxes_have_other_tokens(one: str, other: str) -> None:
    assert token_of(one) != token_of(other)


@given(st.text(alphabet=st.characters(min_codepoint=33, exclude_categories=("C", "Z")), min_size=1))
def test_what_is_compared_does_not_change_again(local: str) -> None:
    try:
        once = compared(f"{local}@example.org")
    except InvalidInput:
        return
    bare = once.rpartition("@")[0]
    if '"' not in bare and "\\" not in bare:  # else it has to be quoted again
        try:
            assert compared(once) == once
        except InvalidInput:
            pass  # its local part needs quotes


@pytest.mark.parametrize("text", ["", "a", "@example.org", "a b@example.org", "a@exa mple", "a@"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        token_of(text)


def test_a_hashed_entry_has_no_address_and_stands_for_it() -> None:
    hashed = suppressed("Ann@example.org", "asked", ADMINISTRATOR, AT, is_hashed=True)
    assert hashed.address is None
    assert hashed.name == f"sha256:{token_of('ann@example.org').hex()}"
    again = suppressed(hashed.name, "asked", ADMINISTRATOR, AT)
    assert again == hashed


@pytest.mark.parametrize("is_hashed", [False, True])
def test_what_was_exported_is_imported(is_hashed: bool) -> None:
    made = suppressed(
        '"a b"@bücher.example', "550: ü", SuppressedBy.BOUNCE, AT, is_hashed=is_hashed
    )
    line = json.dumps(made.printed())
    assert read_line(line, "other", datetime.now(UTC), is_hashed=False) == made


def test_an_exported_entry_keeps_its_count_and_its_end() -> None:
    made = suppressed("a@x.example", "550: x", SuppressedBy.BOUNCE, AT)
    made = replace(made, count=1, is_pending=True, expires_at=AT + timedelta(days=3))
    assert read_line(json.dumps(made.printed()), "", datetime.now(UTC), is_hashed=False) == made


@given(st.permutations([None, timedelta(1), timedelta(2)]), st.booleans(), st.integers(0, 3))
def test_an_entry_that_holds_is_stronger(
    ends: list[timedelta | None], is_pending: bool, days: int
) -> None:
    """Whichever was read first, and whenever it is looked at."""
    base = suppressed("a@x.example", "x", ADMINISTRATOR, AT)
    entries = [replace(base, expires_at=AT + end if end else None) for end in ends]
    entries[0] = replace(entries[0], is_pending=is_pending)
    now = AT + timedelta(days)
    (found,) = strongest(entries).values()
    assert found.holds(now) == any(each.holds(now) for each in entries)


RULES = SuppressionRules(
    frozenset({BounceClass.NO_MAILBOX}), after=3, apart=timedelta(hours=2), lifetime=timedelta(1)
)
GONE = bounce_of("550 5.1.1 no such user")


def test_refusals_are_counted_at_a_distance_until_they_are_enough() -> None:
    found: list[tuple[int, bool] | None] = []
    entry = None
    for hours in (0, 1, 2, 3, 5, 9):
        new = learnt(entry, "a@x.example", GONE, RULES, AT + timedelta(hours=hours))
        found.append(None if new is None else (new.count, new.is_pending))
        entry = new or entry
    assert found == [(1, True), None, (2, True), None, (3, False), None]
    assert entry is not None
    assert entry.expires_at == AT + timedelta(hours=29)
    assert entry.reason == "550 no-mailbox: no such user"


def test_refusals_count_anew_after_the_lifetime_and_at_once_where_fewer_are_needed() -> None:
    entry = learnt(None, "a@x.example", GONE, RULES, AT)
    assert entry is not None
    again = learnt(entry, "a@x.example", GONE, RULES, AT + timedelta(days=1))
    assert again is not None
    assert (again.count, again.is_pending) == (1, True)
    fewer = learnt(entry, "a@x.example", GONE, replace(RULES, after=1), AT + timedelta(minutes=1))
    assert fewer is not None
    assert fewer.holds(AT + timedelta(minutes=2))


def test_what_an_administrator_put_there_stays() -> None:
    by_hand = suppressed("a@x.example", "x", ADMINISTRATOR, AT)
    assert learnt(by_hand, "a@x.example", GONE, RULES, AT + timedelta(days=9)) is None


@pytest.mark.parametrize(
    ("recipient", "listed"),
    [
        ("KATE@x.example", True),
        ("änn@x.example", True),
        ("Jänn@bücher.example", True),
        ("\u212aate@x.example", False),
        ("straße@x.example", False),
        ("ÄNN@x.example", False),
    ],
)
def test_a_refusal_of_another_letter_puts_no_other_mailbox_on_the_list(
    recipient: str, listed: bool
) -> None:
    found = learnt(None, recipient, GONE, RULES, AT)

    assert found is None or found.token == token_of(recipient.lower())
    assert (found is not None) is listed


def test_lines_of_people_are_read() -> None:
    def read(line: str) -> SuppressedAddress | None:
        return read_line(line, "asked", AT, is_hashed=False)

    assert read(" a@example.org \n") == suppressed("a@example.org", "asked", ADMINISTRATOR, AT)
    assert read("\n") is read("# a comment") is None
    assert read('{"address": "a@example.org", "reason": "why"}') == suppressed(
        "a@example.org", "why", ADMINISTRATOR, AT
    )


def test_what_a_later_release_has_put_there_can_be_read() -> None:
    line = '{"address": "a@example.org", "by": "oracle"}'
    assert read_line(line, "asked", AT, is_hashed=False) == suppressed(
        "a@example.org", "asked", ADMINISTRATOR, AT
    )


@pytest.mark.parametrize(
    "line",
    [
        "ann", "a@example.org, why", "{", "{}", '{"address": "x"}', '{"":' * 2000, "sha256:12",
        '{"address": "a@example.org", "reason": ""}',
        '{"address": "a@example.org", "added_at": "soon"}',
        '{"address": "a@example.org", "added_at": 7}',
        '{"address": "a@example.org", "count": "many"}',
        '{"address": "a@example.org", "expires_at": 7}',
    ],
)  # fmt: skip
def test_a_line_that_is_none_is_refused(line: str) -> None:
    with pytest.raises(InvalidInput):
        read_line(line, "asked", AT, is_hashed=False)


def test_a_suppressed_recipient_fails_in_a_class_of_its_own() -> None:
    outcome = suppressed("a@example.org", "550 no-mailbox: x", ADMINISTRATOR, AT).outcome()
    assert outcome.kind is OutcomeKind.FAILED
    assert outcome.responder is None
    bounce = bounce_of(outcome.text)
    assert (bounce.code, bounce.reason) == (550, BounceClass.SUPPRESSED)
