"""A lane per retry step (LQ-32, AMB-9): each in the order of due times, and steps may change."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from contract.queue_harness import plain_mail
from crash.cuts import disks_after
from crash.lossy import Disk, LossyFiles, Name
from crash.world import OPTIONS, ROOT, Outside, check, opened, start
from postroad import open_queue
from postroad.domain.delivery.retries import RetryPlan
from postroad.embedded.log.envelopes import EnvelopeRecord
from postroad.embedded.log.options import StoreOptions
from postroad.embedded.log.segments import LiveEntry
from postroad.embedded.store import leases
from postroad.embedded.store.engine import Engine
from postroad.embedded.store.items import SpoolItem
from postroad.embedded.store.owner import Consumer, OwnedQueue
from postroad.settings import Settings
from postroad.settings.delivery import Retry
from support.memory.clock import ManualClock

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
MOMENT = timedelta(milliseconds=1)
BEFORE = (MINUTE, 5 * MINUTE, 60 * MINUTE)
AFTER: list[tuple[timedelta, ...]] = [
    (),
    (5 * MINUTE,),
    (30 * SECOND, 2 * MINUTE, 240 * MINUTE),
    BEFORE,
]
"""Steps of a second process: none, fewer, all of them other ones, the same."""

DELAYS = [timedelta(0), 30 * SECOND, MINUTE, 4 * MINUTE, 6 * MINUTE, 61 * MINUTE, 600 * MINUTE]


def with_steps(*steps: timedelta) -> StoreOptions:
    return replace(OPTIONS, steps=steps)


def lanes_on(disk: Disk) -> set[str]:
    """Return the lanes that have files."""
    return {name.partition(".")[0] for name in disk.names[ROOT / "log"]}


def live_by_lane(queue: OwnedQueue) -> dict[int, int]:
    """Return how many records each lane keeps for mails that have not ended."""
    live: Counter[int] = Counter()
    for segment in queue.engine.segments():
        live[segment.lane] += len(segment.live)
    return +live


async def next_in_time(consumer: Consumer, clock: ManualClock) -> SpoolItem:
    """Return the next item; time passes until it comes, and no longer."""
    asked = asyncio.ensure_future(consumer.next())
    await clock.advance(timedelta(0))
    while not asked.done():
        assert clock.next_waking is not None, "nothing will ever come"
        await clock.advance(clock.next_waking)
    return await asked


async def fill(outside: Outside, clock: ManualClock) -> dict[str, timedelta]:
    """Queue mails with all delays, of new mail and of retried mail; return when each is due."""
    due = {}
    for number, delay in enumerate(DELAYS):
        for name in (f"new{number}", f"retried{number}"):
            due[name] = clock.elapsed() + delay
        await outside.enqueue(f"retried{number}", 2)
        while f"retried{number}" not in outside.items:
            await outside.lease()
        await outside.transmit(f"retried{number}", (f"retried{number}0@example.net",))
        await outside.retry(f"retried{number}", delay)
        await outside.enqueue(f"new{number}", delay=delay)
        if number == 3:
            await outside.queue.maintenance.checkpoint()
    return due


async def test_the_settings_name_the_lanes(tmp_path: Path) -> None:
    """From the settings down to the names of files."""
    settings = Settings(retry=Retry(lanes=(7 * SECOND, 2 * MINUTE)))
    url = f"embedded://{tmp_path}/outgoing"
    async with open_queue(url, create=True, settings=settings) as queue:
        items = queue.dequeue()
        for delay in (7 * SECOND, 2 * MINUTE):
            await queue.enqueue(plain_mail(f"after {delay}"))
            await (await anext(items)).retry(delay)
        await queue.maintain()

    segments = {path.name.partition(".")[0] for path in (tmp_path / "outgoing" / "log").iterdir()}
    assert segments == {"new", "7s", "120s"}


async def test_each_lane_hands_out_in_the_order_of_due_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Retries at random times, with the jitter of the worker."""
    clock, randomness, plan = ManualClock(), random.Random(4), RetryPlan(BEFORE)
    queue = await start(LossyFiles(), clock, options=with_steps(*BEFORE))
    await queue.maintenance.recovering
    consumer, due = queue.consumer(1000), dict[str, timedelta]()
    for number in range(120):
        await queue.enqueue(plain_mail(f"{number}"))
        item = await consumer.next()
        delay = plan.delay(number % 3, randomness.random())
        due[f"{number}"] = clock.elapsed() + delay
        await item.retry(delay)
        clock.jump(randomness.random() * SECOND / 4)
    by_lane: dict[int, list[str]] = {}
    honest = leases.start

    def noting(engine: Engine, entry: LiveEntry, record: EnvelopeRecord) -> None:
        by_lane.setdefault(entry.segment.lane, []).append(record.envelope.name or "")
        honest(engine, entry, record)

    monkeypatch.setattr(leases, "start", noting)
    for _ in due:
        await next_in_time(consumer, clock)
    await queue.close()

    assert set(by_lane) == {60, 300, 3600}
    for names in by_lane.values():
        assert [due[name] for name in names] == sorted(due[name] for name in names)


