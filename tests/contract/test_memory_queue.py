"""The mail queue contract over the distributed engine with all servers in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from uuid import UUID

import pytest

from contract.keyed_enqueue_contract import KeyedEnqueueContract
from contract.mail_queue_contract import (
    DelayedMailQueueContract,
    MailQueueContract,
    RejectContract,
    RetryContract,
)
from contract.manageable_mail_queue_contract import (
    DelayedManageableMailQueueContract,
    HoldContract,
    ManageableMailQueueContract,
)
from contract.operation_events_contract import OperationEventsContract
from contract.outcomes_contract import KeepingHarness, OutcomesContract
from contract.queue_harness import VirtualTime, names, plain_mail
from postroad import open_queue
from postroad.adapters.memory.servers import FixedConfiguration, MemoryServers, MemoryWorld
from postroad.distributed.engine.engine import Parts
from postroad.distributed.mail_queue import DistributedQueue
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.queues.names import QueueName
from postroad.errors import QueueNotFound
from postroad.ports.mail_queue import MailQueue
from support.memory.clock import ManualClock, SeededRandomness

CONFIGURATION = ViewConfiguration(slice_window=timedelta(seconds=10), bucket_count=3)


class MemoryHarness(VirtualTime):
    """Handles are processes of their own over one world."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self._world = MemoryWorld(self.clock)
        self._handles: list[DistributedQueue] = []
        self._names = 0

    async def open(self) -> MailQueue:
        return await self._open("outgoing")

    async def new_name(self) -> MailQueue:
        self._names += 1
        return await self._open(f"other-{self._names}")

    async def _open(self, name: str) -> MailQueue:
        servers = MemoryServers(self._world)
        queue = QueueName("mail", name)
        parts = Parts(
            name=queue,
            broker=servers.broker(queue),
            view=servers.views().view(str(queue)),
            blobs=servers.blobs("bucket"),
            configuration=FixedConfiguration(CONFIGURATION),
            clock=self.clock,
            randomness=SeededRandomness(len(self._handles)),
            event_spool=servers.event_spool(queue),
        )
        handle = await DistributedQueue.open(parts, create_missing=True)
        self._handles.append(handle)
        return handle

    async def kept(self) -> Mapping[UUID, AttemptOutcomes]:
        kept = self._world.tables("mail.outgoing").outcomes
        return {key.enqueue_id: outcomes for key, outcomes in kept.items()}

    async def close(self) -> None:
        for handle in self._handles:
            await handle.close()


@pytest.fixture
async def harness() -> AsyncIterator[KeepingHarness]:
    harness = MemoryHarness()
    yield harness
    await harness.close()


class TestMailQueue(MailQueueContract):
    """Over memory."""


class TestRetry(RetryContract):
    """Over memory."""


class TestReject(RejectContract):
    """Over memory."""


class TestDelayed(DelayedMailQueueContract):
    """Over memory."""


class TestManageable(ManageableMailQueueContract):
    """Over memory."""


class TestHold(HoldContract):
    """Over memory."""


class TestOutcomes(OutcomesContract):
    """Over memory."""


class TestKeyedEnqueue(KeyedEnqueueContract):
    """Over memory."""


class TestOperationEvents(OperationEventsContract):
    """Over memory."""


class TestDelayedManageable(DelayedManageableMailQueueContract):
    """Over memory."""


async def test_url_opens_one_queue_for_the_whole_process() -> None:
    async with (
        open_queue("memory://contract", create=True) as first,
        open_queue("memory://contract") as second,
    ):
        await first.enqueue(plain_mail("seen"))

        assert await names(second.browse()) == ["seen"]
        async with asyncio.timeout(60):
            async for item in second.dequeue():
                await item.done()
                break
        assert (await first.size()).size == 0


async def test_url_of_a_queue_that_was_never_created_is_not_found() -> None:
    with pytest.raises(QueueNotFound):
        await open_queue("memory://never-created")
