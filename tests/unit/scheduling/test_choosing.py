"""The choice of connection beside a transcription of source 004, and what chance decides."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from postroad.scheduling.choosing import Chooser
from postroad.scheduling.events import Precedence
from support.choice_oracle import Answer, Link, World, answer_of, build, draw, seed_choice

BRANCHES = {
    "SC-14 short queue", "SC-15 rides, fewer", "SC-15 rides, newest", "SC-15 waits",
    "SC-15 waits, all long", "SC-16 idle", "SC-17 rides, fewer", "SC-17 rides, newest",
    "SC-17 waits", "SC-17 waits, all long", "SC-18 unused", "SC-18 closed", "SC-18 retry",
    "SC-20 further", "SC-20 at the limit: rides, fewer", "SC-20 at the limit: rides, newest",
    "SC-20 at the limit: waits", "SC-20 at the limit: waits, all long", "SC-21 deferred",
}  # fmt: skip
"""`make bench ROOM=scheduler` compares 100,000 states; these are enough to meet each branch."""


def test_a_job_goes_where_the_source_says_in_every_branch() -> None:
    chance = random.Random(4)
    met: Counter[str] = Counter()
    for _ in range(2000):
        world, tiers, rules = draw(chance)
        rules = replace(rules, connections=world.workers)
        table, allowed = build(world, rules), chance.random() < 0.6
        precedence = chance.choice([Precedence.TRANSACTIONAL, Precedence.BULK])

        branch, answers = seed_choice(world, tiers, rules, precedence, allowed=allowed)
        choice = Chooser(table, rules, chance.randrange).choose(tiers, precedence, may_grow=allowed)

        assert answer_of(choice) in answers, (branch, world, tiers, rules, allowed)
        met[branch.removesuffix(", fallback")] += 1
        met["fallback"] += branch.endswith(", fallback")

    assert {each for each in met if each != "fallback"} == BRANCHES
    assert met["fallback"] > 30


@pytest.mark.parametrize(
    "world",
    [
        World(workers=10),
        World(workers=10, retry_at={"a": 1.0, "b": 2.0, "c": 3.0}),
        World([Link(n, host, 9) for n, host in enumerate("abc", 1)], workers=10,
              last_made={"a": 1, "b": 2, "c": 3}),
    ],
    ids=["unused", "due", "fewest connections"],
)  # fmt: skip
def test_chance_decides_evenly_among_equals(world: World) -> None:
    _, _, rules = draw(random.Random(1))
    rules = replace(rules, connections=10, per_destination=4)
    table = build(world, rules)

    def picked(which: int) -> Answer:
        def pick(count: int) -> int:
            assert count == 3
            return which

        return answer_of(
            Chooser(table, rules, pick).choose([["a", "b", "c"]], Precedence.BULK, may_grow=True)
        )

    assert [picked(which) for which in range(3)] == [("open", "a"), ("open", "b"), ("open", "c")]
