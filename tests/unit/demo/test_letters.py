from datetime import UTC, datetime
from pathlib import Path

from demo.letters import SAMPLES, Account, Letter, note_arrivals, read_letters, with_smtp_line_ends

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def letter(number: int, *, accepted: bool = True) -> Letter:
    return Letter(number, Path("x.eml"), b"Subject: x\r\n\r\n", NOON if accepted else None)


def test_the_samples_are_many_shapes_of_mail() -> None:
    letters = read_letters(SAMPLES)

    assert len(letters) >= 10
    assert len({each.recipient for each in letters}) == len(letters)


def test_every_line_ends_as_smtp_sends_it() -> None:
    assert with_smtp_line_ends(b"a\nb\r\nc\rd") == b"a\r\nb\r\nc\r\nd\r\n"


def test_a_mail_that_arrived_once_with_its_bytes_is_delivered() -> None:
    one = letter(1)
    note_arrivals([one], [(one.recipient, NOON, b"Received: by x\r\n" + one.content)])

    account = Account.of([one])

    assert str(account) == "demo: 1 accepted, 1 delivered, 0 lost, 0 duplicated"
    assert account.is_good


def test_a_mail_that_did_not_arrive_is_lost() -> None:
    account = Account.of([letter(1)])

    assert (account.lost, account.is_good) == (1, False)


def test_a_mail_that_arrived_changed_is_lost() -> None:
    one = letter(1)
    note_arrivals([one], [(one.recipient, NOON, one.content + b"advertisement\r\n")])

    assert Account.of([one]).lost == 1


def test_a_mail_that_arrived_twice_is_a_duplicate() -> None:
    one = letter(1)
    note_arrivals([one], [(one.recipient, NOON, one.content)] * 2)

    account = Account.of([one])

    assert (account.delivered, account.duplicated, account.is_good) == (1, 1, False)


def test_a_mail_that_was_refused_is_not_lost_but_nothing_sent_is_no_success() -> None:
    account = Account.of([letter(1, accepted=False)])

    assert (account.accepted, account.lost, account.is_good) == (0, 0, False)
