"""Waits of those who guess: by address and by user, bounded, and soon forgotten."""

from __future__ import annotations

from itertools import pairwise

import pytest

from postroad.intake.logins.guessing import (
    FREE_FAILURES,
    HALF_LIFE,
    MAX_AT_ONCE,
    MAX_QUEUE,
    MAX_WAIT,
    Guesses,
    TooManyWait,
)

HOME, ELSEWHERE = "192.0.2.1", "198.51.100.7"


def guessed(
    guesses: Guesses,
    now: float,
    address: str = ELSEWHERE,
    user: str = "alice",
    *,
    fails: bool = True,
) -> float:
    """Make an attempt, once it has waited; return how long it waited."""
    attempt = guesses.begins(address, user, now)
    guesses.ended(attempt, now + attempt.wait, has_failed=fails)
    return attempt.wait


def in_turn(
    guesses: Guesses, count: int, address: str = ELSEWHERE, user: str = "alice"
) -> list[float]:
    now, waits = 0.0, []
    for _ in range(count):
        waits.append(guessed(guesses, now, address, user))
        now += waits[-1]
    return waits


def test_waits_begin_after_some_failures_double_and_are_bounded() -> None:
    waits = in_turn(Guesses(), 20)

    assert waits[:FREE_FAILURES] == [0.0] * FREE_FAILURES
    assert waits[FREE_FAILURES : FREE_FAILURES + 2] == [0.5, 0.5]
    assert waits[-1] == MAX_WAIT


def test_a_user_at_a_known_address_does_not_wait_for_guesses_from_anywhere() -> None:
    guesses = Guesses()
    guessed(guesses, 0.0, HOME, fails=False)
    in_turn(guesses, 100)
    in_turn(guesses, 100, HOME, "bob")

    assert guessed(guesses, 0.0, HOME) == 0.0
    assert guessed(guesses, 0.0, "203.0.113.9") == MAX_WAIT


def test_a_user_is_not_refused_for_guesses_from_elsewhere() -> None:
    guesses = Guesses()
    for number in range(1000):
        guesses.begins(f"198.51.{number % 250}.{number // 250}", "alice", 0.0)

    assert guesses.begins(HOME, "alice", 0.0).wait <= MAX_WAIT


def test_many_sessions_of_an_address_guess_no_faster_than_one() -> None:
    guesses = Guesses()
    in_turn(guesses, 20, user="")
    checked = [0.0]
    while checked[-1] <= MAX_QUEUE:
        checked.append(guesses.begins(ELSEWHERE, "", 1000.0).wait)

    with pytest.raises(TooManyWait):
        guesses.begins(ELSEWHERE, "", 1000.0)
    assert checked[-1] <= MAX_QUEUE + MAX_WAIT
    assert all(later - before > 1 for before, later in pairwise(checked))


def test_a_client_of_ipv6_is_its_network_of_64_bits() -> None:
    guesses, now = Guesses(), 0.0
    for number in range(20):
        now += guessed(guesses, now, f"2001:db8::{number:x}", "")

    assert guessed(guesses, now, "2001:db8::ffff", "") == MAX_WAIT


def test_failures_are_forgotten_by_halves() -> None:
    guesses = Guesses()
    in_turn(guesses, 6)

    assert guessed(guesses, 100.0) > 0
    assert guessed(guesses, 100.0 + 5 * HALF_LIFE) == 0.0


def test_a_success_clears_no_failures_of_its_address() -> None:
    guesses = Guesses()
    waits = []
    for number in range(10):
        guessed(guesses, 0.0, ELSEWHERE, "own", fails=False)
        waits.append(guessed(guesses, 0.0, ELSEWHERE, f"user{number}"))

    assert max(waits) > 1


def test_logins_of_a_program_at_once_do_not_wait() -> None:
    guesses = Guesses()
    attempts = [guesses.begins(HOME, "alice", 0.0) for _ in range(MAX_AT_ONCE)]
    for each in attempts:
        guesses.ended(each, 0.1, has_failed=False)

    assert {each.wait for each in attempts} == {0.0}
    assert guesses.begins(HOME, "alice", 0.2).wait == 0.0
