"""When deliveries stand back for mail that comes in, and when they no longer do."""

from __future__ import annotations

from postroad.spool.precedence import FULL, LONGEST_SECONDS, RELIEF_SECONDS, SHARE, Precedence

STEP = 0.05


def handed_out(precedence: Precedence, begin: float, seconds: float, demand: float = 1.0) -> int:
    """Ask once for every mail that comes in, one a step; return how many turns were handed out."""
    out = 0
    for step in range(round(seconds / STEP)):
        precedence.came_in()
        now = begin + step * STEP
        out += precedence.lets_out(now, is_receiving=True, demand=demand)
    return out


def expected(seconds: float) -> int:
    """The first mail of a burst is what begins it."""
    return (round(seconds / STEP) - 1) // SHARE


def test_in_a_burst_one_turn_is_handed_out_for_so_many_mails() -> None:
    assert handed_out(Precedence(), 0.0, 4.0) == expected(4.0)


def test_with_processors_to_spare_nothing_is_held_back() -> None:
    assert handed_out(Precedence(), 0.0, 4.0, FULL - 0.01) == round(4.0 / STEP)


def test_when_nothing_comes_in_nothing_is_held_back() -> None:
    precedence = Precedence()
    handed_out(precedence, 0.0, 1.0)

    assert precedence.lets_out(1.0, is_receiving=False, demand=1.0)
    assert precedence.lets_out(1.0, is_receiving=False, demand=1.0)


def test_deliveries_stand_back_for_so_long_at_most() -> None:
    precedence = Precedence()
    handed_out(precedence, 0.0, LONGEST_SECONDS)

    assert handed_out(precedence, LONGEST_SECONDS, 60.0) == round(60.0 / STEP)


def test_they_stand_back_again_only_after_processors_were_not_short_for_a_while() -> None:
    precedence = Precedence()
    handed_out(precedence, 0.0, LONGEST_SECONDS)
    soon = LONGEST_SECONDS + RELIEF_SECONDS / 2
    assert handed_out(precedence, soon, 1.0) == round(1.0 / STEP)

    later = soon + 1.0 + RELIEF_SECONDS + STEP
    assert handed_out(precedence, later, 1.0) == expected(1.0)


def test_mails_that_came_before_a_burst_are_no_credit_in_it() -> None:
    precedence = Precedence()
    for _ in range(100):
        precedence.came_in()

    assert not precedence.lets_out(0.0, is_receiving=True, demand=1.0)
