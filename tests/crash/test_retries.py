"""What `retry`, `defer` and `record` promise when they return: who is left is durable, the delay
need not be (LQ-28).

FORMAT.md 8 argues it: the replacement ENVELOPE of a retry is never synced for its own sake.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

from crash.cuts import disks_after
from crash.lossy import Disk, LossyFiles, Sync
from crash.world import Outside, opened, start
from postroad.domain.mail.mail import Outcome
from postroad.domain.queues.documents import MailView
from postroad.embedded.store.owner import OwnedQueue
from support.memory.clock import ManualClock

HOUR = timedelta(hours=1)
KEPT = ("mail1@example.net",)


def syncs(files: LossyFiles) -> int:
    return sum(isinstance(step, Sync) for step in files.journal.steps)


async def retried(files: LossyFiles, clock: ManualClock) -> OwnedQueue:
    """Give a mail of three another entry: one was delivered, one is kept, one is left out."""
    queue = await start(files, clock)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    await outside.enqueue("mail", 3)
    await outside.lease()
    await outside.transmit("mail", ("mail0@example.net",))
    await outside.items["mail"].retry(HOUR, KEPT, error="451 later")
    files.note("retried", "mail")
    return queue


async def test_a_retry_waits_for_no_sync_unless_it_leaves_a_recipient_out() -> None:
    files, clock = LossyFiles(), ManualClock()
    queue = await start(files, clock)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    for name in ("all", "some"):
        await outside.enqueue(name, 2)
        await outside.lease()

    before = syncs(files)
    await outside.retry("all", HOUR)
    assert syncs(files) == before
    await outside.items["some"].retry(HOUR, ("some0@example.net",))
    assert syncs(files) == before + 1
    await queue.close()


async def test_outcomes_with_texts_of_their_own_are_durable_by_one_sync() -> None:
    files, clock = LossyFiles(), ManualClock()
    queue = await start(files, clock)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    await outside.enqueue("mail", 4)
    item = await outside.lease()
    *refused, late = item.mail.recipients
    before = syncs(files)

    await item.record({to: Outcome.failed(f"550 no {to}") for to in refused})

    assert syncs(files) == before + 1
    for disk in disks_after(files.journal, len(files.journal.steps)):
        assert (await only_mail(disk, clock)).mail.recipients == (late,)
    await queue.close()


async def test_after_a_mail_was_deferred_a_cut_may_forget_the_delay_and_counts_no_attempt() -> None:
    files, clock = LossyFiles(), ManualClock()
    queue = await start(files, clock)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    await outside.enqueue("mail", 2)
    await (await outside.lease()).defer(HOUR, ("mail1@example.net",), "451 backs off")
    begun = len(files.journal.steps)
    await queue.maintenance.checkpoint()
    await queue.close()

    found = [waiting async for waiting in after_each_cut(files, begun, clock)]

    assert set(found) == {(False, 0, None), (True, 0, "451 backs off")}


async def test_after_a_retry_a_cut_may_forget_the_delay_and_nothing_else() -> None:
    files, clock = LossyFiles(), ManualClock()
    queue = await retried(files, clock)
    begun = len(files.journal.steps)
    await queue.maintenance.checkpoint()
    await queue.close()

    found = [waiting async for waiting in after_each_cut(files, begun, clock)]

    assert set(found) == {(False, 0, None), (True, 1, "451 later")}, (
        "both can be, and nothing between"
    )
    assert found[-1] == (True, 1, "451 later"), "a checkpoint makes the delay durable"


async def after_each_cut(
    files: LossyFiles, begun: int, clock: ManualClock
) -> AsyncIterator[tuple[bool, int, str | None]]:
    """Recover each disk that a cut after step `begun` may leave. Yield whether the mail is delayed,
    its attempts and its last error."""
    for cut in range(begun, len(files.journal.steps) + 1):
        for disk in disks_after(files.journal, cut):
            view = await only_mail(disk, clock)
            assert view.mail.recipients == KEPT, f"cut {cut}"
            yield view.due_at is not None, view.attempt, view.last_error


async def only_mail(disk: Disk, clock: ManualClock) -> MailView:
    """Recover a store and return the one mail that it has."""
    async with opened(disk, clock, seed=1) as (_, queue):
        (view,) = [view async for view in queue.browse()]
    return view
