"""A live mail whose record has the right checksum and cannot be read: it is parked.

The store reports and keeps the mail; no other mail is repeated, delayed or hidden because of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from contract.queue_harness import letter, names
from crash.accidents import rewrite_record, unparsable
from postroad import Selector, open_queue
from postroad.domain.mail_views import MailView
from postroad.errors import StoreDamaged
from postroad.ports.mail_queue import MailQueue

GOOD = [f"m{number}" for number in range(8) if number != 5]


@pytest.fixture
async def root(tmp_path: Path) -> Path:
    """A store with eight mails, of which the sixth cannot be read."""
    root = tmp_path / "store"
    async with open_queue(f"embedded://{root}", create=True) as queue:
        for number in range(8):
            await queue.enqueue(letter(f"m{number}"))
    rewrite_record(root, lambda frame: b'"m5"' in frame.payload, unparsable)
    return root


async def delivered(queue: MailQueue, most: int) -> list[str]:
    """Deliver at most so many mails that are due, three at a time."""
    found: list[str] = []

    async def consume() -> None:
        async for item in queue.dequeue(prefetch=3):
            found.append(item.mail.name or "")
            await item.done()
            if len(found) == most:
                return

    try:
        await asyncio.wait_for(consume(), 1)
    except TimeoutError:
        pass
    return found


async def test_the_others_are_delivered_once_however_often_it_is_started(root: Path) -> None:
    sent = Counter[str]()
    for most in (4, 2, 8):
        async with open_queue(f"embedded://{root}") as queue:
            sent.update(await delivered(queue, most))
            assert (await queue.size()).size == 8 - sent.total()

    assert sent == Counter(GOOD)


async def look(queue: MailQueue, found: list[MailView]) -> None:
    async for view in queue.browse():
        found.append(view)


async def test_browsing_and_delivering_report_it(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[MailView] = []
    async with open_queue(f"embedded://{root}") as queue:
        with pytest.raises(StoreDamaged, match=r"log/new.0000000001 at offset \d+"):
            await look(queue, found)
        assert [view.mail.name for view in found] == GOOD
        only_last = Selector(enqueue_id=found[-1].enqueue_id)
        assert await names(queue.browse(only_last)) == ["m7"]

        assert not caplog.records
        await delivered(queue, 7)
        (logged,) = caplog.records
        assert "log/new.0000000001 at offset" in logged.getMessage() + str(vars(logged))


async def test_the_others_can_be_held_and_removed(root: Path) -> None:
    async with open_queue(f"embedded://{root}") as queue:
        with pytest.raises(StoreDamaged):
            await queue.hold(Selector.all())
        assert (await queue.size()).held == len(GOOD)
    async with open_queue(f"embedded://{root}") as queue:
        assert (await queue.size()).held == len(GOOD)
        with pytest.raises(StoreDamaged):
            await queue.remove(Selector(name="m6"))
        assert (await queue.size()).size == 7
        assert await delivered(queue, 1) == []
