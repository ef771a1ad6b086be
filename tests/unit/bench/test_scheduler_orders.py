"""The bench's own simulation of policies, and the scheduler, come to the same by two of them."""

from __future__ import annotations

import pytest

from bench.scheduler_orders import AS_LISTED, MIN_FIRST, POLICIES, Load, naive, scheduled
from postroad.scheduling.ranking import SchedulerRules


@pytest.mark.parametrize(
    ("policy", "rules"),
    [("shares, fewest first", MIN_FIRST), ("shares, as listed", AS_LISTED)],
)
def test_the_scheduler_takes_as_long_as_a_policy_that_looks_at_all_mails(
    policy: str, rules: SchedulerRules
) -> None:
    load = Load("a few lists", lists=25, jobs=15, slow=5)
    allowed, fewest_first = POLICIES[policy]

    ours, theirs = scheduled(load, rules), naive(load, allowed, fewest_first=fewest_first)

    assert ours == theirs
