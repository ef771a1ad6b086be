"""What a run notes of the engine and of the servers, beside its own calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from chaos.history import Event, ListRecorder
from chaos.observed import ObservedLog
from chaos.pace import QUICK
from chaos.remains import is_note_of_gone, is_stamped_late, messages_left, outlives
from contract.queue_harness import Consumer, plain_mail
from postroad.distributed.engine.engine import Engine
from postroad.domain.values.identifiers import id_at, moment_of
from postroad.errors import BrokerUnavailable
from support.in_memory_cluster import Before, InMemoryCluster
from support.memory.fault_injection import Fault


@pytest.fixture
async def cluster() -> AsyncIterator[InMemoryCluster]:
    made = InMemoryCluster()
    yield made
    await made.close()


async def test_a_failed_enqueue_that_is_counted_a_redelivery_delay_later_is_noted_by_its_mail(
    cluster: InMemoryCluster,
) -> None:
    producer, worker = await cluster.start(), await cluster.start()
    events: list[Event] = []
    engine: Engine = producer.queue._engine
    engine.log = ObservedLog(engine.log, ListRecorder(events, "producer", lambda: 0.0))  # type: ignore[assignment]
    producer.faults.plan = lambda step: Fault.ANSWER_LOST if step.operation == "publish" else None
    consumer = Consumer(cluster, worker.queue)

    async def take() -> None:
        assert not await consumer.nothing()

    producer.faults.before = Before("end", take)
    work = asyncio.ensure_future(producer.queue.enqueue(plain_mail("mail")))
    await cluster.outcome(work, timedelta(minutes=2))
    item = await consumer.next()

    with pytest.raises(BrokerUnavailable):
        work.result()
    assert events == []
    await cluster.pass_time(timedelta(minutes=1))
    assert [(each.op, each.data) for each in events] == [
        ("unwithdrawn", {"mail_id": str(item.mail_id)})
    ]


@pytest.mark.parametrize(("ahead", "found"), [(0, False), (5, False), (7200, True), (-7200, False)])
def test_rows_of_a_host_with_a_clock_far_ahead_are_kept_apart_from_what_was_left(
    ahead: float, found: bool
) -> None:
    made = id_at(datetime(2026, 1, 1, tzinfo=UTC), 0, 0)
    stamp = moment_of(made).timestamp() + ahead

    assert is_stamped_late(made, stamp) is found


def test_the_note_of_a_requeued_dead_letter_is_not_left_over() -> None:
    assert is_note_of_gone("2026-01 gone")
    assert not is_note_of_gone("2026-01")


@pytest.mark.parametrize(
    ("ready", "leased", "in_flight", "found"),
    [(0, 0, 0, 0), (1, 0, 0, 1), (0, 2, 2, 1), (0, 2, 0, 0), (1, 2, 0, 1)],
)
def test_messages_are_left_over_unless_no_channel_has_them(
    ready: int, leased: int, in_flight: int, found: int
) -> None:
    queue = {"name": "q", "messages": ready + leased, "messages_unacknowledged": leased}

    assert len(messages_left([queue], [{"messages_unacknowledged": in_flight}])) == found


def test_claim_of_a_host_with_a_clock_far_ahead_is_not_left_over() -> None:
    claim = round(QUICK.timing.claim.total_seconds())

    assert [outlives(each) for each in (None, 1, claim, claim + 1, 7200)] == [False] * 3 + [
        True
    ] * 2
