"""The invariants of the distributed engine, each by its number in docs/invariants.md."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from contract.queue_harness import Consumer, plain_mail
from postroad.adapters.memory.broker import MemoryBroker, MemoryDelivery, Message
from postroad.distributed.engine.limits_cache import LimitsCache
from postroad.distributed.engine.timing import Timing
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.entries import EndingKind, EntryKey, Mark
from postroad.domain.queues.references import decode
from postroad.domain.queues.selection import Selector
from postroad.errors import (
    BlobMissing,
    BrokerUnavailable,
    ClockSkew,
    ConfigurationStale,
    DeadlineExceeded,
    InvalidSettings,
    PostroadError,
    ViewUnavailable,
)
from postroad.ports.view import Effective
from postroad.telemetry import metrics
from support.in_memory_cluster import WINDOW, InMemoryCluster, Process
from support.memory.fault_injection import Fault, Plan, Step, away, no_fault

ALL = Selector.all()
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


def servers_of(steps: list[Step], *operations: str) -> list[str]:
    return [step.operation for step in steps if step.operation in operations]


async def drained_rounds(cluster: InMemoryCluster, process: Process, rounds: int = 4) -> None:
    """Let slices close, and maintenance do what it waits between two rounds for."""
    for _ in range(rounds):
        await cluster.pass_time(WINDOW + 3 * MINUTE)
        await process.queue.maintain()


# 1


async def test_invariant_1_bytes_then_row_then_message(
    cluster: InMemoryCluster, process: Process
) -> None:
    first = len(process.faults.steps)

    await cluster.enqueue(process, "mail")

    order = servers_of(process.faults.steps[first:], "put", "insert", "publish")
    assert order == ["put", "insert", "publish"]


async def test_invariant_1_unconfirmed_publish_is_repeated_with_the_same_id_and_a_claim(
    cluster: InMemoryCluster, process: Process
) -> None:
    process.faults.plan = failing("publish", times=2, fault=Fault.ANSWER_LOST)

    work = asyncio.ensure_future(cluster.enqueue(process, "mail"))
    assert await cluster.outcome(work, 20 * SECOND)

    queues = cluster.broker
    bodies = [each.body for each in queues.ready] + [each[2].body for each in queues._delayed]
    references = [decode(body) for body in bodies]
    assert {each.key.enqueue_id for each in references} == set(work.result())
    assert [each.claim for each in references] == [False, True, True]
    assert await cluster.recover() == ["mail"]


async def test_invariant_1_enqueue_that_took_too_long_is_withdrawn(
    cluster: InMemoryCluster, process: Process
) -> None:
    async def slow(step: Step) -> None:
        if step.operation == "publish":
            cluster.clock.jump(21 * SECOND)

    process.faults.before = slow
    work = asyncio.ensure_future(process.queue.enqueue(plain_mail("mail")))
    await cluster.outcome(work, MINUTE)

    with pytest.raises(DeadlineExceeded):
        work.result()
    process.faults.before = None
    assert await cluster.recover() == []
    cluster.check_nothing_is_left()


async def test_invariant_1_what_could_not_be_withdrawn_in_time_is_withdrawn_once_the_view_is_back(
    cluster: InMemoryCluster, process: Process
) -> None:
    inserted = False

    def view_lost_at_the_insert(step: Step) -> Fault | None:
        nonlocal inserted
        if step.operation == "insert" and not inserted:
            inserted = True
            return Fault.ANSWER_LOST
        return Fault.AWAY if inserted and step.server == "view" else None

    process.faults.plan = view_lost_at_the_insert
    work = asyncio.ensure_future(cluster.enqueue(process, "mail"))
    assert await cluster.outcome(work, 2 * MINUTE)
    assert isinstance(work.exception(), ViewUnavailable)
    other = await cluster.start()
    assert (await other.queue.size()).size == 1

    process.faults.plan = no_fault
    await cluster.pass_time(MINUTE)

    assert (await other.queue.size()).size == 0
    assert await cluster.recover() == []
    cluster.check_nothing_is_left()


async def test_invariant_1_enqueue_succeeds_when_a_consumer_was_first(
    cluster: InMemoryCluster, process: Process
) -> None:
    process.faults.plan = failing("publish", times=100, fault=Fault.ANSWER_LOST)
    work = asyncio.ensure_future(cluster.enqueue(process, "mail"))
    other = await cluster.start()
    assert await cluster.deliver(other, SECOND) == ["mail"]

    assert await cluster.outcome(work, 2 * MINUTE)

    assert len(work.result()) == 1
    assert await cluster.recover() == []
    cluster.check_nothing_is_left()


async def test_invariant_1_failed_enqueue_leaves_nothing(
    cluster: InMemoryCluster, process: Process
) -> None:
    process.faults.plan = away("broker")

    work = asyncio.ensure_future(cluster.enqueue(process, "mail"))
    assert await cluster.outcome(work, 2 * MINUTE)

    with pytest.raises(BrokerUnavailable):
        work.result()
    process.faults.plan = no_fault
    cluster.check_nothing_is_left()


# 2


async def test_invariant_2_mark_then_bytes_then_ack(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail")
    _, item = await cluster.take(process)
    first = len(process.faults.steps)

    await item.done()

    order = servers_of(process.faults.steps[first:], "mark_delivered", "delete", "ack")
    assert order == ["mark_delivered", "delete", "ack"]


async def test_invariant_2_bytes_that_could_not_be_deleted_are_deleted_later(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail")
    _, item = await cluster.take(process)
    process.faults.plan = away("blobs")

    await item.done()

    assert len(cluster.blobs) == 1
    process.faults.plan = no_fault
    assert await cluster.recover() == []
    assert cluster.blobs == {}


# 3


async def test_invariant_3_bytes_are_fetched_only_for_a_transmission(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "removed", "kept")
    await process.queue.remove(Selector(name="removed"))
    first = len(process.faults.steps)

    _, item = await cluster.take(process)
    assert servers_of(process.faults.steps[first:], "get") == []
    await item.content()

    assert servers_of(process.faults.steps[first:], "mark", "get")[-1] == "get"
    assert item.mail.name == "kept"


async def test_invariant_3_mark_is_checked_again_when_bytes_are_missing(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail")
    _, item = await cluster.take(process)
    await process.queue.remove(ALL)
    first = len(process.faults.steps)

    with pytest.raises(BlobMissing):
        await item.content()

    done = [step.operation for step in process.faults.steps[first:]]
    assert done[:2] == ["get", "mark"]
    assert "write_dead_letter" not in done, "for a moment a removed mail was a dead letter"
    assert (await process.queue.size()).dead_letters == 0
    cluster.check_nothing_is_left()


# 4


async def test_invariant_4_purged_mail_is_not_delivered_after_cleanup_either(
    cluster: InMemoryCluster,
) -> None:
    process = await cluster.start()
    await cluster.enqueue(process, "purged")
    await process.queue.purge()
    stale = [Message(each.message_id, each.body) for each in cluster.broker.ready]
    await cluster.deliver(process, SECOND)

    await drained_rounds(cluster, process)
    assert cluster.tables.rows == {}
    assert cluster.tables.marks == {}
    cluster.broker.ready.extend(stale)

    assert await cluster.recover() == []
    cluster.check_nothing_is_left()


async def test_invariant_4_cleanup_waits_a_lease_and_deletes_rows_then_marks(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail")
    await cluster.deliver(process, SECOND)
    await cluster.pass_time(2 * WINDOW + 2 * MINUTE)
    first = len(process.faults.steps)

    await process.queue.maintain()
    await process.queue.maintain()
    assert servers_of(process.faults.steps[first:], "delete_rows") == []
    await cluster.pass_time(61 * SECOND)
    await process.queue.maintain()
    await cluster.pass_time(61 * SECOND)
    await process.queue.maintain()

    wanted = ("delete_rows", "delete_marks", "forget_slice")
    order = servers_of(process.faults.steps[first:], *wanted)
    assert list(dict.fromkeys(order)) == list(wanted)
    assert cluster.tables.limits.content_start == cluster.tables.limits.browse_start
    assert (len(cluster.tables.rows), len(cluster.tables.marks), len(cluster.tables.slices)) == (
        0,
        0,
        0,
    )


async def test_invariant_4_cleanup_waits_for_processes_whose_readings_hold_longer() -> None:
    cluster = InMemoryCluster(timing=Timing(read_lease=10 * SECOND))
    process = await cluster.start()
    await cluster.enqueue(process, "mail")
    await cluster.deliver(process, SECOND)
    await cluster.pass_time(2 * WINDOW + 2 * MINUTE)
    await process.queue.maintain()
    await process.queue.maintain()

    await cluster.pass_time(29 * SECOND)
    await process.queue.maintain()
    assert servers_of(process.faults.steps, "delete_rows") == []
    await cluster.pass_time(SECOND)
    await process.queue.maintain()
    assert servers_of(process.faults.steps, "delete_rows")
    await cluster.close()


async def test_invariant_4_stale_limits_are_not_used(
    cluster: InMemoryCluster, process: Process
) -> None:
    consumer = Consumer(cluster, process.queue)
    assert await consumer.nothing()
    process.faults.plan = failing("limits", times=10**6, fault=Fault.AWAY)
    await cluster.pass_time(2 * MINUTE)

    await cluster.enqueue(await cluster.start(), "mail")

    assert await consumer.nothing(MINUTE)
    process.faults.plan = no_fault
    assert (await consumer.next()).mail.name == "mail"


# 5


async def test_invariant_5_browse_start_stays_behind_the_grace_period(
    cluster: InMemoryCluster, process: Process
) -> None:
    before = cluster.tables.limits.browse_start
    assert before is not None

    for _ in range(40):
        await cluster.pass_time(MINUTE)
        await process.queue.maintain()
        start = cluster.tables.limits.browse_start
        assert start is not None
        assert start >= before
        assert start <= cluster.clock.now() - WINDOW
        before = start

    assert before > cluster.clock.now() - 3 * WINDOW, "an idle queue keeps up"


async def test_invariant_5_browse_start_stays_where_the_configuration_changes_meanwhile(
    cluster: InMemoryCluster, process: Process
) -> None:
    """A slice of another width, which was not read, may lie across the new browse start."""
    await cluster.enqueue(process, "mail")
    await cluster.deliver(process, SECOND)
    await cluster.pass_time(2 * WINDOW)
    before = cluster.tables.limits.browse_start
    wider = ViewConfiguration(3 * WINDOW, 2, 10**9)

    async def change(step: Step) -> None:
        if step.operation == "mark_drained":
            cluster.configuration.current = Effective(wider, (wider,))

    process.faults.before = change
    with pytest.raises(ConfigurationStale):
        await process.queue.maintain()

    assert cluster.tables.limits.browse_start == before


async def test_invariant_4_limits_are_read_at_their_first_use(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Also where no opening read them, as in an operator that was just started."""
    engine = process.queue._engine

    limits = await LimitsCache(engine.view, cluster.clock, engine.timing).limits()

    assert limits == cluster.tables.limits


