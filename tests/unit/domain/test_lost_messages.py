"""When the numbers say that mails have no message."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from postroad.domain.mail.mail import Envelope
from postroad.domain.queues.entries import Entry, EntryKey
from postroad.domain.queues.lost_messages import (
    AT_LEAST,
    BEYOND_LEASES,
    OVERDUE,
    STEADY,
    LostMessageDetector,
    MessageCount,
    Messages,
)
from postroad.domain.values.identifiers import id_at

NOW = datetime(2026, 1, 1, 10, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def entry(age: timedelta = 2 * MINUTE, number: int = 0) -> Entry:
    key = EntryKey(NOW, 0, id_at(NOW - age, 0, number))
    return Entry(key, UUID(int=0), Envelope(None, ("b@example.net",)), "b", 1, NOW, NOW)


def look(waiting: int, messages: int | None, delayed: int = 0) -> MessageCount:
    """A count of mails that have not been due for long."""
    found = None if messages is None else Messages(messages, delayed, 0)
    made = MessageCount(found, NOW - MINUTE)
    for number in range(waiting):
        made.add(entry(number=number))
    return made


def count(waiting: int, messages: int) -> MessageCount:
    return MessageCount(Messages(messages, 0, 0), NOW, None, waiting)


def test_as_many_messages_as_mails_miss_nothing() -> None:
    assert look(waiting=3, messages=3).missing == 0
    assert look(waiting=3, messages=7).missing == 0
    assert look(waiting=3, messages=2).missing == 1


def test_what_is_delayed_may_be_of_this_queue() -> None:
    assert look(waiting=3, messages=1, delayed=2).missing == 0
    assert look(waiting=3, messages=1, delayed=1).missing == 1


def test_neighbours_delayed_messages_hide_no_missing_one_of_mail_that_is_long_due() -> None:
    neighbours = Messages(1, 10**6, 0)
    made = MessageCount(neighbours, NOW - MINUTE)
    old = MINUTE + OVERDUE
    young, due, later = entry(age=old), entry(age=2 * old), entry(age=2 * old)
    later = replace(later, due_at=NOW - old)

    for each in (young, later, due):
        made.add(each)
    assert made.missing == 0
    made.add(due)

    assert made.missing == 1
    assert [made.lacks(each) for each in (young, later, due)] == [False, False, True]


def test_mail_of_any_age_may_be_what_lacks_its_message_when_too_few_are_delayed() -> None:
    made = look(waiting=3, messages=1, delayed=1)

    assert made.lacks(entry())
    assert not made.lacks(replace(entry(), held=True))


def test_broker_that_cannot_say_misses_nothing() -> None:
    assert look(waiting=3, messages=None).missing == 0


def test_held_and_young_entries_need_no_message() -> None:
    made = MessageCount(Messages(0, 0, 0), NOW - MINUTE)

    made.add(replace(entry(), held=True))
    made.add(entry(age=MINUTE))
    assert made.missing == 0
    made.add(entry(age=MINUTE + timedelta(milliseconds=1)))
    assert made.missing == 1


def test_something_has_to_be_missing_several_times_on_end() -> None:
    detector = LostMessageDetector()
    for messages in [1] * (STEADY - 1) + [2] + [1] * (STEADY - 1):
        assert detector.decide(look(waiting=2, messages=messages)) == 0

    assert detector.decide(look(waiting=2, messages=1)) == AT_LEAST
    assert detector.decide(look(waiting=2, messages=1)) == 0, "it begins anew"


def ripe(missing: int) -> LostMessageDetector:
    """A detector that missed so many for long."""
    detector = LostMessageDetector()
    for _ in range(STEADY - 1):
        assert detector.decide(count(missing, 0)) == 0
    return detector


def test_as_many_as_are_missing_get_a_message() -> None:
    assert ripe(1).decide(count(1, 0)) == AT_LEAST
    assert ripe(100_000).decide(count(100_000, 0)) == 100_000
    assert ripe(5000).decide(count(25_000, 20_000)) == 5000


def test_it_goes_on_at_once_when_new_messages_helped() -> None:
    detector, first = ripe(10_000), count(10_000, 0)
    detector.decide(first)
    detector.repaired(first, 3000)

    assert detector.decide(count(10_000, 3000)) == 7000


@pytest.mark.parametrize(
    ("published", "fewer", "now"), [(2, 1, 9), (3, 1, 9), (4, 1, 0), (4, 2, 8), (1, 1, 0)]
)
def test_new_messages_helped_when_half_of_them_are_counted(
    published: int, fewer: int, now: int
) -> None:
    detector, first = ripe(10), count(10, 0)
    detector.decide(first)
    detector.repaired(first, published)

    assert detector.decide(count(10, fewer)) == now


def test_counts_that_no_new_message_changes_are_not_believed() -> None:
    detector, wrong = ripe(10_000), count(10_000, 0)
    detector.decide(wrong)
    detector.repaired(wrong, 10_000)

    assert [detector.decide(wrong) for _ in range(STEADY)] == [0] * (STEADY - 1) + [AT_LEAST]
    detector.repaired(wrong, AT_LEAST)
    assert [detector.decide(wrong) for _ in range(STEADY)] == [0] * (STEADY - 1) + [AT_LEAST]


def test_what_another_process_heals_is_looked_at_again_the_next_time() -> None:
    detector, missing = ripe(500), count(500, 0)
    assert detector.decide(missing) == 500
    detector.defer()

    assert detector.decide(missing) == 500


def begun(leased: int, *, idle_before: timedelta | None, ready: int = 0) -> MessageCount:
    """A count of which each message is leased, but `ready` ones, as in an earlier count."""
    detector = LostMessageDetector()
    if idle_before is not None:
        detector.begin(Messages(leased + ready, 0, leased), NOW - idle_before)
    return detector.begin(Messages(leased, 0, leased), NOW)


@pytest.mark.parametrize(
    ("age", "idle_before", "ready", "missing"),
    [
        (BEYOND_LEASES + OVERDUE + MINUTE, BEYOND_LEASES, 0, 1),
        (BEYOND_LEASES + OVERDUE, BEYOND_LEASES, 0, 0),  # it was not due for long
        (BEYOND_LEASES + OVERDUE + MINUTE, BEYOND_LEASES - MINUTE, 0, 0),  # it may be in flight
        (BEYOND_LEASES + OVERDUE + MINUTE, BEYOND_LEASES, 1, 0),  # its message may wait
        (BEYOND_LEASES + OVERDUE + MINUTE, None, 0, 0),
    ],
)
def test_message_in_flight_for_longer_than_any_lease_is_missing(
    age: timedelta, idle_before: timedelta | None, ready: int, missing: int
) -> None:
    made = begun(2, idle_before=idle_before, ready=ready)
    made.add(entry(age=age))
    made.add(entry())

    assert made.missing == missing
    if missing:
        assert [made.lacks(each) for each in (entry(age=age), entry())] == [True, False]


def test_no_more_messages_are_stranded_than_are_leased() -> None:
    made = begun(2, idle_before=BEYOND_LEASES)
    for number in range(2):
        made.add(entry(age=2 * BEYOND_LEASES, number=number))
    assert made.missing == 2
    made.messages = Messages(own=9, delayed=0, leased=1)

    assert made.missing == 1


def test_the_latest_idle_count_that_is_old_enough_decides() -> None:
    detector = LostMessageDetector()
    for hours in (4, 3, 2):
        detector.begin(Messages(0, 0, 0), NOW - hours * BEYOND_LEASES)
    detector.begin(Messages(0, 0, 0), NOW - BEYOND_LEASES / 2)

    assert detector.begin(Messages(1, 0, 0), NOW).idle == NOW - 2 * BEYOND_LEASES
    assert detector.begin(None, NOW).idle == NOW - 2 * BEYOND_LEASES
    assert detector.begin(None, NOW + BEYOND_LEASES).idle == NOW - BEYOND_LEASES / 2
