"""Values that other processes, releases, servers or standards count on: a change of one is a change
of what is agreed, which no single process can make."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from postroad.domain.configuration.history import GRACE, MAX_READ_LEASE, READ_LEASE, STATUS_ENTRIES
from postroad.domain.configuration.rules import MIN_WINDOW, ViewConfiguration
from postroad.domain.delivery.retries import RetryPlan
from postroad.domain.mail.mail import MAX_ADDRESS, MAX_PRIORITY, MIN_PRIORITY
from postroad.domain.mail.seven_bits import MAX_NAME
from postroad.domain.mail.shapes import MAX_CONTINUATION, MAX_LINE
from postroad.domain.queues import lifetimes, lost_messages
from postroad.domain.queues.entries import LONG_CHAIN
from postroad.domain.queues.names import DELAY_SECONDS, MAX_BUCKET, MAX_DOUBLING
from postroad.domain.queues.references import MAX_BODY, MAX_ERROR, VERSION
from postroad.domain.queues.selection import AGES
from postroad.domain.values import identifiers, instants
from postroad.domain.values.instants import AGREEING

SECOND, MINUTE, HOUR, DAY = (
    timedelta(seconds=1),
    timedelta(minutes=1),
    timedelta(hours=1),
    timedelta(days=1),
)

DEFAULTS = RetryPlan()

AGREED = {
    "a process acts on a reading for so long": (READ_LEASE, 30 * SECOND),
    "one of any release acts on a reading for so long": (MAX_READ_LEASE, 30 * SECOND),
    "and leaves a slice open for so long": (GRACE, 60 * SECOND),
    "processes write and read the same time": (AGREEING, 5 * SECOND),
    "slices are cut at whole seconds": (MIN_WINDOW, SECOND),
    "queues without a history are cut so": (ViewConfiguration(), ViewConfiguration(HOUR, 3, 1000)),
    "a status has room for so many events": (STATUS_ENTRIES, 50),
    "the delay queues are declared in RabbitMQ": (DELAY_SECONDS, tuple(2**n for n in range(15))),
    "a delay after crashes is under the limits of leases": (MAX_DOUBLING, 6),
    "an entry names so many before claims are read": (LONG_CHAIN, 8),
    "ids count from here": (identifiers.EPOCH, datetime(1970, 1, 1, tzinfo=UTC)),
    "before all ids": (identifiers.FIRST, UUID(int=0)),
    "behind all ids": (identifiers.LAST, UUID("ffffffff-ffff-ffff-ffff-ffffffffffff")),
    "no stored time is later": (instants.LATEST, datetime(9999, 1, 1, tzinfo=UTC)),
    "Cassandra keeps hints for so long": (lifetimes.MAX_GC_GRACE, 3 * HOUR),
    "a tombstone of a dead letter lives for a day longer": (lifetimes.DEAD_LETTER_RETURN, 9 * DAY),
    "a node of Cassandra may be away for long": (lifetimes.DEAD_LETTER_MEMORY, 100 * DAY),
    "dead letters live so long": (lifetimes.DEAD_LETTER_LIFETIME, 30 * DAY),
    "an archive has so long": (lifetimes.MAX_ARCHIVE_WAIT, 14 * DAY),
    "TWCS wants some tens of windows": (lifetimes.WINDOWS, 30),
    "messages leave delay queues by then": (lost_messages.OVERDUE, 15 * MINUTE),
    "RabbitMQ takes a message back in half of it": (lost_messages.BEYOND_LEASES, HOUR),
    "qshape doubles": (AGES, (*(5 * 2**n * MINUTE for n in range(9)), timedelta.max)),
    "RFC 1035 2.3.4": (MAX_NAME, 253),
    "RFC 5321 4.5.3.1 of addresses": (MAX_ADDRESS, 320),
    "RFC 5321 4.5.3.1.6 without CRLF": (MAX_LINE, 998),
    "of which a space is one": (MAX_CONTINUATION, 997),
    "S3 takes no longer name of a bucket": (MAX_BUCKET, 63),
    "stored priorities lie between": ((MIN_PRIORITY, MAX_PRIORITY), (-100, 100)),
    "the version of messages": (VERSION, 1),
    "a message is so large at most": (MAX_BODY, 16384),
    "with so much of the last error": (MAX_ERROR, 512),
    "retries by default": (DEFAULTS.lanes, (MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 4 * HOUR)),
    "a mail is given up after five days": (DEFAULTS.max_age, 5 * DAY),
    "retries have a jitter of a tenth": (DEFAULTS.jitter, 0.1),
}


@pytest.mark.parametrize(("value", "agreed"), AGREED.values(), ids=AGREED)
def test_a_value_is_what_was_agreed(value: object, agreed: object) -> None:
    assert value == agreed
