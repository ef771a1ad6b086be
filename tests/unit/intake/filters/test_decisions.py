"""Decisions of filters, applied to a mail: what they may do, and what is refused of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.mail.mail import Origin
from postroad.domain.mail.shapes import MAX_HEADER
from postroad.domain.smtp.replies import Reply
from postroad.intake.filters import decisions
from postroad.intake.filters.decisions import (
    FilterDecision,
    FilteredMail,
    FilterFailed,
    HeaderChange,
    applied,
    field_name,
    fields_and_body,
    reply_of,
)

CONTENT = b"A: 1\r\nB: 2\r\n folded\r\nA: 3\r\n\r\nbody\r\n"
MAIL = FilteredMail(
    "name", "mx.example", "a@x.example", ("b@y.example", "C@y.example"), CONTENT, Origin("client")
)


def header_after(action: Any, name: str, value: str = "", index: int = 1) -> bytes:
    change = HeaderChange(action, name, value, index)
    content = applied(MAIL, FilterDecision(headers=(change,))).content
    assert content.endswith(b"\r\n\r\nbody\r\n")
    return content.removesuffix(b"\r\n\r\nbody\r\n")


@pytest.mark.parametrize(
    ("change", "header"),
    [
        (("add", "X", "y"), b"A: 1\r\nB: 2\r\n folded\r\nA: 3\r\nX: y"),
        (("insert", "X", "y", 0), b"X: y\r\nA: 1\r\nB: 2\r\n folded\r\nA: 3"),
        (("insert", "X", "y", 1), b"X: y\r\nA: 1\r\nB: 2\r\n folded\r\nA: 3"),
        (("insert", "X", "y", 2), b"A: 1\r\nX: y\r\nB: 2\r\n folded\r\nA: 3"),
        (("insert", "X", "y", 99), b"A: 1\r\nB: 2\r\n folded\r\nA: 3\r\nX: y"),
        (("change", "a", "new"), b"a: new\r\nB: 2\r\n folded\r\nA: 3"),
        (("change", "A", "new", 0), b"A: new\r\nB: 2\r\n folded\r\nA: 3"),
        (("change", "A", "new", 2), b"A: 1\r\nB: 2\r\n folded\r\nA: new"),
        (("change", "A", "new", 3), b"A: 1\r\nB: 2\r\n folded\r\nA: 3\r\nA: new"),
        (("change", "b", "new\n\tmore"), b"A: 1\r\nb: new\r\n\tmore\r\nA: 3"),
        (("remove", "B"), b"A: 1\r\nA: 3"),
        (("remove", "A", "", 2), b"A: 1\r\nB: 2\r\n folded"),
        (("remove", "Z"), b"A: 1\r\nB: 2\r\n folded\r\nA: 3"),
        (("remove", "A", "", 3), b"A: 1\r\nB: 2\r\n folded\r\nA: 3"),
        (("add", "X", "a\r\n b\n"), b"A: 1\r\nB: 2\r\n folded\r\nA: 3\r\nX: a\r\n b"),
        (("add", "X", "\udce9"), b"A: 1\r\nB: 2\r\n folded\r\nA: 3\r\nX: \xe9"),
    ],
)
def test_a_change_of_a_field_changes_that_field_alone(change: Any, header: bytes) -> None:
    assert header_after(*change) == header


@pytest.mark.parametrize(
    "decision",
    [
        FilterDecision(headers=(HeaderChange("add", "X", "a\nBcc: b"),)),
        FilterDecision(headers=(HeaderChange("add", "X", "a\n\nbody"),)),
        FilterDecision(headers=(HeaderChange("add", "X", "a\n \n b"),)),
        FilterDecision(headers=(HeaderChange("add", "X", "a\rBcc: b"),)),
        FilterDecision(headers=(HeaderChange("add", "X", "a\0b"),)),
        FilterDecision(headers=(HeaderChange("add", "X", "a" * 998),)),
        FilterDecision(headers=(HeaderChange("add", "X: a\r\nBcc", "b"),)),
        FilterDecision(headers=(HeaderChange("add", "", "b"),)),
        FilterDecision(headers=(HeaderChange("add", "X", "b"),) * 1001),
        FilterDecision(headers=(HeaderChange("add", "X", "a" * 900),) * 300),
        FilterDecision(headers=(HeaderChange("insert", "received", "x"),) * 100),
        FilterDecision(headers=(HeaderChange("remove", "X"),) * 10_001),
        FilterDecision(body=b"a\0b"),
        FilterDecision(headers=""),  # type: ignore[arg-type]
        FilterDecision(add_recipients="d@y.example"),  # type: ignore[arg-type]
        FilterDecision(remove_recipients="b@y.example"),  # type: ignore[arg-type]
        FilterDecision(add_recipients=("postmaster",)),
        FilterDecision(sender="Postmaster"),
        FilterDecision(body=b"a\n" + b"b" * 999 + b"\nc"),
        FilterDecision(add_recipients=("a@x.example>\r\nRCPT TO:<b@x.example",)),
        FilterDecision(add_recipients=("",)),
        FilterDecision(add_recipients=tuple(f"{each}@x.example" for each in range(1001))),
        FilterDecision(remove_recipients=("b@y.example", "c@y.example")),
        FilterDecision(sender="a@x.example> BODY=8BITMIME"),
    ],
)
def test_a_decision_that_a_client_could_not_send_is_refused(decision: FilterDecision) -> None:
    with pytest.raises(FilterFailed):
        applied(MAIL, decision)


def test_recipients_sender_and_body_are_replaced() -> None:
    decision = FilterDecision(
        sender="",
        add_recipients=("d@y.example", "d@y.example"),
        remove_recipients=("c@Y.example",),
        body=b"one\ntwo\r",
    )

    changed = applied(MAIL, decision)

    assert (changed.sender, changed.recipients) == (None, ("b@y.example", "d@y.example"))
    assert changed.content == b"A: 1\r\nB: 2\r\n folded\r\nA: 3\r\n\r\none\r\ntwo\r\n"
    assert applied(changed, FilterDecision(sender="z@x.example")).sender == "z@x.example"


def test_changes_see_what_those_before_them_made() -> None:
    changes = (
        HeaderChange("remove", "A"),
        HeaderChange("insert", "a", "0", 2),
        HeaderChange("change", "A", "new", 1),
        HeaderChange("add", "B", "4"),
        HeaderChange("remove", "B", index=2),
        HeaderChange("insert", "X", "last", 4),
        HeaderChange("change", "a", "third", 2),
    )

    changed = applied(MAIL, FilterDecision(headers=changes)).content

    assert changed.startswith(b"B: 2\r\n folded\r\nA: new\r\na: third\r\nX: last\r\n\r\n")


def test_many_changes_of_a_large_header_look_at_the_name_of_each_field_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    def counting(octets: bytes) -> bytes:
        nonlocal looks
        looks += 1
        return field_name(octets)

    monkeypatch.setattr(decisions, "field_name", counting)
    mail = replace(MAIL, content=b"A: 1\r\n" * 4000 + b"\r\nbody\r\n")
    removed = tuple(HeaderChange("remove", "A", index=each) for each in range(4000, 0, -1))
    inserted = (HeaderChange("insert", "A", "2", 1),) * 1000

    assert (
        applied(mail, FilterDecision(headers=(*inserted, *removed))).content.count(b"A: 1") == 1000
    )
    assert looks == 4000


def test_a_body_may_have_longer_lines_where_the_mail_has_some() -> None:
    long = b"b" * 2000 + b"\r\n"
    mail = replace(MAIL, content=b"A: 1\r\n\r\n" + long)

    assert applied(mail, FilterDecision(body=long + b"c\n")).content.endswith(long + b"c\r\n")


def test_received_fields_of_a_client_do_not_make_a_filter_fail() -> None:
    """The intake does not count such ones either: with them, a sender could avoid a filter."""
    mail = replace(MAIL, content=b"Received : x\r\n" * 200 + b"\r\nbody\r\n")

    assert (
        b"X: y" in applied(mail, FilterDecision(headers=(HeaderChange("add", "X", "y"),))).content
    )


def test_a_decision_without_changes_keeps_the_content_itself() -> None:
    assert applied(MAIL, FilterDecision()).content is CONTENT


@pytest.mark.parametrize(
    ("content", "count", "body"),
    [
        (b"", 0, b""),
        (b"\r\nbody\r\n", 0, b"body\r\n"),
        (b"A: 1\r\n", 1, b""),
        (b"A: 1\r\n\r\n", 1, b""),
        (b"A: 1", 1, b""),
        (b"A: 1\r\nno field\r\n\r\nbody", 1, b"no field\r\n\r\nbody"),
        (b"no field\r\n\r\nbody", 0, b"no field\r\n\r\nbody"),
        (b" folded\r\nA: 1\r\n\r\nbody", 0, b" folded\r\nA: 1\r\n\r\nbody"),
    ],
)
def test_a_header_ends_at_a_blank_line_or_at_a_line_of_no_field(
    content: bytes, count: int, body: bytes
) -> None:
    fields, found = fields_and_body(content)

    assert (len(fields), found) == (count, body)


@given(st.text(alphabet="aA: \r\n\t", max_size=60).map(str.encode))
def test_no_content_is_lost_between_header_and_body(content: bytes) -> None:
    content = content.replace(b"\n", b"\r\n")
    fields, body = fields_and_body(content)

    header = b"".join(each + b"\r\n" for each in fields)
    assert content in (header + b"\r\n" + body, header + body, (header + body)[:-2])


def test_a_header_without_an_end_is_read_up_to_a_bound() -> None:
    fields, body = fields_and_body(b"A: 1\r\n" * MAX_HEADER)

    assert len(fields) + body.count(b"A") <= MAX_HEADER + 1
    assert len(fields) <= MAX_HEADER / 6 + 1


@pytest.mark.parametrize(
    ("verdict", "reply", "expected"),
    [
        ("accept", None, None),
        ("accept", "", None),
        ("discard", None, None),
        ("reject", None, Reply(550, ("5.7.1 refused",))),
        ("reject", "554 5.7.1 spam", Reply(554, ("5.7.1 spam",))),
        ("reject", "554-5.7.1 a\r\n554 b\u202e\x1b", Reply(554, ("5.7.1 a", "5.7.1 b  "))),
        ("reject", "550 no advertisements", Reply(550, ("5.7.1 no advertisements",))),
        ("reject", "550 4.7.1 odd", Reply(550, ("5.7.1 4.7.1 odd",))),
        ("reject", "550 5.7.26 dmarc", Reply(550, ("5.7.26 dmarc",))),
        ("defer", "450 5.5 spam points", Reply(450, ("4.7.1 5.5 spam points",))),
        (
            "reject",
            "554 a\u2028b\x85c\x0bd\x0ce\x1cf\x1dg\x1eh\ri\n",
            Reply(554, ("5.7.1 a b c d e f g h i",)),
        ),
        ("defer", None, Reply(451, ("4.7.1 not now, come again",))),
        ("defer", "421 4.7.1 grey", Reply(451, ("4.7.1 grey",))),
        ("defer", "450 4.7.1 grey", Reply(450, ("4.7.1 grey",))),
    ],
)
def test_a_verdict_has_its_reply(verdict: Any, reply: str | None, expected: Reply | None) -> None:
    assert reply_of(FilterDecision(verdict, reply)) == expected


@pytest.mark.parametrize(
    ("verdict", "reply"),
    [
        ("reject", "250 ok"),
        ("reject", "450 later"),
        ("defer", "550 no"),
        ("reject", "no"),
        ("reject", "550 a\n250 b"),
        ("reject", "550 a\nb"),
        ("reject", "5505.7.1"),
        ("accept", "550 5.7.1 spam"),
        ("discard", "550 5.7.1 spam"),
    ],
)
def test_a_reply_of_another_verdict_is_refused(verdict: Any, reply: str) -> None:
    with pytest.raises(FilterFailed):
        reply_of(FilterDecision(verdict, reply))


def test_reprs_show_no_address() -> None:
    decision = FilterDecision(sender="a@x.example", add_recipients=("b@x.example",))

    assert "example" not in repr(replace(decision)) + repr(MAIL)
