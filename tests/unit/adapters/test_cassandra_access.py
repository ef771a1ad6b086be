"""How the driver is set up."""

from __future__ import annotations

from datetime import timedelta
from itertools import islice

from postroad.adapters.cassandra.access import Access, cluster_of

SECOND = timedelta(seconds=1)


def test_a_host_that_came_back_is_used_again_within_seconds_however_long_it_was_away() -> None:
    access = Access(("127.0.0.1",), 9042, "dc1", "mail")

    policy = cluster_of(access, SECOND, SECOND).reconnection_policy

    waits = list(islice(policy.new_schedule(), 100))
    assert len(waits) == 100, "it never gives up"
    assert max(waits) < 8
