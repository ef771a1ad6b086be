"""No audit deletes bytes whose rows are, or were, in another view than the one it reads."""

from __future__ import annotations

import copy
import logging
from dataclasses import fields
from datetime import timedelta

import pytest

from contract.queue_harness import letter
from postroad.adapters.memory.fault_injection import Fault, Step, Stopped, at, away
from postroad.adapters.memory.tables import Tables
from postroad.distributed.ownership import check_erasable
from postroad.domain.names import key_of_owner
from postroad.domain.ownership import Owner
from postroad.domain.selection import Selector
from postroad.errors import BlobsUnavailable, BucketNotOwned, PostroadError, ViewRefused
from postroad.telemetry import metrics
from support.in_memory_cluster import NAME, Before, Post, Process

ALL = Selector.all()
MINUTE = timedelta(minutes=1)
KEY = key_of_owner(NAME)
LATER = 10**6


async def upkeep(post: Post, process: Process, hours: int = 24) -> None:
    for _ in range(hours * 6):
        await post.pass_time(10 * MINUTE)
        await process.queue.maintain()


async def audited(process: Process, **options: bool) -> list[str]:
    return [each.blob_key async for each in process.queue.audit(**options)]


def refused() -> float:
    value = metrics.NOT_OWNED.labels(str(NAME))._value.get()
    assert isinstance(value, float)
    return value


def snapshot(post: Post) -> Tables:
    taken = copy.copy(post.tables)
    for each in fields(taken):
        if each.name not in {"clock", "hosts"}:
            setattr(taken, each.name, copy.copy(getattr(taken, each.name)))
    return taken


async def restored(post: Post, tables: Tables) -> Process:
    """Put the view back to what it was, and start a process over it."""
    for process in post.processes:
        process.gate.stop()
    post.world._tables[str(NAME)] = tables
    return await post.start()


async def neighbour(post: Post) -> tuple[Post, Process]:
    """Start another installation, with a view and a broker of its own over the same bucket."""
    other = Post(seed=1)
    other.world._buckets = post.world._buckets
    return other, await other.start()


# Two installations over one bucket


