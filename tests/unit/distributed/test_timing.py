"""The times and limits of the distributed engine: processes of all releases, the limits of RabbitMQ
and S3, and the documents count on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import timedelta
from uuid import UUID

import pytest

from postroad.distributed import mail_queue
from postroad.distributed.administration import dead_queue, purge, remove
from postroad.distributed.dequeue import items, leases
from postroad.distributed.engine import ownership, timing
from postroad.distributed.engine.engine import Parts
from postroad.distributed.engine.timing import Timing
from postroad.distributed.enqueue import enqueue
from postroad.distributed.entries import dead_letters, endings
from postroad.distributed.maintenance import (
    audit,
    browse_start,
    drain_check,
    erasure,
    row_maintenance,
)
from postroad.distributed.reading import size
from postroad.errors import InvalidSettings

MILLISECOND, SECOND = timedelta(milliseconds=1), timedelta(seconds=1)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
CONSUMER_TIMEOUT = 30 * MINUTE
"""RabbitMQ's default."""

USUAL = Timing()
(DELIVERY_LIMIT,) = (each.default for each in fields(Parts) if each.name == "delivery_limit")

AGREED = {
    "a row is written by then": (USUAL.deadline, 20 * SECOND),
    "a producer's clock may be wrong by": (USUAL.skew, 5 * SECOND),
    "two clocks by twice that": (USUAL.apart, 10 * SECOND),
    "a message that came again waits for": (USUAL.redelivery_delay, 8 * SECOND),
    "before that an item is claimed": (USUAL.keep_after, 4 * SECOND),
    "for other processes": (USUAL.claim, 2 * MINUTE),
    "the audit leaves an upload alone for": (USUAL.upload, 6 * HOUR),
    "a server is asked again after": (USUAL.backoff, 200 * MILLISECOND),
    "and at least every": (USUAL.longest_backoff, 10 * SECOND),
    "a reference waits beside others": (USUAL.wait, 5 * SECOND),
    "or alone": (USUAL.longest_wait, 10 * MINUTE),
    "an item is in flight for": (USUAL.longest_mail_lease, 25 * MINUTE),
    "ages are counted anew after": (USUAL.ages, MINUTE),
}
INTERVALS = {
    "all objects are audited after": (audit.PASS, 6 * HOUR),
    "a portion of them after": (audit.PACE, 10 * MINUTE),
    "dead letters are gone over after": (row_maintenance.DEAD_LETTER_PASS_INTERVAL, 10 * MINUTE),
    "waiting mail is gone over after": (row_maintenance.ROW_PASS_INTERVAL, 10 * MINUTE),
    "slices beyond one with mail are checked after": (browse_start.BEYOND, 10 * MINUTE),
    "no slice is old before": (row_maintenance.OLD, HOUR),
    "new messages are given for": (row_maintenance.MAX_ROUND, 5 * MINUTE),
    "under a claim of": (row_maintenance.CLAIMED, 15 * MINUTE),
    "a count is kept for": (size.REMEMBERED, HOUR),
    "a partition's references are deferred for": (leases.REMEMBERED, MINUTE),
    "whose view is not read again for": (leases.ASKED_AGAIN, 30 * SECOND),
    "processes that create a queue are apart by": (mail_queue.MAX_RACING, 10 * MINUTE),
    "a purge deletes the objects of a partition within": (drain_check.PURGE_TIMEOUT, 10 * MINUTE),
    "rows lie ahead of all clocks by": (erasure.AHEAD, MINUTE),
    "an owner's record is raised after": (ownership.AS_OF_INTERVAL, 10 * MINUTE),
}
PORTIONS = {
    "crashes before a mail is given up": (DELIVERY_LIMIT, 20),
    "seconds of a request of an erasure": (erasure.MAX_REQUEST, 20.0),
    "octets of a message that the view refuses": (dead_queue.KEPT_BYTES, 65_536),
    "objects that are deleted together": ((audit.TOGETHER, purge.TOGETHER), (500, 500)),
    "orphans that are deleted unasked": (audit.MAX_UNASKED, 1000),
    "mails of an old slice that are rolled forward": (row_maintenance.FEW, 10),
    "slices after which one is old": (row_maintenance.OLD_SLICES, 100),
    "errors of mails that end a round": (endings.IN_A_ROW, 2 * timing.AT_ONCE),
    "mails and rows that a round logs": ((endings.MAX_LOGGED, dead_letters.MAX_LOGGED), (20, 20)),
    "mails and domains of a transaction": ((remove.TOGETHER, remove.MAX_DOMAINS), (100, 20)),
    "octets that are fetched once for an item": (items.MAX_KEPT, 1 << 20),
    "attempts at a mail, and at a note": ((timing.TRIES, enqueue.TRIES), (5, 3)),
}
CLAIMS = (audit.CLAIM_ID, row_maintenance.REPAIRER, row_maintenance.CLAIM_ID)


@pytest.mark.parametrize(("value", "agreed"), AGREED.values(), ids=AGREED)
def test_a_time_is_what_processes_agree_on(value: timedelta, agreed: timedelta) -> None:
    assert value == agreed


@pytest.mark.parametrize(("value", "usual"), INTERVALS.values(), ids=INTERVALS)
def test_maintenance_has_its_intervals(value: timedelta, usual: timedelta) -> None:
    assert value == usual


@pytest.mark.parametrize(("value", "usual"), PORTIONS.values(), ids=PORTIONS)
def test_requests_and_rounds_have_their_limits(value: object, usual: object) -> None:
    assert value == usual


def test_rabbitmq_closes_no_channel_of_a_consumer_that_waits() -> None:
    assert USUAL.longest_wait < USUAL.longest_mail_lease < CONSUMER_TIMEOUT


def test_processes_claim_each_kind_of_maintenance_under_an_id_of_its_own() -> None:
    assert (UUID(int=1), UUID(int=2), UUID(int=3)) == CLAIMS


@pytest.mark.parametrize(
    "changes",
    [{"deadline": 40 * SECOND}, {"skew": 35 * SECOND / 3}, {"grace": 40 * SECOND},
     {"keep_after": 8 * SECOND}, {"redelivery_delay": 4 * SECOND}],
)  # fmt: skip
def test_a_time_at_its_bound_is_refused_and_one_below_it_is_not(
    changes: Mapping[str, timedelta],
) -> None:
    with pytest.raises(InvalidSettings):
        replace(USUAL, **changes)
    ((name, bound),) = changes.items()
    is_lower_bound = name in ("grace", "redelivery_delay")
    inside = bound + MILLISECOND if is_lower_bound else bound - MILLISECOND
    assert getattr(replace(USUAL, **{name: inside}), name) == inside
