"""Size is what browsing finds, also where a process ended between two steps of a replacement or a
withdrawal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from contract.queue_harness import plain_mail
from postroad.distributed.entries import replacement
from postroad.distributed.reading import size
from postroad.domain.queues.documents import Sizes
from postroad.domain.queues.entries import Entry, Mark
from postroad.domain.queues.selection import Selector
from postroad.ports.view import Limits
from support.in_memory_cluster import WINDOW, InMemoryCluster, Process
from support.memory.fault_injection import Fault, Plan, Stopped

ALL = Selector.all()
MINUTE = timedelta(minutes=1)


@pytest.fixture
async def cluster() -> AsyncIterator[InMemoryCluster]:
    """All mails of a slice are in one bucket, where a count too few is not hidden by no rows."""
    cluster = InMemoryCluster(buckets=1)
    yield cluster
    await cluster.close()


def stopping(operation: str, fault: Fault = Fault.STOP_AFTER) -> Plan:
    return lambda step: fault if step.operation == operation else None


async def check_sizes(cluster: InMemoryCluster, names: list[str]) -> None:
    """What a fresh process counts, and counts again, is what it finds."""
    process = await cluster.start()
    for _ in range(2):
        assert sorted([each.mail.name or "" async for each in process.queue.browse()]) == names
        assert (await process.queue.size()).size == len(names)


async def withdrawn_before_its_row(cluster: InMemoryCluster) -> Entry:
    """Let an enqueue fail, and its process end behind the mark; return the row that is missing."""
    victim = await cluster.start()
    entries: list[Entry] = []
    insert = victim.queue._engine.view.insert

    async def inserted(entry: Entry) -> None:
        entries.append(entry)
        await insert(entry)

    victim.queue._engine.view.insert = inserted  # type: ignore[method-assign]
    faults = {"insert": Fault.AWAY, "end": Fault.STOP_AFTER}
    victim.fail(lambda step: faults.get(step.operation))
    with pytest.raises(Stopped):
        await victim.queue.enqueue(plain_mail("failed"))
    return entries[0]


async def test_withdrawal_that_ends_between_mark_and_row_is_not_subtracted(
    cluster: InMemoryCluster, process: Process
) -> None:
    victim = await cluster.start()
    await cluster.enqueue(process, "waits", delay=10**6)
    faults = {"insert": Fault.AWAY, "end": Fault.STOP_AFTER}
    victim.fail(lambda step: faults.get(step.operation))
    with pytest.raises(Stopped):
        await victim.queue.enqueue(plain_mail("failed"))

    assert len(cluster.tables.marks.keys() - cluster.tables.rows.keys()) == 1
    await check_sizes(cluster, ["waits"])
    await process.queue.hold(ALL)
    sizes = await process.queue.size()
    assert (sizes.size, sizes.delayed, sizes.held) == (1, 0, 1)


async def test_withdrawal_whose_row_comes_after_its_slice_was_counted_leaves_size_as_it_is(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "waits", delay=10**6)
    late = await withdrawn_before_its_row(cluster)
    for _ in range(3):
        await cluster.pass_time(WINDOW)
        await process.queue.maintain()
    assert (await process.queue.size()).size == 1

    cluster.tables.insert(late)

    assert (await process.queue.size()).size == 1
    await check_sizes(cluster, ["waits"])


@pytest.mark.parametrize("is_delayed", [False, True])
async def test_replacement_that_ends_before_its_successors_row_is_counted(
    cluster: InMemoryCluster, process: Process, is_delayed: bool
) -> None:
    victim = await cluster.start()
    await cluster.enqueue(process, "changed", "waits", delay=10**6)
    victim.fail(stopping("end"))
    with pytest.raises(Stopped):
        await (victim.queue.hold if is_delayed else victim.queue.flush)(Selector(name="changed"))

    await check_sizes(cluster, ["changed", "waits"])
    sizes = await process.queue.size()
    assert (sizes.delayed, sizes.held) == (1, int(is_delayed))
    await cluster.pass_time(15 * MINUTE)
    await process.queue.maintain()
    await check_sizes(cluster, ["changed", "waits"])


async def test_mail_whose_successor_was_delivered_is_not_listed(
    cluster: InMemoryCluster, process: Process
) -> None:
    """The process that replaced it ended before it said that the successor is published."""
    victim = await cluster.start()
    await cluster.enqueue(process, "changed", "waits", delay=10**6)
    victim.fail(stopping("mark_published", Fault.STOP_BEFORE))
    with pytest.raises(Stopped):
        await victim.queue.flush(Selector(name="changed"))
    assert await cluster.deliver(process) == ["changed"]

    await check_sizes(cluster, ["waits"])
    await cluster.pass_time(15 * MINUTE)
    await process.queue.maintain()
    await check_sizes(cluster, ["waits"])


async def test_delivery_handed_down_by_a_process_that_ended_before_the_row_is_not_subtracted(
    cluster: InMemoryCluster, process: Process
) -> None:
    victim = await cluster.start()
    await cluster.enqueue(process, "changed")
    await cluster.enqueue(process, "waits", delay=10**6)
    consumer, item = await cluster.take(process)
    other = await cluster.start()
    other.fail(stopping("end"))
    with pytest.raises(Stopped):
        await other.queue.hold(Selector(name="changed"))
    await item.done()
    await consumer.close()
    [(key, mark)] = cluster.tables.marks.items()
    row = cluster.tables.rows[key]
    assert mark.is_unfinished_replacement
    assert mark.delivered_at is not None
    victim.fail(stopping("mark_delivered"))
    with pytest.raises(Stopped):
        await replacement.finish(victim.queue._engine, row, mark)

    await check_sizes(cluster, ["waits"])


async def test_queue_whose_limits_are_gone_has_no_mails_but_its_dead_letters(
    cluster: InMemoryCluster, process: Process
) -> None:
    """As when a queue is deleted under a process that has it open."""
    await cluster.give_up(process, "dead_letter")
    cluster.tables.limits = Limits(None, None)

    assert await process.queue.size() == Sizes(0, 0, 0, 1)
    assert await process.queue.ages() == {}
    await process.queue.maintain()


# Slices that are kept for longer than rows live: marks outlive these


LIFETIME = timedelta(hours=2)


async def maintenance(cluster: InMemoryCluster, process: Process, duration: timedelta) -> None:
    for _ in range(duration // (10 * MINUTE)):
        await cluster.pass_time(10 * MINUTE)
        await process.queue.maintain()


async def test_marks_of_rows_that_expired_are_not_subtracted_from_a_row_that_is_set_aside(
    cluster: InMemoryCluster, process: Process
) -> None:
    cluster.tables.row_lifetime = LIFETIME
    await cluster.enqueue(process, "bad", "rolled forward", "removed", delay=10**6)
    await process.queue.hold(Selector(name="rolled forward"))
    await process.queue.remove(Selector(name="removed"))
    (bad,) = (each for each in cluster.tables.live() if each.envelope.name == "bad")
    cluster.tables.undecodable.add(bad.key)

    await maintenance(cluster, process, 3 * LIFETIME)

    partition = bad.key.partition
    marks = [key for key in cluster.tables.marks if key.partition == partition]
    rows = [key for key in cluster.tables.unexpired() if key.partition == partition]
    assert (rows, len(marks)) == ([bad.key], 3)
    assert (await process.queue.size()).size == 2
    assert (await process.queue.size()).size == 2
    cluster.tables.marks[bad.key] = Mark(delivered_at=cluster.clock.now())
    cluster.tables.traits[bad.key] = bad.traits
    assert (await (await cluster.start()).queue.size()).size == 1


async def deliver_what_expires_early(cluster: InMemoryCluster, process: Process) -> None:
    """Deliver five mails, whose rows expire long before those of mails that are queued later."""
    cluster.tables.row_lifetime = LIFETIME
    await cluster.enqueue(process, *(f"short {number}" for number in range(5)))
    assert len(await cluster.deliver(process, MINUTE)) == 5
    cluster.tables.row_lifetime = 12 * LIFETIME


async def test_marks_of_rows_that_lived_shorter_are_not_subtracted_from_those_that_wait(
    cluster: InMemoryCluster, process: Process
) -> None:
    """The lifetime is made longer within a slice, of which one row expires early."""
    await deliver_what_expires_early(cluster, process)
    await cluster.enqueue(process, "held", "delayed", "due", "removed", delay=10**6)
    await process.queue.hold(Selector(name="held"))
    await process.queue.flush(Selector(name="due"))
    await process.queue.remove(Selector(name="removed"))

    await maintenance(cluster, process, 2 * LIFETIME)

    found = {each.mail.name async for each in process.queue.browse()}
    assert found == {"delayed", "due", "held"}
    assert await process.queue.size() == Sizes(3, 1, 1, 0)


async def test_replacement_under_way_is_counted_where_rows_expired(
    cluster: InMemoryCluster, process: Process
) -> None:
    await deliver_what_expires_early(cluster, process)
    await cluster.enqueue(process, "changed", "waits", delay=10**6)
    await maintenance(cluster, process, 2 * LIFETIME)
    victim = await cluster.start()
    victim.fail(stopping("end"))
    with pytest.raises(Stopped):
        await victim.queue.hold(Selector(name="changed"))

    await check_sizes(cluster, ["changed", "waits"])
    assert await process.queue.size() == Sizes(2, 1, 1, 0)


async def set_aside(cluster: InMemoryCluster, process: Process, name: str, beside: int) -> None:
    """Queue a mail for the next hour whose row cannot be decoded, beside mails of its slice that
    are delivered."""
    await cluster.enqueue(process, *(f"beside {name} {number}" for number in range(beside)))
    assert len(await cluster.deliver(process, MINUTE)) == beside
    await cluster.enqueue(process, name, delay=3600)
    (row,) = (each for each in cluster.tables.live() if each.envelope.name == name)
    cluster.tables.undecodable.add(row.key)


async def test_rows_that_come_late_hide_none_that_expired(
    cluster: InMemoryCluster, process: Process
) -> None:
    """A slice that has as many rows as at its close may have others."""
    cluster.tables.row_lifetime = LIFETIME
    await set_aside(cluster, process, "bad", beside=1)
    late = await withdrawn_before_its_row(cluster)
    await maintenance(cluster, process, 2 * LIFETIME)
    [closed] = cluster.tables.slices.values()
    cluster.tables.insert(late)
    assert sum(closed.rows.values()) == len(cluster.tables.unexpired()) == 2

    assert await process.queue.size() == Sizes(1, 0, 0, 0)


async def test_rows_that_a_purge_ended_hide_none_that_expired(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "purged")
    await cluster.pass_time(2 * MINUTE)
    assert await process.queue.purge() == 1
    await deliver_what_expires_early(cluster, process)
    await cluster.enqueue(process, "waits", delay=10**6)
    await maintenance(cluster, process, 2 * LIFETIME)
    (slice_start,) = {key.slice_start for key in cluster.tables.unexpired()}
    (closed,) = (each for each in cluster.tables.slices.values() if not each.drained)
    assert (closed.slice_start, sum(closed.rows.values())) == (slice_start, 7)

    assert await process.queue.size() == Sizes(1, 1, 0, 0)


@pytest.mark.parametrize(
    ("most", "first", "second"),
    [(14, 2, 2), (13, 1, 2), (9, 1, 1), (3, 0, 0)],
    ids=["both", "one mark looked up, then the other joined", "one joined", "neither"],
)
async def test_what_a_count_reads_is_bounded_over_all_slices(
    cluster: InMemoryCluster,
    process: Process,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    first: int,
    second: int,
) -> None:
    cluster.tables.row_lifetime = LIFETIME
    for name, beside in (("bad", 12), ("bad, too", 3)):
        await set_aside(cluster, process, name, beside)
        await cluster.pass_time(WINDOW)
    await maintenance(cluster, process, 2 * LIFETIME)
    assert (len(cluster.tables.unexpired()), len(cluster.tables.marks)) == (2, 15)
    monkeypatch.setattr(size, "MAX_READ", most)

    for found in (first, second):
        assert await process.queue.size() == Sizes(found, 0, 0, 0, at_least=found < 2)
    monkeypatch.undo()
    assert await process.queue.size() == Sizes(2, 0, 0, 0)


async def test_mails_that_are_delayed_or_held_are_counted_at_least(
    cluster: InMemoryCluster, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    await deliver_what_expires_early(cluster, process)
    await cluster.enqueue(process, "held", "delayed", "due", delay=10**6)
    await process.queue.hold(Selector(name="held"))
    await process.queue.flush(Selector(name="due"))
    await maintenance(cluster, process, 2 * LIFETIME)
    monkeypatch.setattr(size, "MAX_READ", 0)

    assert await process.queue.size() == Sizes(2, 1, 1, 0, at_least=True)
