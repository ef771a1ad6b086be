from datetime import UTC, datetime
from pathlib import Path

from demo.sample_mails import (
    SAMPLES,
    DemoMail,
    Summary,
    note_received,
    read_mails,
    with_smtp_line_ends,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def mail(number: int, *, accepted: bool = True) -> DemoMail:
    return DemoMail(number, Path("x.eml"), b"Subject: x\r\n\r\n", NOON if accepted else None)


def test_the_samples_are_many_shapes_of_mail() -> None:
    mails = read_mails(SAMPLES)

    assert len(mails) >= 10
    assert len({each.recipient for each in mails}) == len(mails)


def test_every_line_ends_as_smtp_sends_it() -> None:
    assert with_smtp_line_ends(b"a\nb\r\nc\rd") == b"a\r\nb\r\nc\r\nd\r\n"


def test_a_mail_that_arrived_once_with_its_bytes_is_delivered() -> None:
    one = mail(1)
    note_received([one], [(one.recipient, NOON, b"Received: by x\r\n" + one.content)])

    summary = Summary.of([one])

    assert str(summary) == "demo: 1 accepted, 1 delivered, 0 lost, 0 duplicated"
    assert summary.is_good


def test_a_mail_that_did_not_arrive_is_lost() -> None:
    summary = Summary.of([mail(1)])

    assert (summary.lost, summary.is_good) == (1, False)


def test_a_mail_that_arrived_changed_is_lost() -> None:
    one = mail(1)
    note_received([one], [(one.recipient, NOON, one.content + b"advertisement\r\n")])

    assert Summary.of([one]).lost == 1


def test_a_mail_that_arrived_twice_is_a_duplicate() -> None:
    one = mail(1)
    note_received([one], [(one.recipient, NOON, one.content)] * 2)

    summary = Summary.of([one])

    assert (summary.delivered, summary.duplicated, summary.is_good) == (1, 1, False)


def test_a_mail_that_was_refused_is_not_lost_but_nothing_sent_is_no_success() -> None:
    summary = Summary.of([mail(1, accepted=False)])

    assert (summary.accepted, summary.lost, summary.is_good) == (0, 0, False)