@pytest.mark.parametrize("after", AFTER, ids=str)
async def test_other_lanes_at_the_next_start_make_no_mail_early_late_or_lost(
    after: tuple[timedelta, ...],
) -> None:
    files, clock = LossyFiles(), ManualClock()
    queue = await start(files, clock, options=with_steps(*BEFORE))
    await queue.maintenance.recovering
    due = await fill(Outside(files, queue), clock)
    await queue.maintenance.checkpoint()
    await queue.close()

    options = with_steps(*after)
    async with opened(files.disk, clock, seed=1, options=options) as (again, queue):
        consumer, came = queue.consumer(1000), dict[str, timedelta]()
        for _ in due:
            item = await next_in_time(consumer, clock)
            came[item.mail.name or ""] = clock.elapsed()
            await item.done()
        await queue.maintenance.checkpoint()

        assert (await queue.size()).size == 0
        assert lanes_on(again.disk) <= {"new"}, "a lane without live mail has no files"
    assert came.keys() == due.keys()
    for name in came:
        assert due[name] - MOMENT < came[name] < due[name] + SECOND, name


async def test_a_lane_that_ran_empty_is_written_again() -> None:
    files, clock = LossyFiles(), ManualClock()
    queue = await start(files, clock)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    live = []
    for name in ("first", "second"):
        await outside.enqueue(name, delay=MINUTE)
        await queue.maintenance.checkpoint()
        live.append(live_by_lane(queue))
        if name == "first":
            await clock.advance(MINUTE)
            await outside.lease()
            await outside.done("first")
            await queue.maintenance.checkpoint()
            live.append(live_by_lane(queue))
    await queue.close()

    assert live == [{60: 1}, {}, {60: 1}], "it holds one, runs empty, and holds the next"
    async with opened(files.disk) as (_, queue):
        await check(queue, files.journal.events(len(files.journal.steps)))
        assert [view.mail.name async for view in queue.browse()] == ["second"]


@pytest.mark.parametrize("after", AFTER[:3], ids=str)
async def test_every_cut_recovers_into_other_lanes_and_back(after: tuple[timedelta, ...]) -> None:
    """P1 to P4, when the power goes while one set of lanes is written and again in the next."""
    files, clock = LossyFiles(), ManualClock()
    queue = await start(files, clock, options=with_steps(*BEFORE))
    await queue.maintenance.recovering
    await fill(Outside(files, queue), clock)
    await queue.close()

    checked = 0
    for cut in range(5, len(files.journal.steps), 16):
        events = files.journal.events(cut)
        for disk in disks_after(files.journal, cut, most=2):
            async with opened(disk, seed=1, options=with_steps(*after)) as (second, queue):
                await check(queue, events)
                outside = Outside(second, queue)
                if (await queue.size()).size > (await queue.size()).delayed:
                    await outside.retry((await outside.lease()).mail.name or "", 5 * MINUTE)
                await queue.maintain()
            journal = second.journal
            for again in range(len(journal.steps) % 5, len(journal.steps), 5):
                for other in disks_after(journal, again, most=2):
                    options = with_steps(*BEFORE)
                    async with opened(other, seed=2, options=options) as (_, queue):
                        await check(queue, [*events, *journal.events(again)])
                    checked += 1

    assert checked > 100


async def drained(name: str) -> tuple[LossyFiles, ManualClock]:
    """Let a mail pass through the lane of a minute, and stop."""
    files, clock = LossyFiles(), ManualClock()
    queue = await start(files, clock)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    await outside.enqueue(name, delay=MINUTE)
    await clock.advance(MINUTE)
    await outside.lease()
    await outside.done(name)
    await queue.close()
    return files, clock


async def test_a_lane_that_drained_brings_nothing_back_by_the_name_of_an_obsolete_segment() -> None:
    """A cut may leave a segment behind that was removed; no later start takes it for a new one."""
    files, _ = await drained("ended")
    events = files.journal.events(len(files.journal.steps))

    second = await restarted(files.disk)
    disks = 0
    for cut in list(second.journal.cuts())[-6:]:
        third = await restarted(disks_after(second.journal, cut)[0])  # the one that lost the most
        for again in list(third.journal.cuts())[-6:]:
            async with opened(disks_after(third.journal, again)[0], seed=3) as (_, queue):
                await check(queue, events)
                assert (await queue.size()).size == 0
            disks += 1

    assert disks > 20


async def restarted(disk: Disk) -> LossyFiles:
    """Start on a disk, take a checkpoint, and stop."""
    async with opened(disk, seed=2) as (files, queue):
        await queue.maintenance.checkpoint()
    return files


async def test_a_lane_that_drained_counts_on_after_a_restart() -> None:
    """A number that came again could meet an older checkpoint, which takes it for long gone."""
    files, clock = await drained("first")
    for _ in range(2):
        files = await restarted(files.disk)

    async with opened(files.disk, clock) as (files, queue):
        await Outside(files, queue).enqueue("second", delay=MINUTE)
        names = files.disk.names[ROOT / "log"]
        assert [name for name in names if name.startswith("60s.")] == ["60s.0000000002"]


async def test_a_start_that_removes_old_segments_makes_that_durable() -> None:
    """Otherwise one start after the other would find them again."""
    files, _ = await drained("first")
    left = dict(files.disk.names[ROOT / "log"])
    files = await restarted(files.disk)
    files.disk.names[ROOT / "log"].update(left)  # as if their removal had been lost

    async with opened(files.disk) as (files, _):
        assert "60s.0000000001" not in files.disk.names[ROOT / "log"]
        _, unproven = files.journal.unproven(len(files.journal.steps))
        assert not [step for step in unproven if isinstance(step, Name)]
