"""One run of a store that meets everything: new mail and retries, several recipients, deaths and
removals, holding, rotation, checkpoints, files used again, and a process that was killed midway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from crash.lossy import Journal, LossyFiles
from crash.world import Outside, start
from postroad.embedded.log.layout import NEW
from support.memory.clock import ManualClock

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


Phase = Callable[[Outside, ManualClock], Awaitable[None]]


async def record(*phases: Phase) -> Journal:
    """Run some phases in one process, and return the journal."""
    files, clock = LossyFiles(), ManualClock()
    queue = await start(files, clock)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    for phase in phases:
        await phase(outside, clock)
    await queue.close()
    return files.journal


async def record_run() -> Journal:
    """Run everything, and return the journal."""
    files, clock = LossyFiles(), ManualClock()
    queue = await start(files, clock)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    await first_mails(outside, clock)
    await queue.maintain()
    await administration(outside, clock)
    await queue.close()  # to stop is to crash: nothing is written

    queue = await start(files, clock, seed=1)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    await _second_process(outside, clock)
    await queue.close()
    return files.journal


async def first_mails(outside: Outside, clock: ManualClock) -> None:
    await outside.enqueue("one")
    await outside.enqueue("three", 3)
    await outside.enqueue("late", delay=HOUR)
    for _ in range(2):
        await outside.lease()
    await outside.done("one")
    await outside.transmit("three", ("three0@example.net",))
    await outside.retry("three", MINUTE)
    await outside.enqueue("four")  # takes the file of `one`
    await outside.lease()
    await outside.retry("four", timedelta(0))
    await outside.queue.maintenance.checkpoint()
    await outside.lease()
    await outside.transmit("four")
    await outside.done("four")
    await clock.advance(2 * MINUTE)
    await outside.lease()
    await outside.fail("three", "three1@example.net")
    await outside.transmit("three", ("three2@example.net",))
    await outside.reject("three")


async def administration(outside: Outside, clock: ManualClock) -> None:
    for name in ("held", "gone", "busy", "dead", "slow"):
        await outside.enqueue(name, 2)
    await outside.change("hold", "held")
    await outside.change("remove", "gone")
    for _ in range(3):
        await outside.lease()
    await outside.change("remove", "busy")
    await outside.items["busy"].done()
    await outside.reject("dead")
    await outside.change("hold", "slow")
    await outside.queue.maintenance.checkpoint()
    await outside.enqueue("more")
    await outside.enqueue("again")
    await outside.change("flush", "late")
    await outside.change("requeue", "dead")
    await outside.transmit("slow", ("slow0@example.net",))


async def hurried(outside: Outside, clock: ManualClock) -> None:
    """A checkpoint is taken while mails come in whose records began a new segment and are not
    durable yet; all before them in the old one is finished."""
    lane = outside.queue.engine.lane(NEW)
    number = 0
    while lane.segments == [] or lane.segments[-1].header.limit - lane.segments[-1].end > 700:
        number += 1
        await outside.enqueue(f"passed{number}")
        await outside.lease()
        await outside.done(f"passed{number}")
    old = lane.segments[-1]
    outside.owner.is_open.clear()
    coming = [asyncio.ensure_future(outside.receive(f"hurried{n}")) for n in range(6)]
    while outside.owner.waiting < len(coming):
        await asyncio.sleep(0)
    outside.owner.is_open.set()
    await asyncio.sleep(0)  # now all of them are announced, at once
    assert not lane.appends_to(old)
    assert not old.live
    await outside.queue.maintenance.checkpoint()
    await asyncio.gather(*coming)


async def received(outside: Outside, clock: ManualClock) -> None:
    """Mails come in by way of a process that stores them itself."""
    for number in range(3):
        await outside.receive(f"received{number}")
    await outside.lease()
    await outside.done("received0")


async def imported(outside: Outside, clock: ManualClock) -> None:
    """Mails come in together, into places that earlier ones left, beside one that waits."""
    await outside.enqueue_portion("import1", "import2", "a-longer-import3")
    await outside.end("import1")
    await outside.end("import2")
    await outside.enqueue_portion("import4", "import5", "import6")
    await outside.end("import5")


async def crowd(outside: Outside, clock: ManualClock) -> None:
    """Several are worked on at once when an envelope comes that needs a segment of its own, so that
    the one before ends with records without a waiting caller."""
    for number in range(2):
        names = [f"crowd{number}{char}" for char in "ab"]
        await outside.enqueue(names[0])
        await outside.receive(names[1])
        while not set(names) <= set(outside.items):
            await outside.lease()
        await outside.enqueue(f"long{number}", 40)
        for name in names:
            await outside.transmit(name)
        for name in names:
            await outside.done(name)
    for name in list(outside.items):
        await outside.done(name)


async def _second_process(outside: Outside, clock: ManualClock) -> None:
    names = set()
    for _ in range(4):
        names.add((await outside.lease()).mail.name)
    assert names == {"more", "again", "late", "dead"}
    await outside.done("again")
    await outside.retry("more", HOUR)
    await outside.queue.maintenance.checkpoint()
    await outside.change("release", "held")
    await outside.done("late")
    await outside.done("dead")
    for number in range(3):
        await outside.receive(f"new{number}")
        await outside.lease()
    await outside.queue.maintenance.checkpoint()
    await crowd(outside, clock)
    await outside.queue.maintain()
    await clock.advance(2 * HOUR)
    await outside.lease()
    await outside.transmit("more")
    await imported(outside, clock)


async def aging(outside: Outside, clock: ManualClock) -> None:
    """Mails are retried into another lane until the segments of the first one are garbage."""
    for number in range(4):
        await outside.enqueue(f"aging{number}", 6)
    await outside.enqueue("long", 40)
    for _ in range(5):
        await outside.lease()
    for name in list(outside.items):
        await outside.retry(name, HOUR)
    await outside.queue.maintenance.checkpoint()
    await outside.enqueue("last")


async def changing_minds(outside: Outside, clock: ManualClock) -> None:
    """A retried mail is made due again at once, before its lane is synced."""
    for number in range(3):
        await outside.enqueue(f"mind{number}")
    await outside.queue.maintenance.checkpoint()
    for number in range(3):
        await outside.lease()
        await outside.retry(f"mind{number}", HOUR)
        await clock.advance(HOUR)
        await outside.lease()
        await outside.transmit(f"mind{number}")
        await outside.done(f"mind{number}")
