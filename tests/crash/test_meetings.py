"""A mail that gets another entry while it is browsed or changed is not missed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from crash.lossy import LossyFiles
from crash.world import Outside, start
from postroad.domain.selection import Selector
from postroad.embedded import leases
from postroad.embedded.envelope_records import EnvelopeRecord
from postroad.embedded.owner import OwnedQueue
from postroad.embedded.segments import LiveEntry
from postroad.ports.administration import Operation

HOUR = timedelta(hours=1)


@pytest.fixture
async def queue() -> OwnedQueue:
    """A queue with one mail, whose consumer retries it while an operation reads it."""
    files = LossyFiles()
    queue = await start(files)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    await outside.enqueue("mail")
    await outside.lease()
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
