"""The rotation of a queue's users: each line of ADR 0042's table, and what holds whatever happens
between two steps, also within one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.queues.broker_users import (
    CurrentUser,
    QueueUser,
    RotationPace,
    UserFacts,
    UserStep,
    next_user_step,
)
from postroad.domain.queues.names import QueueName

A = QueueUser(QueueName("mail", "outgoing"), "0" * 12)
B = A.other
NOW = datetime(2026, 1, 1, tzinfo=UTC)
OVERLAP, PERIOD = timedelta(minutes=10), timedelta(hours=1)
PACE = RotationPace(OVERLAP, PERIOD)


def current(user: QueueUser = A, age: timedelta = timedelta(), rotated: str = "") -> CurrentUser:
    return CurrentUser(user, NOW - age, rotated)


@pytest.mark.parametrize(
    ("found", "rights", "asked", "expected"),
    [
        (None, {}, "", (UserStep.BEGIN, A)),
        (None, {A: True, B: True}, "x", (UserStep.BEGIN, A)),
        (current(), {}, "", (UserStep.RESTORE, A)),
        (current(), {A: False}, "x", (UserStep.RESTORE, A)),
        (current(B, PERIOD), {A: True}, "x", (UserStep.RESTORE, B)),
        (current(), {A: True}, "", None),
        (current(age=OVERLAP - timedelta(seconds=1)), {A: True, B: True}, "x", None),
        (current(age=OVERLAP), {A: True, B: True}, "x", (UserStep.REVOKE, B)),
        (current(B, OVERLAP), {A: False, B: True}, "", (UserStep.REVOKE, A)),
        (current(age=PERIOD - timedelta(seconds=1)), {A: True}, "", None),
        (current(age=PERIOD), {A: True}, "", (UserStep.SWITCH, B)),
        (current(B, PERIOD), {B: True}, "", (UserStep.SWITCH, A)),
        (current(), {A: True}, "x", (UserStep.SWITCH, B)),
        (current(rotated="x"), {A: True}, "x", None),
        (current(rotated="x"), {A: True}, "", None),
        (current(rotated="x"), {A: True}, "y", (UserStep.SWITCH, B)),
    ],
)
def test_each_line_of_the_table(
    found: CurrentUser | None,
    rights: dict[QueueUser, bool],
    asked: str,
    expected: tuple[UserStep, QueueUser] | None,
) -> None:
    assert next_user_step(UserFacts(A, found, rights, asked), PACE, NOW) == expected


@dataclass
class Rotated:
    """A queue's users and its Secret. A step is carried out in parts, behind each of which the
    operator may be killed."""

    pace: RotationPace
    now: datetime = NOW
    passwords: dict[QueueUser, int] = field(default_factory=dict)
    rights: dict[QueueUser, bool] = field(default_factory=dict)
    secret: tuple[CurrentUser, int] | None = None
    before: tuple[QueueUser, int] | None = None
    asked: str = ""
    made: count[int] = field(default_factory=count)

    def step(self, parts: int) -> UserStep | None:
        """Carry out so many parts of the next step."""
        found = self.secret[0] if self.secret else None
        decided = next_user_step(
            UserFacts(A, found, dict(self.rights), self.asked), self.pace, self.now
        )
        if decided is None:
            return None
        step, user = decided
        if parts == 0:
            return step
        if step is UserStep.REVOKE:
            del self.passwords[user], self.rights[user]
            return step
        password = next(self.made)
        if step is UserStep.RESTORE:
            assert self.secret is not None
            password = self.secret[1]
        self.passwords[user], self.rights[user] = password, True
        if step is not UserStep.RESTORE and parts == 2:
            if step is UserStep.SWITCH and self.secret is not None:
                self.before = self.secret[0].user, self.secret[1]
            self.secret = CurrentUser(user, self.now, self.asked), password
        return step

    def accepts(self, login: tuple[QueueUser, int] | None) -> bool:
        """Whether a program with this login gets in."""
        return login is None or self.passwords.get(login[0]) == login[1]

    @property
    def login(self) -> tuple[QueueUser, int] | None:
        """What programs read in the Secret."""
        return (self.secret[0].user, self.secret[1]) if self.secret else None

    @property
    def is_in_overlap(self) -> bool:
        """Whether programs may still have the login from before."""
        return self.secret is not None and self.now - self.secret[0].since < self.pace.overlap


DEEDS = st.one_of(
    st.tuples(st.just("step"), st.integers(0, 2)),
    st.tuples(st.just("wait"), st.sampled_from([1, 9, 10, 11, 60, 90])),
    st.tuples(st.just("ask"), st.integers(0, 3)),
)


@given(
    st.lists(DEEDS, max_size=60),
    st.sampled_from([PERIOD, timedelta(minutes=5), timedelta(days=99)]),
)
def test_programs_get_in_after_a_kill_behind_any_part(
    deeds: list[tuple[str, int]], period: timedelta
) -> None:
    """With the login of the Secret always, with that of before while the overlap lasts."""
    world = Rotated(RotationPace(OVERLAP, period))
    for deed, number in deeds:
        if deed == "step":
            world.step(number)
        elif deed == "wait":
            world.now += timedelta(minutes=number)
        else:
            world.asked = str(number)

        assert world.accepts(world.login)
        assert world.accepts(world.before) or not world.is_in_overlap
        assert len(world.passwords) <= 2


@given(
    st.lists(
        st.one_of(DEEDS, st.tuples(st.sampled_from(["lose", "spoil", "forget"]), st.booleans())),
        max_size=40,
    )
)
def test_whatever_others_do_ends_with_one_user_that_gets_in(
    deeds: list[tuple[str, int | bool]],
) -> None:
    world = Rotated(RotationPace(OVERLAP, PERIOD))
    for deed, value in deeds:
        user = A if value else B
        if deed == "step":
            world.step(int(value))
        elif deed == "wait":
            world.now += timedelta(minutes=int(value))
        elif deed == "lose":
            world.passwords.pop(user, None)
            world.rights.pop(user, None)
        elif deed == "spoil" and user in world.rights:
            world.rights[user] = False
        elif deed == "forget":
            world.secret = None

    world.pace = RotationPace(OVERLAP, timedelta(days=999))
    for _ in range(3):
        steps = [world.step(2) for _ in range(4)]
        assert steps[-1] is None
        world.now += OVERLAP

    assert world.secret is not None
    assert world.passwords == {world.secret[0].user: world.secret[1]}
    assert world.rights == {world.secret[0].user: True}
