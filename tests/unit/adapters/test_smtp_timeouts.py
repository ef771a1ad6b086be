"""A next hop has the time of RFC 5321, and a delivery ends before its lease does."""

from datetime import timedelta

import pytest

from postroad.adapters.network.timeouts import Timeouts
from postroad.distributed.timing import Timing

USUAL = Timeouts()


@pytest.mark.parametrize(
    ("timeout", "minutes"),
    [
        (USUAL.greeting, 5),
        (USUAL.command, 5),
        (USUAL.data_start, 2),
        (USUAL.data_block, 3),
        (USUAL.data_end, 10),
    ],
    ids=["greeting", "command", "data_start", "data_block", "data_end"],
)
def test_a_next_hop_has_the_time_of_rfc_5321(timeout: timedelta, minutes: int) -> None:
    assert timeout == timedelta(minutes=minutes)


def test_a_delivery_ends_before_its_lease_does() -> None:
    longest = USUAL.envelope + USUAL.data_start + max(USUAL.data_end, USUAL.all_ends)

    assert longest < Timing().longest_lease
