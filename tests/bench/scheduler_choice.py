"""The choice of connection beside a transcription of source 004, for drawn states."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace

from bench.results import Result, compared
from postroad.scheduling.choosing import Chooser
from postroad.scheduling.events import Precedence
from support.choice_oracle import answer_of, build, draw, seed_choice

STATES = int(os.environ.get("BENCH_STATES", "100000"))


def measure() -> list[Result]:
    """Return for each branch of the text how many choices are as it has them."""
    chance = random.Random(7)
    met: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for _ in range(STATES):
        world, tiers, rules = draw(chance)
        rules = replace(rules, connections=world.workers)
        table, allowed = build(world, rules), chance.random() < 0.6
        precedence = chance.choice([Precedence.TRANSACTIONAL, Precedence.BULK])
        branch, answers = seed_choice(world, tiers, rules, precedence, allowed=allowed)
        choice = Chooser(table, rules, chance.randrange).choose(tiers, precedence, may_grow=allowed)
        met[branch] += 1
        right[branch] += answer_of(choice) in answers
    return [
        compared("choice as the source has it", branch, "states", [right[branch]], "states met",
                 [met[branch]])
        for branch in sorted(met)
    ]  # fmt: skip
