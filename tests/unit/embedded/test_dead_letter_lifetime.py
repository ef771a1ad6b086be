"""Dead letters of a directory have a lifetime from their death on, after which maintenance discards
them with their bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest
from prometheus_client import REGISTRY

from crash.lossy import LossyFiles
from crash.world import OPTIONS, opened, start
from postroad import Mail, Selector
from postroad.embedded.store.owner import OwnedQueue
from support.memory.clock import ManualClock

DAY = timedelta(days=1)
LIFETIME = replace(OPTIONS, dead_letter_lifetime=30 * DAY)


class Store:
    def __init__(self) -> None:
        self.files, self.clock = LossyFiles(), ManualClock()
        self.queue: OwnedQueue

    async def open(self) -> None:
        self.queue = await start(self.files, self.clock, options=LIFETIME)
        await self.queue.maintenance.recovering

    async def dead_letters(self) -> list[str]:
        found = [each async for each in self.queue.dead_letters(Selector.all())]
        return [each.mail.name or "" for each in found]

    async def reject(self, name: str) -> None:
        await self.queue.enqueue(Mail(None, ("a@b.example",), b"x", name=name))
        consumer = self.queue.consumer(1)
        await (await consumer.next()).reject("550 no")


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    found = Store()
    await found.open()
    yield found
    await found.queue.close()


async def test_dead_letter_is_discarded_with_its_bytes_after_its_lifetime(store: Store) -> None:
    await store.reject("old")
    await store.clock.advance(15 * DAY)
    await store.reject("young")
    await store.clock.advance(15 * DAY + timedelta(seconds=1))

    await store.queue.maintain()

    assert await store.dead_letters() == ["young"]
    labels = {"namespace": "", "name": store.queue.name}
    assert REGISTRY.get_sample_value("postroad_expired_dead_letters_total", labels) == 1
    await store.queue.close()
    async with opened(store.files.disk, store.clock, options=LIFETIME) as (_, queue):
        assert (await queue.size()).dead_letters == 1
        await queue.close()
    await store.open()


async def test_lifetime_begins_with_the_death_of_the_mail(store: Store) -> None:
    await store.queue.enqueue(Mail(None, ("a@b.example",), b"x", name="late"))
    await store.clock.advance(29 * DAY)
    await store.queue.expire(Selector(name="late"))
    await store.clock.advance(29 * DAY)

    await store.queue.maintain()

    assert await store.dead_letters() == ["late"]
    await store.clock.advance(2 * DAY)
    await store.queue.maintain()
    assert await store.dead_letters() == []


async def test_dead_letter_that_was_requeued_dies_anew(store: Store) -> None:
    await store.reject("again")
    await store.clock.advance(20 * DAY)
    await store.queue.requeue(Selector(name="again"))
    await (await store.queue.consumer(1).next()).reject("550 no")
    await store.clock.advance(20 * DAY)

    await store.queue.maintain()

    assert await store.dead_letters() == ["again"]
