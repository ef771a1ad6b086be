"""After a power cut at any moment an enqueue key stands for its mail, or for none, and recovery
keeps what it found for a day."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from crash.cuts import disks_after
from crash.lossy import Journal, LossyFiles
from crash.world import content_of, opened, start
from postroad.domain.mail.mail import Mail
from postroad.domain.queues.references import KEY_LIFETIME
from postroad.embedded.log.index import KeyIndex
from postroad.embedded.log.layout import KEYS
from postroad.embedded.store.owner import OwnedQueue
from support.memory.clock import ManualClock

MAIL = Mail("a@example.org", ("keyed@example.net",), content_of("keyed"), name="keyed")
OTHER = Mail(None, ("b@example.net",), content_of("other"), name="other")
MINUTE = timedelta(minutes=1)


async def keyed(queue: OwnedQueue) -> UUID:
    return await queue.enqueue(MAIL, key="one")


async def waiting(queue: OwnedQueue) -> int:
    """Return how many mails wait that have the key."""
    return sum([view.mail.name == "keyed" async for view in queue.browse()])


async def story(*, ends: bool, checkpoints: bool) -> Journal:
    """Return the disk's journal of a mail with a key that is delivered, or retried."""
    files = LossyFiles()
    queue = await start(files)
    await queue.maintenance.recovering
    files.note(f"accepted {await keyed(queue)}", "keyed")
    if checkpoints:
        await queue.maintenance.checkpoint()
    item = await queue.consumer(10).next()
    if ends:
        files.note("ending", "keyed")
        await item.done()
        files.note("ended", "keyed")
    else:
        await item.retry(MINUTE)
    await queue.enqueue(OTHER)
    if checkpoints:
        await queue.maintenance.checkpoint()
    await queue.enqueue(OTHER)
    await queue.close()
    return files.journal


async def check(journal: Journal) -> int:
    """Repeat the enqueue after every cut, and after the process was killed then; return how many
    disks that were."""
    count = 0
    for cut in journal.cuts():
        kinds = [event.kind for event in journal.events(cut)]
        known = {UUID(kind.split()[1]) for kind in kinds if kind.startswith("accepted")}
        for disk in disks_after(journal, cut, most=4):
            async with opened(disk) as (files, queue):
                found = await keyed(queue)
                assert known <= {found}, "an accepted mail is queued again"
                left = await waiting(queue)
            assert left <= ("ended" not in kinds), "a mail that ended is queued again"
            assert left >= ("ending" not in kinds), "the key stands for no mail"
            async with opened(files.disk, seed=1) as (_, queue):
                assert await keyed(queue) == found
            count += 1
    return count


@pytest.mark.parametrize("ends", [True, False], ids=["delivered", "retried"])
@pytest.mark.parametrize("checkpoints", [True, False], ids=["checkpoints", "none"])
async def test_after_any_cut_one_mail_has_the_key(*, ends: bool, checkpoints: bool) -> None:
    assert await check(await story(ends=ends, checkpoints=checkpoints)) > 50


async def test_recovery_that_overlooks_the_mails_of_open_keys_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(KeyIndex, "see", lambda *_: None)

    with pytest.raises(AssertionError):
        await check(await story(ends=True, checkpoints=False))


async def test_segments_of_keys_are_kept_for_a_day_and_go_then() -> None:
    files, clock = LossyFiles(), ManualClock()
    queue = await start(files, clock)
    await queue.maintenance.recovering
    first = await keyed(queue)
    await queue.maintenance.checkpoint()
    await queue.close()
    await clock.advance(KEY_LIFETIME - MINUTE)

    async with opened(files.disk, clock, seed=1) as (files, queue):
        await queue.enqueue(OTHER)
        await queue.maintenance.checkpoint()
        assert await keyed(queue) == first
        assert queue.engine.lanes[KEYS].segments
    await clock.advance(2 * MINUTE)

    async with opened(files.disk, clock, seed=2) as (_, queue):
        await queue.enqueue(OTHER)
        await queue.maintenance.checkpoint()
        assert queue.engine.lanes[KEYS].segments == []
        assert await keyed(queue) != first
        assert await waiting(queue) == 2
