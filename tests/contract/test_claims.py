"""The contract of claims, over memory and all three servers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import servers
from contract.claim_contract import FIRST, SECOND, ClaimContract, CountedClaimContract, claimed
from postroad.adapters.cassandra.session import Session
from postroad.adapters.cassandra.store import KeyspaceClaim
from postroad.adapters.clocks import MachineClock
from postroad.adapters.memory.broker import ClaimedObject, MemoryClaimRecord
from postroad.adapters.memory.servers import MemoryServers, MemoryWorld
from postroad.adapters.rabbitmq.broker import RabbitMQ
from postroad.adapters.rabbitmq.connection import Access
from postroad.adapters.rabbitmq.queue_users import QueueClaim
from postroad.adapters.s3.blobs import S3Blobs
from postroad.adapters.s3.store import Store
from postroad.bootstrap.cluster import s3_access
from postroad.controller.cluster.claims import BucketClaim
from postroad.domain.queues.names import BUCKET_CLAIM, QueueName
from postroad.ports.servers import ClaimRecord
from support.amqp import amqp_server
from support.keyspaces import OPTIONS, keyspace
from support.memory.fault_injection import FaultInjector

__all__ = ["keyspace"]


class TestMemoryClaim(CountedClaimContract):
    """Over memory."""

    @pytest.fixture
    def record(self) -> ClaimRecord:
        return MemoryClaimRecord(ClaimedObject(), FaultInjector(), "view")

    async def test_a_keyspace_that_does_not_exist_has_no_claim(self) -> None:
        memory = MemoryServers(MemoryWorld(MachineClock()))
        assert await memory.keyspace_claim().claim(FIRST) is None

        await memory.views().create(OPTIONS)

        assert await memory.keyspace_claim().claim(FIRST)


class TestUncountedMemoryClaim(ClaimContract):
    """Over memory, as a broker keeps a claim."""

    @pytest.fixture
    def record(self) -> ClaimRecord:
        memory = MemoryServers(MemoryWorld(MachineClock()))
        return memory.queue_claim(QueueName("mail", "outgoing"))


class TestBucketClaim(ClaimContract):
    """Over a bucket in memory."""

    @pytest.fixture
    async def record(self) -> ClaimRecord:
        self.blobs = MemoryServers(MemoryWorld(MachineClock())).blobs("bucket")
        await self.blobs.create()
        return BucketClaim(self.blobs)

    async def test_what_cannot_be_read_is_the_claim_of_another(self, record: ClaimRecord) -> None:
        """One that no annotation can name."""
        await self.blobs.put(BUCKET_CLAIM, b"[]")

        found = await claimed(record, FIRST)

        assert (found.is_of(FIRST), found.id) == (False, "")


class TestScriptedRabbitMQClaim(ClaimContract):
    """Over the driver and a scripted server that compares exchanges as RabbitMQ does."""

    TELLS = False

    @pytest.fixture
    async def vhost(self) -> AsyncIterator[RabbitMQ]:
        async with amqp_server() as running:
            vhost = RabbitMQ(Access("127.0.0.1", running.port, "/", "guest", "guest"))
            yield vhost
            await vhost.close()

    @pytest.fixture
    def record(self, vhost: RabbitMQ) -> ClaimRecord:
        return QueueClaim(vhost, QueueName("mail", "outgoing"))

    async def test_of_a_long_name_only_the_claim_is_known(self, vhost: RabbitMQ) -> None:
        record = QueueClaim(vhost, QueueName("n" * 63, "q" * 63))
        await claimed(record, FIRST)

        found = await claimed(record, SECOND)

        assert (found.is_of(SECOND), found.id) == (False, "")


@pytest.mark.needs("rabbitmq")
class TestRabbitMQClaim(ClaimContract):
    """Over a real RabbitMQ, by the text of its refusals alone."""

    TELLS = False

    @pytest.fixture
    async def record(self) -> AsyncIterator[ClaimRecord]:
        vhost = RabbitMQ(servers.rabbitmq())
        record = QueueClaim(vhost, QueueName("test", servers.fresh()))
        yield record
        await record.release(FIRST)
        await record.release(SECOND)
        await vhost.close()


async def forget_claims(session: Session) -> None:
    """Delete the claims on a keyspace as they are written, by transactions."""
    table, key = "{keyspace}.configuration_events", "queue = '@claims'"
    for row in await session.run(f"SELECT sequence FROM {table} WHERE {key}"):
        which = f"{key} AND sequence = {row['sequence']}"
        await session.run(f"DELETE FROM {table} WHERE {which} IF EXISTS")


@pytest.mark.needs("cassandra")
class TestKeyspaceClaim(CountedClaimContract):
    """Over a real Cassandra."""

    @pytest.fixture
    async def record(self, keyspace: str) -> AsyncIterator[ClaimRecord]:
        session = Session(servers.cassandra(keyspace))
        await forget_claims(session)
        yield KeyspaceClaim(session)
        await session.close()

    async def test_a_keyspace_that_does_not_exist_has_no_claim(self) -> None:
        session = Session(servers.cassandra(servers.fresh()))
        assert await KeyspaceClaim(session).claim(FIRST) is None
        await session.close()


@pytest.mark.needs("s3")
class TestS3BucketClaim(ClaimContract):
    """Over a real S3 store."""

    @pytest.fixture
    async def record(self) -> AsyncIterator[ClaimRecord]:
        store = Store(s3_access(servers.settings()))
        blobs = S3Blobs(store, f"claim-{servers.fresh().replace('_', '-')}")
        await blobs.create()
        yield BucketClaim(blobs)
        await blobs.drop()
        await store.close()