@pytest.mark.parametrize("ending", ["delivered", "removed", "removed together", "expired"])
async def test_invariant_5_browse_start_is_drawn_on_endings(ending: str) -> None:
    cluster = InMemoryCluster(pace=1, buckets=1)
    process = await cluster.start()
    await cluster.enqueue(process, "old")
    await cluster.deliver(process, SECOND)
    await cluster.pass_time(4 * WINDOW)
    before = cluster.tables.limits.browse_start
    assert before is not None

    names = ("new", "newer") if ending == "removed together" else ("new",)
    await cluster.enqueue(process, *names)
    if ending == "delivered":
        await cluster.deliver(process, SECOND)
    else:
        end = process.queue.expire if ending == "expired" else process.queue.remove
        assert await end(ALL) == len(names)
        await process.queue._engine.finish_background()

    after = cluster.tables.limits.browse_start
    assert after is not None
    assert after > before
    await cluster.close()


# 6


async def test_invariant_6_one_waiting_mail_holds_browse_start_and_only_it(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "waits", delay=10**6)
    await cluster.pass_time(WINDOW)
    await cluster.enqueue(process, "goes")
    await cluster.deliver(process, SECOND)

    await drained_rounds(cluster, process)

    (live,) = cluster.tables.live()
    assert cluster.tables.limits.browse_start == live.key.slice_start
    assert (await process.queue.size()).size == 1