async def test_upkeep_of_a_second_installation_leaves_the_bytes_of_the_first_alone(
    post: Post, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    await post.enqueue(process, "first", delay=LATER)
    other, second = await neighbour(post)
    await other.enqueue(second, "second", delay=LATER)
    assert len(post.blobs) == 2

    with caplog.at_level(logging.ERROR):
        await upkeep(other, second)
    assert refused() == 1
    await post.clock.advance(timedelta(hours=24))
    await upkeep(post, process)

    assert refused() == 0
    assert any("not audited" in each.message for each in caplog.records)
    assert "first" in [turn.envelope.name for turn in post.tables.live()]
    assert {turn.blob_key for turn in post.tables.live()} <= set(post.blobs)


@pytest.mark.parametrize("repair", [False, True])
async def test_audit_refuses_the_bucket_of_another_view_and_says_what_to_do(
    post: Post, process: Process, repair: bool
) -> None:
    await post.enqueue(process, "first", delay=LATER)
    _, second = await neighbour(post)
    before = dict(post.blobs)

    with pytest.raises(BucketNotOwned) as caught:
        await audited(second, repair=repair)

    assert "another view" in str(caught.value)
    assert "--adopt" in caught.value.hint
    assert dict(post.blobs) == before


async def test_a_person_makes_another_view_the_owner(post: Post, process: Process) -> None:
    """After that the first one is refused."""
    await post.enqueue(process, "first", delay=LATER)
    other, second = await neighbour(post)
    await other.enqueue(second, "second", delay=LATER)
    await other.pass_time(timedelta(hours=7))
    await post.pass_time(timedelta(hours=7))

    assert len(await audited(second, adopt=True)) == 1
    assert len(post.blobs) == 2
    with pytest.raises(BucketNotOwned):
        await audited(process, repair=True)
    assert len(await audited(second, repair=True)) == 1
    assert set(post.blobs) == {turn.blob_key for turn in other.tables.live()}


async def test_mail_is_taken_and_delivered_over_a_bucket_that_is_not_the_views(
    post: Post, process: Process
) -> None:
    other, second = await neighbour(post)

    await other.enqueue(second, "second")

    assert await other.deliver(second) == ["second"]


async def test_copy_of_a_view_may_not_erase_the_bytes_of_its_original(
    post: Post, process: Process
) -> None:
    """It has the incarnation of the original, whose upkeep went on."""
    await upkeep(post, process, hours=1)
    other = Post(seed=1)
    other.world._buckets = post.world._buckets
    other.world._tables[str(NAME)] = snapshot(post)
    copied = (await other.start()).queue._engine
    await check_erasable(NAME, copied.view, copied.blobs)

    await upkeep(post, process, hours=1)

    with pytest.raises(BucketNotOwned, match="later state"):
        await check_erasable(NAME, copied.view, copied.blobs)
    engine = process.queue._engine
    await check_erasable(NAME, engine.view, engine.blobs)
    await other.close()


# A view that was restored


async def test_upkeep_over_a_restored_view_takes_no_bytes_of_mails_whose_rows_are_missing(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, "before", delay=LATER)
    await upkeep(post, process, hours=1)
    backup = snapshot(post)
    await upkeep(post, process, hours=1)
    await post.enqueue(process, "after", delay=LATER)
    bytes_of_all = set(post.blobs)

    healthy = await restored(post, backup)
    await upkeep(post, healthy)

    assert refused() == 1
    assert set(post.blobs) == bytes_of_all
    with pytest.raises(BucketNotOwned) as caught:
        await audited(healthy, repair=True)
    assert "restored from a backup" in str(caught.value)


async def test_a_restored_view_does_not_come_to_look_like_the_present_one(
    post: Post, process: Process
) -> None:
    """It lives on, with mail and upkeep, for longer than it is older."""
    await upkeep(post, process, hours=1)
    backup = snapshot(post)
    await upkeep(post, process, hours=2)
    await post.enqueue(process, "after", delay=LATER)
    healthy = await restored(post, backup)

    for number in range(5):
        await post.enqueue(healthy, f"since {number}")
        assert await post.deliver(healthy) == [f"since {number}"]
        await upkeep(post, healthy)

    assert len(post.blobs) == 1


async def test_a_person_adopts_a_restored_view(post: Post, process: Process) -> None:
    await post.enqueue(process, "before", delay=LATER)
    await upkeep(post, process, hours=1)
    backup = snapshot(post)
    await upkeep(post, process, hours=1)
    await post.enqueue(process, "after", delay=LATER)
    healthy = await restored(post, backup)
    await post.pass_time(timedelta(hours=7))

    assert len(await audited(healthy, adopt=True, repair=True)) == 1
    await upkeep(post, healthy)

    assert refused() == 0
    assert set(post.blobs) == {turn.blob_key for turn in post.tables.live()}


async def test_of_a_view_and_its_copy_only_one_goes_on_auditing(
    post: Post, process: Process
) -> None:
    """Whichever upkeep looks at the bucket first after the copy was made."""
    await upkeep(post, process, hours=1)
    twin = Post(seed=1)
    twin.world._buckets = post.world._buckets
    await twin.pass_time(timedelta(hours=1))
    backup = snapshot(post)
    backup.clock, backup.hosts = twin.clock, twin.world.view_hosts
    twin.world._tables[str(NAME)] = backup
    other = await twin.start()
    await post.enqueue(process, "mine", delay=LATER)
    await twin.enqueue(other, "theirs", delay=LATER)

    for _ in range(24 * 6):
        for each, its in ((twin, other), (post, process)):
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
    post: Post, process: Process
) -> None:
    await upkeep(post, process, hours=1)
    backup = snapshot(post)
    await upkeep(post, process, hours=1)
    await post.enqueue(process, "after", delay=LATER)
    await post.pass_time(timedelta(hours=7))
    auditor = await post.start()

    async def restore() -> None:
        for each in fields(backup):
            setattr(post.tables, each.name, getattr(backup, each.name))

    auditor.gate.before = Before("buried", restore)

    with pytest.raises(BucketNotOwned):
        await audited(auditor, repair=True)
    assert len(post.blobs) == 1


