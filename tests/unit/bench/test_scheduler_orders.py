"""The bench's own simulation of policies, and the scheduler, come to the same by its own policy."""

from bench.scheduler_orders import POLICIES, Load, naive, scheduled


def test_the_scheduler_takes_as_long_as_a_policy_that_looks_at_all_mails() -> None:
    load = Load("a few lists", lists=25, jobs=15, slow=5)
    allowed, fewest_first = POLICIES["shares, fewest first"]

    assert scheduled(load) == naive(load, allowed, fewest_first=fewest_first)
