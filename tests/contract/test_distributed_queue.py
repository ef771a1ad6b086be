"""The mail queue contract over real RabbitMQ, Cassandra and S3."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
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
from contract.queue_harness import RealTime
from postroad import open_queue
from postroad.bootstrap.cluster import connect
from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.queues.names import QueueName
from postroad.ports.mail_queue import MailQueue
from postroad.settings import from_environment
from support.outcomes import kept_in
from support.servers import cql

pytestmark = pytest.mark.needs("rabbitmq", "cassandra", "s3")


class ClusterHarness(RealTime):
    """Handles with connections of their own, as processes have."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._handles: list[MailQueue] = []
        self._names = {"outgoing"}

    async def open(self) -> MailQueue:
        return await self._open("outgoing")

    async def new_name(self) -> MailQueue:
        name = f"other-{len(self._names)}"
        self._names.add(name)
        return await self._open(name)

    async def _open(self, name: str) -> MailQueue:
        handle: MailQueue = await open_queue(f"distributed://{self._namespace}.{name}", create=True)
        self._handles.append(handle)
        return handle

    async def kept(self) -> Mapping[UUID, AttemptOutcomes]:
        keyspace = os.environ["POSTROAD_CASSANDRA_KEYSPACE"]
        select = f"SELECT queue, enqueue_id, outcomes, seconds FROM {keyspace}.deleted_mails"
        marks = await asyncio.to_thread(cql, select)  # the handle's heartbeats go on
        own = [mark._asdict() for mark in marks if mark.queue == f"{self._namespace}.outgoing"]
        kept = {mark["enqueue_id"]: kept_in(mark) for mark in own}
        return {entry: outcomes for entry, outcomes in kept.items() if outcomes is not None}

    async def close(self) -> None:
        for handle in self._handles:
            await handle.close()
        servers = connect(from_environment())
        for each in self._names:
            name = QueueName(self._namespace, each)
            await servers.broker(name).delete()
            await servers.blobs(name.bucket("postroad-")).drop()
        await servers.close()


@pytest.fixture(scope="module", autouse=True)
def keyspace() -> Iterator[str]:
    """A keyspace of this module's own."""
    name = f"contract_{secrets.token_hex(4)}"
    before = os.environ["POSTROAD_CASSANDRA_KEYSPACE"]
    os.environ["POSTROAD_CASSANDRA_KEYSPACE"] = name
    yield name
    os.environ["POSTROAD_CASSANDRA_KEYSPACE"] = before
    cql(f"DROP KEYSPACE IF EXISTS {name}")


@pytest.fixture
async def harness() -> AsyncIterator[KeepingHarness]:
    harness = ClusterHarness(f"contract-{secrets.token_hex(4)}")
    yield harness
    await harness.close()


class TestDistributedMailQueue(MailQueueContract): ...


class TestDistributedRetry(RetryContract): ...


class TestDistributedReject(RejectContract): ...


class TestDistributedManageableMailQueue(ManageableMailQueueContract): ...


class TestDistributedDelayedMailQueue(DelayedMailQueueContract): ...


class TestDistributedDelayedManageableMailQueue(DelayedManageableMailQueueContract): ...


class TestDistributedOperationEvents(OperationEventsContract): ...


class TestDistributedHold(HoldContract): ...


class TestDistributedOutcomes(OutcomesContract): ...


class TestDistributedKeyedEnqueue(KeyedEnqueueContract): ...
