"""Endings of an item: one that did not succeed may be tried again, and what an administrator
changes while the item waits stays changed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from contract.queue_harness import plain_mail
from crash.lossy import Disk
from crash.world import OPTIONS, opened
from postroad.domain.queues.documents import Sizes
from postroad.domain.queues.selection import Selector
from postroad.embedded.log.envelopes import EnvelopeRecord
from postroad.embedded.log.segments import LiveEntry
from postroad.embedded.store import leases
from postroad.embedded.store.owner import OwnedQueue
from postroad.errors import EntryEnded
from postroad.ports.mail_queue import Operation

A, B = "a@example.net", "b@example.net"


async def test_a_done_that_is_cancelled_once_it_is_recorded_ends_the_item() -> None:
    async with opened(Disk()) as (_, queue):
        await queue.enqueue(plain_mail())
        item = await queue.consumer(1).next()
        ending = asyncio.ensure_future(item.done())
        await asyncio.sleep(0)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending

        assert (await queue.size()).size == 0
        with pytest.raises(EntryEnded):
            await item.done()


@pytest.mark.parametrize(
    ("operation", "sizes"), [("remove", Sizes(0, 0, 0, 0)), ("hold", Sizes(1, 0, 1, 0))]
)
async def test_a_mail_that_is_changed_while_a_retry_drops_a_recipient_stays_changed(
    operation: str, sizes: Sizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(Disk()) as (files, queue):
        await queue.enqueue(plain_mail(recipients=(A, B)))
        item = await queue.consumer(1).next()
        honest = leases.deliver

        async def deliver(*arguments: Any) -> None:
            await honest(*arguments)
            assert await queue.change(Operation(operation), Selector.all()) == 1

        monkeypatch.setattr(leases, "deliver", deliver)
        await item.retry(timedelta(0), (B,))

        assert await queue.size() == sizes
        await queue.settle()
    async with opened(files.disk) as (_, again):
        assert await again.size() == sizes


async def test_the_file_of_a_mail_that_is_removed_is_free_when_its_consumer_has_ended() -> None:
    async with opened(Disk(), options=replace(OPTIONS, pool_files=100)) as (_, queue):
        await queue.enqueue(plain_mail())
        item = await queue.consumer(1).next()
        free = len(queue.engine.slots)

        await queue.remove(Selector.all())
        assert await _free_slots(queue) == free
        await item.done()
        assert await _free_slots(queue) == free + 1


async def _free_slots(queue: OwnedQueue) -> int:
    while queue.engine.slots._cleaning is not None:
        await asyncio.sleep(0)
    return len(queue.engine.slots)


@pytest.mark.parametrize("operation", ["remove", "hold"])
async def test_a_mail_that_is_changed_while_a_consumer_reads_its_record_is_not_leased(
    operation: str,
) -> None:
    async with opened(Disk()) as (files, queue):
        await queue.enqueue(plain_mail("changed"))
    async with opened(files.disk) as (_, queue):
        reader, is_changed = queue.engine.reader, asyncio.Event()
        honest = reader.read

        async def read(entry: LiveEntry) -> EnvelopeRecord:
            found = await honest(entry)
            reader.read = honest  # type: ignore[method-assign]
            assert await queue.change(Operation(operation), Selector.all()) == 1
            is_changed.set()
            return found

        reader.read = read  # type: ignore[method-assign]
        leasing = asyncio.ensure_future(queue.consumer(1).next())
        await is_changed.wait()
        await queue.enqueue(plain_mail("next"))

        assert (await leasing).mail.name == "next"
