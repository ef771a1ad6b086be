"""A next hop has the time of RFC 5321, and a delivery ends before its lease does. The others are
limits of a session and of its octets."""

from datetime import timedelta

import pytest

from postroad.distributed.engine.timing import Timing
from postroad.domain.smtp.replies import MAX_REPLY
from postroad.smtp.client.client import MAX_REPLY_LINE, MOMENT
from postroad.smtp.client.connecting import MAX_ADDRESSES, SHUN, Timeouts
from postroad.smtp.client.transaction.content import MAX_CHANGED
from postroad.smtp.client.transaction.transactions import GROUP
from postroad.smtp.server import (
    COMMANDS,
    MAX_DROPPED,
    MAX_LINGERING,
    REPLIES,
)

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


@pytest.mark.parametrize(
    ("value", "usual"),
    [
        (USUAL.connect, timedelta(seconds=30)),
        (USUAL.envelope, timedelta(minutes=10)),
        (USUAL.all_ends, timedelta(minutes=12)),
        (USUAL.goodbye, timedelta(seconds=2)),
        (MOMENT, timedelta(seconds=2)),
        (SHUN, timedelta(minutes=5)),
        (MAX_ADDRESSES, 8),
        (GROUP, 100),
        ((MAX_REPLY_LINE, MAX_REPLY), (64 << 10, 1 << 20)),
        (MAX_CHANGED, 64 << 20),
        ((COMMANDS, REPLIES), (8 << 10, 4 << 10)),
        ((MAX_LINGERING, MAX_DROPPED), (64 << 10, 1 << 20)),
    ],
)
def test_a_session_has_these_times_and_limits(value: object, usual: object) -> None:
    assert value == usual


def test_a_delivery_ends_before_its_lease_does() -> None:
    longest = USUAL.envelope + USUAL.data_start + max(USUAL.data_end, USUAL.all_ends)

    assert longest < Timing().longest_mail_lease
