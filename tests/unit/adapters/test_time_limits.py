"""Time limits of the adapters that others reckon with: callers, the adapters in memory, and
servers."""

from __future__ import annotations

import inspect
from datetime import timedelta

from postroad.adapters.cassandra.clocks import READ_TIMEOUT
from postroad.adapters.cassandra.session import Session
from postroad.adapters.cassandra.view import marks
from postroad.adapters.memory import broker as in_memory
from postroad.adapters.rabbitmq import connection, publisher
from postroad.adapters.s3.clients import SILENCE
from postroad.adapters.s3.objects import SLOWEST, timeout_of
from postroad.distributed.engine.timing import Timing

SECOND = timedelta(seconds=1)
TIMING = Timing()


def test_the_broker_in_memory_waits_for_confirms_as_rabbitmqs_adapter_does() -> None:
    assert publisher.CONFIRM_DEADLINE == in_memory.CONFIRM_DEADLINE == 10 * SECOND


def test_an_enqueue_hears_of_a_server_that_does_not_answer_before_its_deadline() -> None:
    request = inspect.signature(Session).parameters["request_timeout"].default

    assert request == marks.MAX_WAIT == 5 * SECOND
    assert connection.ANSWER_TIMEOUT == publisher.CONFIRM_DEADLINE
    assert request + publisher.CONFIRM_DEADLINE < TIMING.deadline


def test_clocks_are_read_faster_than_they_may_be_wrong() -> None:
    assert READ_TIMEOUT == 2 * SECOND < TIMING.skew


def test_the_largest_upload_ends_before_an_audit_takes_it_for_left_over() -> None:
    """A mail of 600 MB over the slowest line."""
    largest = 600 * 10**6

    assert (SILENCE, SLOWEST) == (8 * SECOND, 32 * 1024)
    assert timeout_of(0) == 2 * SILENCE
    assert timeout_of(largest) == 2 * SILENCE + SECOND * (largest / SLOWEST) < TIMING.upload
