"""Members by ranks that change."""

from __future__ import annotations

import random

from postroad.scheduling.ranking import Ranking


def test_the_first_member_is_that_with_the_least_rank_whatever_happened_before() -> None:
    chance = random.Random(2)
    ranking: Ranking[str] = Ranking()
    model: dict[str, tuple[float, ...]] = {}
    for step in range(3000):
        member = f"m{chance.randrange(20)}"
        if chance.random() < 0.3:
            ranking.discard(member)
            model.pop(member, None)
        else:
            model[member] = (chance.randrange(5), step)
            ranking.put(member, model[member])

        assert ranking.first() == min(model, key=model.__getitem__, default=None)
        assert ranking.first_rank() == min(model.values(), default=None)
        assert len(ranking) == len(model)

        if chance.random() < 0.3:
            now = chance.randrange(5)
            due = {each: rank for each, rank in model.items() if rank[0] <= now}
            taken = ranking.take_due(now)
            assert taken == min(due, key=due.__getitem__, default=None)
            if taken is not None:
                del model[taken]


def test_ranks_that_change_for_ever_need_no_more_memory() -> None:
    ranking: Ranking[str] = Ranking()
    for step in range(10_000):
        ranking.put("a", (step,))
        ranking.put("b", (-step,))

    assert len(ranking._heap) < 20
