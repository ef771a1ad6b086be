"""Waits of those who guess: by address and by user, bounded, and soon forgotten."""

from __future__ import annotations

from postroad.intake.logins.guessing import FREE_FAILURES, HALF_LIFE, MAX_WAIT, Guesses

HOME, ELSEWHERE = "192.0.2.1", "198.51.100.7"


def fail(
    guesses: Guesses, count: int, address: str = ELSEWHERE, user: str = "alice"
) -> list[float]:
    return [guesses.begins(ELSEWHERE, "alice", 0.0) for _ in range(count)]


def test_waits_begin_after_some_failures_double_and_are_bounded() -> None:
    waits = fail(Guesses(), 20)

    assert waits[:FREE_FAILURES] == [0.0] * FREE_FAILURES
    assert waits[FREE_FAILURES : FREE_FAILURES + 4] == [0.5, 1.0, 2.0, 4.0]
    assert waits[-1] == MAX_WAIT


def test_a_user_at_a_known_address_does_not_wait_for_guesses_from_elsewhere() -> None:
    guesses = Guesses()
    guesses.begins(HOME, "alice", 0.0)
    guesses.succeeded(HOME, "alice", 0.0)
    fail(guesses, 100)

    assert guesses.begins(HOME, "alice", 0.0) == 0.0
    assert guesses.begins("203.0.113.9", "alice", 0.0) == MAX_WAIT


def test_an_address_waits_whichever_users_it_guesses() -> None:
    guesses = Guesses()
    waits = [guesses.begins(ELSEWHERE, f"user{number}", 0.0) for number in range(20)]

    assert waits[-1] == MAX_WAIT
    assert guesses.begins(HOME, "user3", 0.0) == 0.0


def test_a_client_of_ipv6_is_its_network_of_64_bits() -> None:
    guesses = Guesses()
    waits = [guesses.begins(f"2001:db8::{number:x}", "", 0.0) for number in range(20)]

    assert waits[-1] == MAX_WAIT


def test_failures_are_forgotten_by_halves() -> None:
    guesses = Guesses()
    fail(guesses, 2 * FREE_FAILURES)

    assert guesses.begins(ELSEWHERE, "alice", 0.0) > 0
    assert guesses.begins(ELSEWHERE, "alice", 4 * HALF_LIFE) == 0.0


def test_logins_at_once_count_before_they_have_failed() -> None:
    guesses = Guesses()
    waits = [guesses.begins(HOME, "alice", 0.0) for _ in range(10)]
    for _ in range(10):
        guesses.succeeded(HOME, "alice", 0.0)

    assert waits[-1] == MAX_WAIT
    assert guesses.begins(HOME, "alice", 0.0) == 0.0
