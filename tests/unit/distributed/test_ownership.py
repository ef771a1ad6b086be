"""No audit deletes bytes whose rows are, or were, in another view than the one it reads."""

from __future__ import annotations

import copy
import logging
from dataclasses import fields
from datetime import timedelta

import pytest

from contract.queue_harness import plain_mail
from postroad.adapters.memory.tables import Tables
from postroad.distributed.engine.ownership import check_erasable
from postroad.domain.queues.names import key_of_owner
from postroad.domain.queues.ownership import Owner
from postroad.domain.queues.selection import Selector
from postroad.errors import BlobsUnavailable, BucketNotOwned, PostroadError, ViewRefused
from postroad.telemetry import metrics
from support.in_memory_cluster import NAME, Before, InMemoryCluster, Process
from support.memory.fault_injection import Fault, Step, Stopped, at, away

ALL = Selector.all()
MINUTE = timedelta(minutes=1)
KEY = key_of_owner(NAME)
LATER = 10**6


async def maintenance(cluster: InMemoryCluster, process: Process, hours: int = 24) -> None:
    for _ in range(hours * 6):
        await cluster.pass_time(10 * MINUTE)
        await process.queue.maintain()


async def audited(process: Process, **options: bool) -> list[str]:
    return [each.blob_key async for each in process.queue.audit(**options)]


def refused() -> float:
    value = metrics.NOT_OWNED.labels(NAME.namespace, NAME.name)._value.get()
    assert isinstance(value, float)
    return value


def snapshot(cluster: InMemoryCluster) -> Tables:
    taken = copy.copy(cluster.tables)
    for each in fields(taken):
        if each.name not in {"clock", "hosts"}:
            setattr(taken, each.name, copy.copy(getattr(taken, each.name)))
    return taken


async def restored(cluster: InMemoryCluster, tables: Tables) -> Process:
    """Put the view back to what it was, and start a process over it."""
    for process in cluster.processes:
        process.faults.stop()
    cluster.world._tables[str(NAME)] = tables
    return await cluster.start()


async def neighbour(cluster: InMemoryCluster) -> tuple[InMemoryCluster, Process]:
    """Start another installation, with a view and a broker of its own over the same bucket."""
    other = InMemoryCluster(seed=1)
    other.world._buckets = cluster.world._buckets
    return other, await other.start()


# Two installations over one bucket


