"""When the numbers say that mails have no message."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from postroad.domain.identifiers import id_at
from postroad.domain.mail import Envelope
from postroad.domain.orphans import AT_MOST, STEADY, Look, Watch
from postroad.domain.slices import TurnKey
from postroad.domain.turns import Turn

NOW = datetime(2026, 1, 1, 10, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def turn(age: timedelta = 2 * MINUTE, number: int = 0) -> Turn:
    key = TurnKey(NOW, 0, id_at(NOW - age, 0, number))
    return Turn(key, UUID(int=0), Envelope(None, ("b@example.net",)), "b", 1, 1, NOW, NOW)


def look(waiting: int, messages: int | None) -> Look:
    made = Look(messages, NOW - MINUTE)
    for number in range(waiting):
        made.see(turn(number=number))
    return made


def test_as_many_messages_as_mails_miss_nothing() -> None:
    assert look(waiting=3, messages=3).missing == 0
    assert look(waiting=3, messages=7).missing == 0
    assert look(waiting=3, messages=2).missing == 1


def test_broker_that_cannot_say_misses_nothing() -> None:
    assert look(waiting=3, messages=None).missing == 0


def test_held_and_young_turns_need_no_message() -> None:
    made = Look(0, NOW - MINUTE)

    made.see(replace(turn(), held=True))
    made.see(turn(age=MINUTE))
    assert (made.missing, made.oldest) == (0, [])
    made.see(turn(age=MINUTE + timedelta(milliseconds=1)))
    assert made.missing == 1


def test_something_has_to_be_missing_several_times_on_end() -> None:
    watch = Watch()
    for messages in [1] * (STEADY - 1) + [2] + [1] * (STEADY - 1):
        assert watch.judge(look(waiting=2, messages=messages)) == ()

    assert len(watch.judge(look(waiting=2, messages=1))) == 2
    assert watch.judge(look(waiting=2, messages=1)) == (), "it begins anew"


def test_no_more_than_so_many_at_a_time_and_the_oldest_first() -> None:
    watch, many = Watch(), look(waiting=AT_MOST + 7, messages=0)
    for _ in range(STEADY - 1):
        watch.judge(many)

    chosen = watch.judge(many)

    assert chosen == tuple(turn(number=number) for number in range(AT_MOST))
    assert many.missing == AT_MOST + 7
