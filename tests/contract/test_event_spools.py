"""The contract of where events wait, in memory, over a directory and RabbitMQ."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from uuid import UUID

import pytest

import servers
from postroad.adapters.disk.event_spool import FileEventSpool
from postroad.adapters.memory.event_spool import MemoryEventSpool, MemoryStreams
from postroad.adapters.memory.steps import ProcessSteps
from postroad.adapters.rabbitmq.broker import RabbitMQ
from postroad.adapters.rabbitmq.event_queues import RabbitMQEventSpool
from postroad.domain.delivery.events import StreamEvent
from postroad.domain.queues.names import QueueName
from postroad.ports.events import MAX_BATCH, EventSpool

Open = Callable[[], EventSpool]


def events(stream: str, *numbers: int) -> list[StreamEvent]:
    return [(stream, UUID(int=each + 1), f'{{"n":{each}}}'.encode()) for each in numbers]


def bodies(numbers: Sequence[int]) -> list[bytes]:
    return [each for _, _, each in events("", *numbers)]


async def sent(spool: EventSpool, stream: str, count: int) -> list[bytes]:
    """Take so many events, all of them done."""
    found: list[bytes] = []
    async with asyncio.timeout(60), aclosing(spool.batches(stream)) as batches:
        async for batch in batches:
            for each in batch:
                await each.done()
                found.append(each.body)
            if len(found) >= count:
                break
    return found


class EventSpoolContract:
    """What every spool promises. Subclasses provide `opened`, which opens one as a process does."""

    async def test_events_come_in_their_order_and_once(self, opened: Open) -> None:
        spool = opened()
        numbers = range(2 * MAX_BATCH + 3)
        for at in numbers:
            await spool.append(events("crm", at))

        assert await sent(spool, "crm", len(numbers)) == bodies(numbers)
        await spool.append(events("crm", 1000))
        assert await sent(spool, "crm", 1) == bodies([1000])

    async def test_what_one_process_keeps_another_one_sends(self, opened: Open) -> None:
        await opened().append(events("crm", 0, 1, 2))

        assert await sent(opened(), "crm", 3) == bodies([0, 1, 2])

    async def test_streams_wait_for_themselves(self, opened: Open) -> None:
        spool = opened()
        await spool.append([*events("crm", 0, 1), *events("bus", 2)])

        assert await sent(spool, "bus", 1) == bodies([2])
        assert await sent(spool, "crm", 2) == bodies([0, 1])

    async def test_what_was_not_done_comes_again_first(self, opened: Open) -> None:
        spool = opened()
        await spool.append(events("crm", 0, 1, 2))
        async with aclosing(spool.batches("crm")) as batches:
            batch = await anext(batches)
            await batch[1].done()
        await spool.append(events("crm", 3))

        assert await sent(spool, "crm", 3) == bodies([0, 2, 3])

    async def test_one_process_at_a_time_gets_the_events_of_a_stream(self, opened: Open) -> None:
        first, second = opened(), opened()
        await first.append(events("crm", 0))
        async with aclosing(first.batches("crm")) as batches:
            await anext(batches)
            waiting = asyncio.create_task(sent(second, "crm", 1))
            await first.append(events("crm", 1))
            await asyncio.sleep(0.2)
            assert not waiting.done()

        assert await waiting == bodies([0, 1])

    async def test_who_waits_gets_an_event_when_it_comes(self, opened: Open) -> None:
        spool = opened()
        waiting = asyncio.create_task(sent(spool, "crm", 1))
        await asyncio.sleep(0.1)
        await opened().append(events("crm", 0))

        assert await waiting == bodies([0])

    async def test_a_stream_is_full_beyond_so_many_events(self, opened: Open) -> None:
        spool = opened()
        assert not await spool.is_beyond("crm", 0)
        await spool.append(events("crm", 0, 1, 2))
        assert not await spool.is_beyond("crm", 3)

        await spool.append(events("crm", 3))
        async with asyncio.timeout(60):  # RabbitMQ counts a little later
            while not await spool.is_beyond("crm", 3):
                await asyncio.sleep(0.05)

    async def test_processes_that_append_at_once_lose_nothing(self, opened: Open) -> None:
        spools = [opened() for _ in range(3)]
        await asyncio.gather(
            *(each.append(events("crm", *range(at, 60, 3))) for at, each in enumerate(spools))
        )

        assert sorted(await sent(spools[0], "crm", 60)) == sorted(bodies(range(60)))


class TestFileEventSpool(EventSpoolContract):
    """In a directory."""

    @pytest.fixture
    def opened(self, tmp_path: Path) -> Open:
        return lambda: FileEventSpool(tmp_path / "events.sqlite")

    async def test_a_damaged_file_is_put_aside_and_keeps_back_no_mail(
        self, opened: Open, tmp_path: Path
    ) -> None:
        (tmp_path / "events.sqlite").write_bytes(b"no database" * 1000)

        spool = opened()
        await spool.append(events("crm", 0))

        assert await sent(spool, "crm", 1) == bodies([0])
        assert (tmp_path / "events.sqlite.damaged").exists()

    async def test_the_file_is_the_owners_alone(self, opened: Open, tmp_path: Path) -> None:
        await opened().append(events("crm", 0))

        modes = {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}
        assert modes == {0o600}

    async def test_every_append_is_synced(self, opened: Open, tmp_path: Path) -> None:
        spool = opened()
        await spool.append(events("crm", 0))
        found = spool._opened  # type: ignore[attr-defined]

        assert isinstance(found, sqlite3.Connection)
        assert found.execute("PRAGMA synchronous").fetchone() == (2,)


class TestMemoryEventSpool(EventSpoolContract):
    """In memory."""

    @pytest.fixture
    def opened(self) -> Open:
        streams = MemoryStreams()
        return lambda: MemoryEventSpool(streams, ProcessSteps())


@pytest.mark.needs("rabbitmq")
class TestRabbitMQEventSpool(EventSpoolContract):
    """Over a real RabbitMQ."""

    @pytest.fixture
    async def opened(self) -> AsyncIterator[Open]:
        name, started = QueueName("test", servers.fresh()), list[RabbitMQ]()

        def start() -> EventSpool:
            started.append(RabbitMQ(servers.rabbitmq()))
            return RabbitMQEventSpool(started[-1], name)

        declaring = RabbitMQ(servers.rabbitmq())
        broker = declaring.broker(name)
        await broker.declare(first=True)
        yield start
        await broker.delete()
        for each in (declaring, *started):
            await each.close()