async def test_invariant_6_marks_of_other_entries_do_not_drain_a_slice(
    cluster: InMemoryCluster, process: Process
) -> None:
    """As many marks as rows are not enough: they have to be theirs."""
    await cluster.enqueue(process, "waits", delay=10**6)
    (live,) = cluster.tables.live()
    foreign = EntryKey(live.key.slice_start, live.key.bucket_id, UUID(int=7))
    cluster.tables.marks[foreign] = Mark(delivered_at=cluster.clock.now())

    await drained_rounds(cluster, process)

    assert cluster.tables.limits.browse_start == live.key.slice_start


async def test_invariant_6_row_that_came_behind_the_join_keeps_its_slice(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail")
    await cluster.deliver(process, SECOND)
    (row,) = cluster.tables.rows.values()
    late = replace(row, key=row.key._replace(enqueue_id=UUID(int=row.enqueue_id.int - 1)))

    has_joined = False

    async def insert_late(step: Step) -> None:
        """Behind the join, which has read the ids of all rows, and before the count after it."""
        nonlocal has_joined
        has_joined |= step.operation == "blob_keys"
        if has_joined and step.operation == "count_rows":
            cluster.tables.rows[late.key] = late

    process.faults.before = insert_late
    await drained_rounds(cluster, process, rounds=1)

    assert late.key in cluster.tables.rows
    process.faults.before = None
    await drained_rounds(cluster, process)
    assert cluster.tables.rows.keys() == {row.key, late.key}
    assert cluster.tables.limits.browse_start == row.key.slice_start


async def test_invariant_6_vanished_row_stops_browse_start_until_a_person_accepts(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "vanishes", delay=10**6)
    (live,) = cluster.tables.live()
    await drained_rounds(cluster, process, rounds=1)
    del cluster.tables.rows[live.key]

    await drained_rounds(cluster, process)
    assert cluster.tables.limits.browse_start == live.key.slice_start

    await process.queue.accept_loss(live.key.slice_start)
    after = cluster.tables.limits.browse_start
    assert after is not None
    assert after > live.key.slice_start


# 7


def test_invariant_7_timing_that_could_miss_a_slice_is_refused() -> None:
    for deadline in (40 * SECOND, 50 * SECOND):
        with pytest.raises(InvalidSettings):
            Timing(deadline=deadline, skew=5 * SECOND, grace=60 * SECOND)
    assert Timing(deadline=39 * SECOND, skew=5 * SECOND, grace=60 * SECOND)
    with pytest.raises(InvalidSettings):
        Timing(keep_after=8 * SECOND, redelivery_delay=8 * SECOND)


async def test_invariant_7_clock_that_is_too_far_from_the_views_makes_no_ids(
    cluster: InMemoryCluster, process: Process
) -> None:
    process.clock.skew = 6 * SECOND

    with pytest.raises(ClockSkew):
        await cluster.enqueue(process, "mail")

    assert cluster.tables.rows == {}
    cluster.check_nothing_is_left()


async def test_invariant_7_no_slice_is_closed_by_a_clock_that_is_too_far_ahead(
    cluster: InMemoryCluster, process: Process
) -> None:
    ahead = await cluster.start(skew=timedelta(hours=1))
    await cluster.enqueue(process, "before")
    await cluster.deliver(process, SECOND)

    with pytest.raises(ClockSkew):
        await ahead.queue.maintain()
    await cluster.enqueue(process, "after")

    assert cluster.tables.slices == {}
    assert await cluster.recover() == ["after"]


async def test_invariant_7_browse_reads_what_a_tolerated_clock_wrote_ahead(
    cluster: InMemoryCluster,
) -> None:
    ahead, exact = await cluster.start(skew=4 * SECOND), await cluster.start()
    await cluster.pass_time(WINDOW - 2 * SECOND)

    await cluster.enqueue(ahead, "ahead")

    assert [view.mail.name async for view in exact.queue.browse()] == ["ahead"]
    assert (await exact.queue.size()).size == 1


# 8


async def test_invariant_8_unreadable_message_is_a_dead_letter_and_stops_nothing(
    cluster: InMemoryCluster, process: Process
) -> None:
    cluster.broker.ready.append(Message(UUID(int=1), b"garbage"))
    await cluster.enqueue(process, "mail")

    assert await cluster.recover() == ["mail"]

    (dead_letter_,) = cluster.tables.dead_letters.values()
    assert (dead_letter_.body, dead_letter_.entry) == (b"garbage", None)
    (view,) = [each async for each in (await cluster.start()).queue.dead_letters()]
    assert view.reason == dead_letter_.reason
    assert (view.mail.recipients, view.attempt, view.size_bytes) == (("postmaster",), 0, 7)


async def test_invariant_8_mail_without_bytes_is_a_dead_letter(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail")
    cluster.blobs.clear()
    _, item = await cluster.take(process)

    with pytest.raises(BlobMissing):
        await item.content()

    (view,) = [each async for each in process.queue.dead_letters()]
    assert view.reason == "the bytes of the mail are missing"
    assert (await process.queue.size()).size == 0


async def test_delayed_message_of_a_deleted_queue_is_no_mail_of_the_queue_that_has_its_name(
    cluster: InMemoryCluster, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.enqueue(process, "mail", delay=8)
    await process.queue.close()
    cluster.tables.rows.clear()  # as when the queue is deleted with its bytes, and created again
    cluster.blobs.clear()
    consumer, item = await cluster.take(await cluster.start())

    with pytest.raises(BlobMissing):
        await item.content()

    await consumer.close()
    assert "neither a row nor bytes" in caplog.text
    cluster.check_nothing_is_left()


async def test_invariant_8_mail_that_breaks_its_consumers_is_a_dead_letter_and_others_get_through(
    cluster: InMemoryCluster,
) -> None:
    healthy = await cluster.start()
    await cluster.enqueue(healthy, "poison", *(f"mail{number}" for number in range(5)))

    for _ in range(200):
        victim = await cluster.start()
        consumer = Consumer(cluster, victim.queue, prefetch=10)
        while not await consumer.nothing(10 * MINUTE):
            item = await consumer.next()
            if item.mail.name == "poison":
                victim.faults.stop()
                break
            cluster.transmit(item)
            await item.done()
        else:
            break
    await cluster.recover()

    (dead_letter_,) = cluster.tables.dead_letters.values()
    assert dead_letter_.entry is not None
    assert dead_letter_.entry.envelope.name == "poison"
    assert all(cluster.copies(f"mail{number}") == 1 for number in range(5))
    cluster.check_nothing_is_left(["poison"])


# 9


@pytest.mark.parametrize("server", ["broker", "view", "blobs"])
async def test_invariant_9_enqueue_fails_for_the_time_a_server_is_away(
    cluster: InMemoryCluster, process: Process, server: str
) -> None:
    process.faults.plan = away(server)
    work = asyncio.ensure_future(cluster.enqueue(process, "mail"))
    assert await cluster.outcome(work, 5 * MINUTE)

    with pytest.raises(PostroadError) as caught:
        work.result()
    assert caught.value.transient

    process.faults.plan = no_fault
    await cluster.enqueue(process, "later")
    assert "later" in await cluster.recover()


async def test_invariant_9_consumer_waits_without_spinning_and_recovers(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail")
    consumer = Consumer(cluster, process.queue)
    await cluster.pass_time(MINUTE)
    fresh = await cluster.start()
    waiting = Consumer(cluster, fresh.queue)
    fresh.faults.plan = away("view")
    await consumer.close()
    first = len(fresh.faults.steps)
    await cluster.enqueue(process, "second")

    assert await waiting.nothing(10 * MINUTE)
    assert len(fresh.faults.steps) - first < 200
    fresh.faults.plan = no_fault

    assert (await waiting.next(MINUTE)).mail.name in {"mail", "second"}


async def test_invariant_9_what_waits_for_the_view_is_never_held_as_long_as_the_broker_allows(
    cluster: InMemoryCluster, process: Process
) -> None:
    """RabbitMQ counts what is held for half an hour as a failed delivery, and gives mails over
    their limit of those (20) to the dead queue."""
    hours = 12
    names = [f"mail{number}" for number in range(5)]
    await cluster.enqueue(process, *names)
    fresh = await cluster.start()
    consumer = Consumer(cluster, fresh.queue, prefetch=3)
    broker = fresh.queue._engine.broker
    assert isinstance(broker, MemoryBroker)
    fresh.faults.plan = away("view")
    held_since: dict[MemoryDelivery, timedelta] = {}
    longest = timedelta(0)

    for _ in range(hours * 20):
        assert await consumer.nothing(3 * MINUTE)
        now = cluster.clock.elapsed()
        held_since = {each: held_since.get(each, now) for each in broker.leased}
        longest = max([longest, *(now - since for since in held_since.values())])
    fresh.faults.plan = no_fault
    waiting = [
        decode(each.body) for each in [*cluster.broker.ready, *cluster.broker.delayed_messages]
    ]
    found = sorted([(await consumer.next()).mail.name or "" for _ in range(3)])

    assert 10 * MINUTE <= longest + 3 * MINUTE <= 20 * MINUTE
    assert [each.crashes for each in waiting] == [0] * len(waiting)
    assert len(servers_of(fresh.faults.steps, "publish")) < 2 * 5 * hours * 6
    assert len(found) == len({*found} & {*names}) == 3
    await consumer.close()
    await fresh.queue.close()
    await cluster.recover()
    assert not cluster.tables.dead_letters


async def test_invariant_9_those_who_wait_for_the_limits_share_one_failure(
    cluster: InMemoryCluster, process: Process
) -> None:
    limits_cache = process.queue._engine.limits_cache
    await cluster.pass_time(MINUTE)
    attempts = 0

    async def slowly(step: Step) -> None:
        nonlocal attempts
        attempts += 1
        await process.clock.sleep(5 * SECOND)

    process.faults.before = slowly
    process.faults.plan = away("view")

    work = asyncio.gather(*(limits_cache.limits() for _ in range(100)), return_exceptions=True)
    assert await cluster.outcome(work, MINUTE)

    assert {type(each) for each in work.result()} == {ViewUnavailable}
    assert attempts == 1


# 10


async def test_invariant_10_mail_in_flight_for_long_is_not_given_to_another_by_administration(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "slow")
    _, item = await cluster.take(process)
    other = await cluster.start()
    consumer = Consumer(cluster, other.queue)
    await cluster.pass_time(MINUTE)

    assert await other.queue.republish(SECOND) == 1
    assert await other.queue.hold(ALL) == 1
    assert await other.queue.release(ALL) == 1

    assert await consumer.nothing(15 * MINUTE)
    cluster.transmit(item)
    await item.done()
    assert await consumer.nothing(15 * MINUTE)
    assert cluster.copies("slow") == 1
    await cluster.recover()
    cluster.check_nothing_is_left()


async def test_invariant_10_lost_connection_repeats_nothing_that_its_worker_still_has(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "slow")
    _, item = await cluster.take(process)

    for delivery in list(process.queue._engine.broker.leased):  # type: ignore[attr-defined]
        process.queue._engine.broker.leased.discard(delivery)  # type: ignore[attr-defined]
        delivery.lost()
    other = Consumer(cluster, (await cluster.start()).queue)

    assert await other.nothing(15 * MINUTE)
    cluster.transmit(item)
    await item.done()
    assert await other.nothing(15 * MINUTE)
    assert cluster.copies("slow") == 1


async def test_invariant_10_claim_of_a_dead_consumer_lapses(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail")
    await cluster.take(process)
    await cluster.pass_time(MINUTE)

    process.faults.stop()

    assert await cluster.recover() == ["mail"]


# 11


async def test_invariant_11_consumer_holds_no_more_than_its_prefetch(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, *(f"mail{number}" for number in range(50)))

    consumer = Consumer(cluster, process.queue, prefetch=5)
    await consumer.next()
    await cluster.pass_time(SECOND)

    assert cluster.broker.unacked == 5
    await consumer.close()


async def test_invariant_11_browse_reads_no_further_than_it_is_asked(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, *(f"mail{number}" for number in range(100)))
    first = len(process.faults.steps)

    async for _ in process.queue.browse():
        break

    assert len(process.faults.steps) - first < 20


# The rest of the engine's promises


async def test_rows_are_rolled_forward_at_half_their_lifetime(cluster: InMemoryCluster) -> None:
    cluster.tables.row_lifetime = timedelta(hours=2)
    process = await cluster.start()
    await cluster.enqueue(process, "old", delay=10**6)
    (before,) = cluster.tables.live()
    counter = metrics.ROLLED_FORWARD.labels(*metrics.of_queue(process.queue.name))._value
    counted = counter.get()

    await cluster.pass_time(timedelta(minutes=61))
    await process.queue.maintain()

    (after,) = cluster.tables.live()
    assert after.mail_id == before.mail_id
    assert after.enqueued_at - before.enqueued_at > timedelta(hours=1)
    mark = cluster.tables.marks[before.key]
    assert mark.ending is not None
    assert mark.ending.kind is EndingKind.REPLACED
    assert counter.get() == counted + 1


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("hours", [(14 * 24, 4), (4, 14 * 24)], ids=["shorter", "longer"])
async def test_held_mail_outlives_every_change_of_the_lifetime(
    cluster: InMemoryCluster, hours: tuple[int, int], restarted: bool
) -> None:
    before, after = (timedelta(hours=each) for each in hours)
    cluster.tables.row_lifetime = before
    process = await cluster.start()
    await cluster.enqueue(process, "first")
    await process.queue.hold(ALL)

    cluster.tables.row_lifetime = after
    await cluster.enqueue(process, "second")
    await process.queue.hold(ALL)
    if restarted:
        process = await cluster.start()
    for _ in range(20):
        await cluster.pass_time(timedelta(minutes=30))
        await process.queue.maintain()

    assert len(cluster.tables.live()) == 2
    names = {view.mail.name async for view in process.queue.browse()}
    assert names == {"first", "second"}


async def test_many_mails_are_changed_several_at_once_and_counted(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, *(f"mail{number}" for number in range(50)), delay=3600)

    assert await process.queue.flush(ALL) == 50
    names = [view.mail.name async for view in process.queue.browse()]
    assert names == [f"mail{number}" for number in range(50)]
    assert await process.queue.remove(ALL) == 50

    assert cluster.tables.live() == []


async def test_failure_in_the_middle_of_many_leaves_the_rest_as_they_were(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, *(f"mail{number}" for number in range(50)), delay=60)
    process.faults.plan = failing("publish", times=1, fault=Fault.AWAY)

    with pytest.raises(BrokerUnavailable):
        await process.queue.flush(ALL)

    assert len(await cluster.recover()) == 50
    assert all(cluster.copies(f"mail{number}") == 1 for number in range(50))


async def test_size_counts_a_closed_slice_once_and_again_when_a_mail_of_it_ended(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "held", "held, too")
    await process.queue.hold(ALL)
    await drained_rounds(cluster, process, rounds=1)
    counted = []
    for expected in (2, 2, 1):
        if expected == 1:
            await process.queue.remove(Selector(name="held"))
        first = len(process.faults.steps)
        assert (await process.queue.size()).held == expected
        counted.append(len(servers_of(process.faults.steps[first:], "count_rows", "count_marks")))

    assert counted[1] < counted[0]
    assert counted[2] == counted[1] + 2
    await process.queue.release(ALL)
    assert (await process.queue.size()).held == 0


async def test_browse_follows_a_mail_that_is_replaced_meanwhile(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, *(f"mail{number}" for number in range(12)))
    consumer = Consumer(cluster, process.queue, prefetch=50)
    items = [await consumer.next() for _ in range(12)]

    found = []
    async for view in process.queue.browse():
        found.append(view.mail.name)
        if len(found) == 1:
            for item in items[1:]:
                await item.retry(timedelta(0))

    assert {f"mail{number}" for number in range(12)} <= set(found)
    await consumer.close()


async def test_delayed_mail_waits_for_weeks_step_by_step(
    cluster: InMemoryCluster, process: Process
) -> None:
    weeks = timedelta(days=30)
    await process.queue.enqueue(plain_mail("patient"), weeks)

    assert await cluster.deliver(process, weeks - timedelta(hours=1)) == []
    assert await cluster.deliver(process, timedelta(hours=2)) == ["patient"]


def failing(operation: str, times: int, fault: Fault) -> Plan:
    """Return a plan that lets one operation go wrong a number of times."""
    left = [times]

    def plan(step: Step) -> Fault | None:
        if step.operation != operation or left[0] == 0:
            return None
        left[0] -= 1
        return fault

    return plan