# The owner object


async def test_a_queue_without_owner_object_gets_one_from_the_first_audit(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, "mail", delay=LATER)
    del post.blobs[KEY]

    assert await audited(process) == []

    assert Owner.decode(post.blobs[KEY]).incarnation == post.tables.incarnation
    _, second = await neighbour(post)
    with pytest.raises(BucketNotOwned):
        await audited(second)


async def test_creating_a_queue_makes_its_owner_object(post: Post, process: Process) -> None:
    assert Owner.decode(post.blobs[KEY]).incarnation == post.tables.incarnation


async def test_an_owner_object_that_cannot_be_read_is_refused_until_a_person_adopts(
    post: Post, process: Process
) -> None:
    post.blobs[KEY] = b"a later release, or a person"

    with pytest.raises(BucketNotOwned, match="cannot be read"):
        await audited(process, repair=True)
    await process.queue.maintain()

    assert await audited(process, adopt=True) == []
    assert await audited(process) == []


@pytest.mark.parametrize("fault", [Fault.STOP_AFTER, Fault.AWAY, Fault.ANSWER_LOST])
async def test_a_raise_that_breaks_off_anywhere_does_not_lock_the_view_out(
    post: Post, process: Process, fault: Fault
) -> None:
    for number in range(30):
        victim = await post.start()
        await post.pass_time(11 * MINUTE)
        victim.fail(at(number, fault))
        try:
            await victim.queue.maintain()
        except (Stopped, PostroadError):
            pass
        victim.gate.stop()
        assert await audited(process) == []


async def test_processes_of_one_view_never_refuse_each_other(post: Post) -> None:
    """Whatever each of them writes between two reads of another."""
    for operation in ("get", "identity", "raise_as_of", "put"):
        first, second = await post.start(), await post.start()
        await post.pass_time(11 * MINUTE)
        first.gate.before = Before(operation, second.queue.maintain)
        await first.queue.maintain()
        assert refused() == 0
        for each in (first, second):
            assert await audited(each) == []


async def test_upkeep_goes_on_where_the_bucket_or_its_tables_are_away(
    post: Post, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of this release may start before the operator made its tables."""
    await post.pass_time(11 * MINUTE)
    process.gate.plan = away("blobs")
    await process.queue.maintain()
    with pytest.raises(BlobsUnavailable):
        await audited(process)
    process.gate.plan = lambda step: None

    async def missing() -> None:
        raise ViewRefused("unconfigured table ownership")

    monkeypatch.setattr(process.queue._engine.view, "identity", missing)
    await post.pass_time(11 * MINUTE)
    await process.queue.maintain()


async def test_upkeep_raises_as_of_every_ten_minutes_whoever_audits(post: Post) -> None:
    several = [await post.start() for _ in range(3)]
    await upkeep(post, several[0], hours=1)
    raised = set()

    def puts() -> int:
        return sum(step.operation == "put" for each in several for step in each.gate.steps)

    before = puts()
    for _ in range(36):
        await post.pass_time(10 * MINUTE)
        for each in several:
            await each.queue.maintain()
        raised.add(Owner.decode(post.blobs[KEY]).as_of)

    assert len(raised) >= 30
    assert puts() - before <= 40


async def test_bytes_of_a_failed_upload_go_where_the_view_is_the_owner(
    post: Post, process: Process
) -> None:
    """The guard guards nothing else."""
    victim = await post.start()

    def stops(step: Step) -> Fault | None:
        return Fault.STOP_AFTER if step.operation == "put" else None

    victim.gate.plan = stops
    with pytest.raises(Stopped):
        await victim.queue.enqueue(letter("mail"))
    assert len(post.blobs) == 1

    await upkeep(post, process)

    assert dict(post.blobs) == {}
