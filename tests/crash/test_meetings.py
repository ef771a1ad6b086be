"""A mail that gets another entry while it is browsed or changed is not missed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from crash.lossy import LossyFiles
from crash.world import Outside, start
from postroad.domain.queues.selection import Selector
from postroad.embedded.log.envelopes import EnvelopeRecord
from postroad.embedded.log.segments import LiveEntry
from postroad.embedded.store import leases
from postroad.embedded.store.owner import OwnedQueue
from postroad.errors import StoreFailed
from postroad.ports.mail_queue import Operation

HOUR = timedelta(hours=1)


@pytest.fixture
async def outside() -> Outside:
    """A queue with one mail, which a consumer has."""
    files = LossyFiles()
    queue = await start(files)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    await outside.enqueue("mail")
    await outside.lease()
    return outside


@pytest.fixture
async def queue(outside: Outside) -> OwnedQueue:
    """The queue, where the consumer retries the mail while an operation reads it."""
    queue = outside.queue
    honest = queue.engine.reader.read

    async def meanwhile(entry: LiveEntry) -> EnvelopeRecord:
        found = await honest(entry)
        if "mail" in outside.items:
            await outside.retry("mail", HOUR)
        return found

    queue.engine.reader.read = meanwhile  # type: ignore[method-assign]
    return queue


async def test_browse_sees_it(queue: OwnedQueue) -> None:
    assert [(view.mail.name, view.attempt) async for view in queue.browse()] == [("mail", 1)]


@pytest.mark.parametrize("operation", ["remove", "hold", "flush"])
async def test_a_change_meets_it(queue: OwnedQueue, operation: str) -> None:
    assert await queue.change(Operation(operation), Selector(name="mail")) == 1

    sizes = await queue.size()
    found = {"remove": sizes.size == 0, "hold": sizes.held == 1, "flush": sizes.delayed == 0}
    assert found[operation]


async def test_a_mail_that_ends_meanwhile_is_neither_seen_nor_changed(queue: OwnedQueue) -> None:
    honest = queue.engine.reader.read

    async def removed(entry: LiveEntry) -> EnvelopeRecord:
        found = await honest(entry)
        for each in list(queue.engine.index.walk()):
            if not queue.engine.is_durable(each):
                await queue.engine.wait_durable(each)
            leases.remove(queue.engine, each, found)
        return found

    queue.engine.reader.read = removed  # type: ignore[method-assign]

    assert [view async for view in queue.browse()] == []
    assert await queue.hold(Selector(name="mail")) == 0


@pytest.mark.parametrize("is_left", [True, False])
async def test_an_entry_whose_segment_leaves_the_log_before_it_is_read_is_followed(
    outside: Outside, is_left: bool
) -> None:
    reader, failed = outside.queue.engine.reader, list[StoreFailed]()
    honest = reader.read

    async def late(entry: LiveEntry) -> EnvelopeRecord:
        if "mail" in outside.items:
            await (outside.retry("mail", HOUR) if is_left else outside.done("mail"))
            await outside.forget()
        try:
            return await honest(entry)
        except StoreFailed as error:
            failed.append(error)
            raise

    reader.read = late  # type: ignore[method-assign]

    found = [(view.mail.name, view.attempt) async for view in outside.queue.browse()]
    assert found == ([("mail", 1)] if is_left else [])
    assert len(failed) == 1
