"""What the tests beside other servers call the same, and what they call different."""

from peers.cases import DOTS, IDN, LONG, PLAIN, REUSED, SAME, Arrival, Case, compared
from peers.table import _parsed, _rendered

TRACE = b"Return-Path: <a@b.example>\r\nReceived: from x\r\n\tby y; now\r\n"


def of(case: Case, content: bytes, *recipients: str) -> str:
    return compared(case, case.recipients, [Arrival(recipients or case.recipients, content)])


def test_trace_fields_before_the_same_octets_are_no_difference() -> None:
    assert of(DOTS, TRACE + DOTS.content()) == SAME


def test_one_changed_octet_is_a_difference() -> None:
    assert of(PLAIN, PLAIN.content().replace(b"letter.", b"Letter.")) == "CHANGES THE BODY"


def test_a_changed_field_and_an_added_one_are_named() -> None:
    changed = PLAIN.content().replace(b"Subject: a", b"Subject: b")
    assert of(PLAIN, b"X-Spam: no\r\n" + changed) == "adds subject, x-spam; changes subject"


def test_folded_lines_differ_from_other_changes() -> None:
    folded = LONG.content().replace(b"x" * 998, b"x" * 500 + b"\r\n " + b"x" * 498)
    assert of(LONG, folded) == "folds long lines"


def test_a_copy_too_few_or_too_many_or_for_another_is_seen() -> None:
    one, arrival = PLAIN.content(), Arrival(PLAIN.recipients, PLAIN.content())
    assert compared(PLAIN, PLAIN.recipients, []) == "1 LOST"
    assert compared(PLAIN, PLAIN.recipients, [arrival, arrival]) == "1 TWICE"
    assert of(PLAIN, one, *PLAIN.recipients, "other@dest.example") == "1 NOT WANTED"
    copies = [Arrival(REUSED.recipients, REUSED.content(number)) for number in range(4)]
    assert compared(REUSED, REUSED.recipients, copies) == "1 LOST"


def test_both_forms_of_a_domain_are_one() -> None:
    assert of(IDN, IDN.content(), "recipient@xn--bcher-kva.example") == SAME


def test_a_table_keeps_the_columns_that_are_not_written() -> None:
    table = {"a": {"one": "x", "two": ""}, "b": {"one": "y", "two": "z"}}
    before, read = _parsed("\nsome text\n\n" + _rendered(table))
    assert before.strip() == "some text"
    assert read == table