async def test_maintenance_of_a_second_installation_leaves_the_bytes_of_the_first_alone(
    cluster: InMemoryCluster, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.enqueue(process, "first", delay=LATER)
    other, second = await neighbour(cluster)
    await other.enqueue(second, "second", delay=LATER)
    assert len(cluster.blobs) == 2

    with caplog.at_level(logging.ERROR):
        await maintenance(other, second)
    assert refused() == 1
    await cluster.clock.advance(timedelta(hours=24))
    await maintenance(cluster, process)

    assert refused() == 0
    assert any("not audited" in each.message for each in caplog.records)
    assert "first" in [entry.envelope.name for entry in cluster.tables.live()]
    assert {entry.blob_key for entry in cluster.tables.live()} <= set(cluster.blobs)


@pytest.mark.parametrize("repair", [False, True])
async def test_audit_refuses_the_bucket_of_another_view_and_says_what_to_do(
    cluster: InMemoryCluster, process: Process, repair: bool
) -> None:
    await cluster.enqueue(process, "first", delay=LATER)
    _, second = await neighbour(cluster)
    before = dict(cluster.blobs)

    with pytest.raises(BucketNotOwned) as caught:
        await audited(second, repair=repair)

    assert "another view" in str(caught.value)
    assert "--adopt" in caught.value.hint
    assert dict(cluster.blobs) == before


async def test_a_person_makes_another_view_the_owner(
    cluster: InMemoryCluster, process: Process
) -> None:
    """After that the first one is refused."""
    await cluster.enqueue(process, "first", delay=LATER)
    other, second = await neighbour(cluster)
    await other.enqueue(second, "second", delay=LATER)
    await other.pass_time(timedelta(hours=7))
    await cluster.pass_time(timedelta(hours=7))

    assert len(await audited(second, adopt=True)) == 1
    assert len(cluster.blobs) == 2
    with pytest.raises(BucketNotOwned):
        await audited(process, repair=True)
    assert len(await audited(second, repair=True)) == 1
    assert set(cluster.blobs) == {entry.blob_key for entry in other.tables.live()}


async def test_mail_is_taken_and_delivered_over_a_bucket_that_is_not_the_views(
    cluster: InMemoryCluster, process: Process
) -> None:
    other, second = await neighbour(cluster)

    await other.enqueue(second, "second")

    assert await other.deliver(second) == ["second"]


async def test_copy_of_a_view_may_not_erase_the_bytes_of_its_original(
    cluster: InMemoryCluster, process: Process
) -> None:
    """It has the incarnation of the original, whose maintenance went on."""
    await maintenance(cluster, process, hours=1)
    other = InMemoryCluster(seed=1)
    other.world._buckets = cluster.world._buckets
    other.world._tables[str(NAME)] = snapshot(cluster)
    copied = (await other.start()).queue._engine
    await check_erasable(NAME, copied.view, copied.blobs)

    await maintenance(cluster, process, hours=1)

    with pytest.raises(BucketNotOwned, match="later state"):
        await check_erasable(NAME, copied.view, copied.blobs)
    engine = process.queue._engine
    await check_erasable(NAME, engine.view, engine.blobs)
    await other.close()


# A view that was restored


async def test_maintenance_over_a_restored_view_takes_no_bytes_of_mails_whose_rows_are_missing(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "before", delay=LATER)
    await maintenance(cluster, process, hours=1)
    backup = snapshot(cluster)
    await maintenance(cluster, process, hours=1)
    await cluster.enqueue(process, "after", delay=LATER)
    bytes_of_all = set(cluster.blobs)

    healthy = await restored(cluster, backup)
    await maintenance(cluster, healthy)

    assert refused() == 1
    assert set(cluster.blobs) == bytes_of_all
    with pytest.raises(BucketNotOwned) as caught:
        await audited(healthy, repair=True)
    assert "restored from a backup" in str(caught.value)


async def test_a_restored_view_does_not_come_to_look_like_the_present_one(
    cluster: InMemoryCluster, process: Process
) -> None:
    """It lives on, with mail and maintenance, for longer than it is older."""
    await maintenance(cluster, process, hours=1)
    backup = snapshot(cluster)
    await maintenance(cluster, process, hours=2)
    await cluster.enqueue(process, "after", delay=LATER)
    healthy = await restored(cluster, backup)

    for number in range(5):
        await cluster.enqueue(healthy, f"since {number}")
        assert await cluster.deliver(healthy) == [f"since {number}"]
        await maintenance(cluster, healthy)

    assert len(cluster.blobs) == 1


async def test_a_person_adopts_a_restored_view(cluster: InMemoryCluster, process: Process) -> None:
    await cluster.enqueue(process, "before", delay=LATER)
    await maintenance(cluster, process, hours=1)
    backup = snapshot(cluster)
    await maintenance(cluster, process, hours=1)
    await cluster.enqueue(process, "after", delay=LATER)
    healthy = await restored(cluster, backup)
    await cluster.pass_time(timedelta(hours=7))

    assert len(await audited(healthy, adopt=True, repair=True)) == 1
    await maintenance(cluster, healthy)

    assert refused() == 0
    assert set(cluster.blobs) == {entry.blob_key for entry in cluster.tables.live()}


async def test_of_a_view_and_its_copy_only_one_goes_on_auditing(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Whichever maintenance looks at the bucket first after the copy was made."""
    await maintenance(cluster, process, hours=1)
    twin = InMemoryCluster(seed=1)
    twin.world._buckets = cluster.world._buckets
    await twin.pass_time(timedelta(hours=1))
    backup = snapshot(cluster)
    backup.clock, backup.hosts = twin.clock, twin.world.view_hosts
    twin.world._tables[str(NAME)] = backup
    other = await twin.start()
    await cluster.enqueue(process, "mine", delay=LATER)
    await twin.enqueue(other, "theirs", delay=LATER)

    for _ in range(24 * 6):
        for each, its in ((twin, other), (cluster, process)):
            await each.pass_time(10 * MINUTE)
            await its.queue.maintain()

    refusals = 0
    for its in (other, process):
        try:
            await audited(its)
        except BucketNotOwned:
            refusals += 1
    assert refusals == 1


async def test_a_view_that_is_restored_while_an_audit_reads_it_is_seen(
    cluster: InMemoryCluster, process: Process
) -> None:
    await maintenance(cluster, process, hours=1)
    backup = snapshot(cluster)
    await maintenance(cluster, process, hours=1)
    await cluster.enqueue(process, "after", delay=LATER)
    await cluster.pass_time(timedelta(hours=7))
    auditor = await cluster.start()

    async def restore() -> None:
        for each in fields(backup):
            setattr(cluster.tables, each.name, getattr(backup, each.name))

    auditor.faults.before = Before("dead_letters", restore)

    with pytest.raises(BucketNotOwned):
        await audited(auditor, repair=True)
    assert len(cluster.blobs) == 1


# The owner object


async def test_a_queue_without_owner_object_gets_one_from_the_first_audit(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail", delay=LATER)
    del cluster.blobs[KEY]

    assert await audited(process) == []

    assert Owner.decode(cluster.blobs[KEY]).incarnation == cluster.tables.incarnation
    _, second = await neighbour(cluster)
    with pytest.raises(BucketNotOwned):
        await audited(second)


async def test_creating_a_queue_makes_its_owner_object(
    cluster: InMemoryCluster, process: Process
) -> None:
    assert Owner.decode(cluster.blobs[KEY]).incarnation == cluster.tables.incarnation


async def test_an_owner_object_that_cannot_be_read_is_refused_until_a_person_adopts(
    cluster: InMemoryCluster, process: Process
) -> None:
    cluster.blobs[KEY] = b"a later release, or a person"

    with pytest.raises(BucketNotOwned, match="cannot be read"):
        await audited(process, repair=True)
    await process.queue.maintain()

    assert await audited(process, adopt=True) == []
    assert await audited(process) == []


@pytest.mark.parametrize("fault", [Fault.STOP_AFTER, Fault.AWAY, Fault.ANSWER_LOST])
async def test_a_raise_that_breaks_off_anywhere_does_not_lock_the_view_out(
    cluster: InMemoryCluster, process: Process, fault: Fault
) -> None:
    for number in range(30):
        victim = await cluster.start()
        await cluster.pass_time(11 * MINUTE)
        victim.fail(at(number, fault))
        try:
            await victim.queue.maintain()
        except (Stopped, PostroadError):
            pass
        victim.faults.stop()
        assert await audited(process) == []


async def test_processes_of_one_view_never_refuse_each_other(cluster: InMemoryCluster) -> None:
    """Whatever each of them writes between two reads of another."""
    for operation in ("get", "identity", "raise_as_of", "put"):
        first, second = await cluster.start(), await cluster.start()
        await cluster.pass_time(11 * MINUTE)
        first.faults.before = Before(operation, second.queue.maintain)
        await first.queue.maintain()
        assert refused() == 0
        for each in (first, second):
            assert await audited(each) == []


async def test_maintenance_goes_on_where_the_bucket_or_its_tables_are_away(
    cluster: InMemoryCluster, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of this release may start before the operator made its tables."""
    await cluster.pass_time(11 * MINUTE)
    process.faults.plan = away("blobs")
    await process.queue.maintain()
    with pytest.raises(BlobsUnavailable):
        await audited(process)
    process.faults.plan = lambda step: None

    async def missing() -> None:
        raise ViewRefused("unconfigured table ownership")

    monkeypatch.setattr(process.queue._engine.view, "identity", missing)
    await cluster.pass_time(11 * MINUTE)
    await process.queue.maintain()


async def test_maintenance_raises_as_of_every_ten_minutes_in_any_process(
    cluster: InMemoryCluster,
) -> None:
    several = [await cluster.start() for _ in range(3)]
    await maintenance(cluster, several[0], hours=1)
    raised = set()

    def puts() -> int:
        return sum(step.operation == "put" for each in several for step in each.faults.steps)

    before = puts()
    for _ in range(36):
        await cluster.pass_time(10 * MINUTE)
        for each in several:
            await each.queue.maintain()
        raised.add(Owner.decode(cluster.blobs[KEY]).as_of)

    assert len(raised) >= 30
    assert puts() - before <= 40


async def test_bytes_of_a_failed_upload_go_where_the_view_is_the_owner(
    cluster: InMemoryCluster, process: Process
) -> None:
    """The guard guards nothing else."""
    victim = await cluster.start()

    def stops(step: Step) -> Fault | None:
        return Fault.STOP_AFTER if step.operation == "put" else None

    victim.faults.plan = stops
    with pytest.raises(Stopped):
        await victim.queue.enqueue(plain_mail("mail"))
    assert len(cluster.blobs) == 1

    await maintenance(cluster, process)

    assert dict(cluster.blobs) == {}
