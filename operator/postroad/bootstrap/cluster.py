"""The `Servers` port over the RabbitMQ, Cassandra and S3 that settings name."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta
from pathlib import Path

from postroad import errors
from postroad.adapters.cassandra.connection import Access as CassandraAccess
from postroad.adapters.cassandra.history import CassandraHistory
from postroad.adapters.cassandra.session import Session
from postroad.adapters.cassandra.store import CassandraViewStore, KeyspaceClaim
from postroad.adapters.rabbitmq.broker import RabbitMQ, RabbitMQBroker
from postroad.adapters.rabbitmq.connection import Access as RabbitMQAccess
from postroad.adapters.rabbitmq.event_queues import RabbitMQEventSpool
from postroad.adapters.rabbitmq.queue_users import QueueClaim, RabbitMQQueueUsers
from postroad.adapters.s3.blobs import S3Blobs
from postroad.adapters.s3.clients import Access as S3Access
from postroad.adapters.s3.store import Store
from postroad.domain.queues.names import QueueName
from postroad.domain.queues.quorum_queues import dropping, too_few_members
from postroad.logins import LOGIN, S3_LOGIN, LoginFolder
from postroad.ports.servers import SAFE_COPIES, Checked, Guard, Servers
from postroad.settings import Settings
from postroad.settings.queue_cluster import Cassandra as CassandraSettings
from postroad.settings.queue_cluster import RabbitMQ as RabbitMQSettings
from postroad.tls import ClientTls

CHECK_TIMEOUT = timedelta(seconds=8)
BRIEF_CHECK_TIMEOUT = timedelta(seconds=4)
"""Time that the check of one server may take before the server counts as away."""


class ClusterServers:
    """`Servers` over RabbitMQ, Cassandra and S3. Connections are shared and open on first use.
    `guard` is asked before each request leaves that may have an effect."""

    def __init__(self, settings: Settings, guard: Guard | None = None) -> None:
        self.local_datacenter = settings.cassandra.local_datacenter
        self._rabbitmq = RabbitMQ(rabbitmq_access(settings), guard)
        self._session = Session(cassandra_access(settings), guard=guard)
        self._views = CassandraViewStore(self._session)
        self._store = Store(s3_access(settings), guard)

    def broker(self, queue: QueueName, *, delivery_limit: int = 20) -> RabbitMQBroker:
        return self._rabbitmq.broker(queue, delivery_limit=delivery_limit)

    def history(self, queue: QueueName) -> CassandraHistory:
        return CassandraHistory(self._session, str(queue), self._views.home)

    def views(self) -> CassandraViewStore:
        return self._views

    def keyspace_claim(self) -> KeyspaceClaim:
        return KeyspaceClaim(self._session)

    def queue_claim(self, queue: QueueName) -> QueueClaim:
        return QueueClaim(self._rabbitmq, queue)

    def queue_users(self) -> RabbitMQQueueUsers:
        return RabbitMQQueueUsers(self._rabbitmq)

    def blobs(self, bucket: str) -> S3Blobs:
        return S3Blobs(self._store, bucket)

    def event_spool(self, queue: QueueName) -> RabbitMQEventSpool:
        return RabbitMQEventSpool(self._rabbitmq, queue)

    async def declare_streams(self, queue: QueueName, streams: Collection[str]) -> None:
        await self.event_spool(queue).declare(streams)

    async def check(self, *, brief: bool = False) -> dict[str, Checked]:
        seconds = (BRIEF_CHECK_TIMEOUT if brief else CHECK_TIMEOUT).total_seconds()
        rabbitmq = self._reach_rabbitmq if brief else self._check_rabbitmq
        cassandra = self._reach_cassandra if brief else self._check_cassandra
        request = {
            "rabbitmq": _checked(rabbitmq, errors.BrokerUnavailable, seconds),
            "cassandra": _checked(cassandra, errors.ViewUnavailable, seconds),
            "s3": _checked(self._check_s3, errors.BlobsUnavailable, seconds),
        }
        found = await asyncio.gather(*request.values())
        return dict(zip(request, found, strict=True))

    async def _reach_rabbitmq(self) -> Checked:
        return Checked(await self._rabbitmq.check())

    async def _reach_cassandra(self) -> Checked:
        return Checked(await self.views().check())

    async def _check_rabbitmq(self) -> Checked:
        version = await self._rabbitmq.check()
        management = self._rabbitmq.management
        if management is None:
            return Checked(version, unknown=("its nodes: the cluster has no managementURL",))
        try:
            found = await self._rabbitmq.survey(management)
            running, queues = found.running, list(found.queues.values())
            members = too_few_members(queues, running, SAFE_COPIES, self._rabbitmq.name)
            limits = (*dropping(queues), *too_few_nodes(len(running)), *members)
            return Checked(version, limits=limits)
        except errors.ServerError as error:  # a queue works without the management API
            return Checked(version, unknown=(f"its nodes: {error.explain()}",))

    async def _check_cassandra(self) -> Checked:
        views = self.views()
        version = await views.check()
        limits = too_few_nodes(await views.running_nodes())
        factor = await views.replication_factor(self.local_datacenter)
        return Checked(version, limits=(*too_few_copies(factor), *limits))

    async def _check_s3(self) -> Checked:
        return Checked(await self._store.check())

    async def close(self) -> None:
        await asyncio.gather(self._rabbitmq.close(), self._session.close(), self._store.close())


def connect(settings: Settings, guard: Guard | None = None) -> Servers:
    """Return the servers that settings name, without I/O; connections open on first use.
    `guard` as for `ClusterServers`. Raises: InvalidSettings."""
    return ClusterServers(settings, guard)


def bucket_of(settings: Settings, queue: QueueName) -> str:
    """Return the bucket of a queue's bytes: the one that queues share, or its own."""
    return settings.s3.bucket or queue.bucket(settings.s3.bucket_prefix)


def too_few_nodes(count: int) -> tuple[str, ...]:
    """Return what a server lacks in nodes, as text; nothing when it has enough."""
    if count >= SAFE_COPIES:
        return ()
    return (f"{count} node{'' if count == 1 else 's'}, fewer than {SAFE_COPIES}",)


def too_few_copies(factor: int | None) -> tuple[str, ...]:
    """Return what a keyspace lacks in copies, as text; `factor` None: no keyspace yet."""
    if factor is None or factor >= SAFE_COPIES:
        return ()
    return (f"replication factor {factor} is below {SAFE_COPIES}",)


async def _checked(
    ask: Callable[[], Awaitable[Checked]], silent: type[errors.ServerError], seconds: float
) -> Checked:
    try:
        async with asyncio.timeout(seconds):
            return await ask()
    except TimeoutError:
        return Checked(error=silent("the server did not answer in time"))
    except errors.ServerError as error:
        return Checked(error=error)
    except errors.PostroadError as error:
        return Checked(error=errors.ServerError(str(error)))


def rabbitmq_access(settings: Settings) -> RabbitMQAccess:
    rabbitmq = settings.rabbitmq
    return RabbitMQAccess.from_uri(
        rabbitmq.uri.get_secret_value(),
        username=rabbitmq.username,
        password=rabbitmq.password.get_secret_value() if rabbitmq.password else None,
        login_folder=_folder(rabbitmq.login_folder),
        tls=_client_tls(settings, rabbitmq),
        management_url=rabbitmq.management_url,
    )


def s3_access(settings: Settings) -> S3Access:
    s3 = settings.s3
    return S3Access(
        endpoint=s3.endpoint,
        region=s3.region,
        access_key=s3.access_key.get_secret_value() if s3.access_key else None,
        secret_key=s3.secret_key.get_secret_value() if s3.secret_key else None,
        ca_file=s3.ca_file or settings.ca_file,
        login_folder=_folder(s3.login_folder, S3_LOGIN),
    )


def cassandra_access(settings: Settings) -> CassandraAccess:
    cassandra = settings.cassandra
    return CassandraAccess(
        contact_points=cassandra.contact_points,
        port=cassandra.port,
        local_datacenter=cassandra.local_datacenter,
        keyspace=cassandra.keyspace,
        username=cassandra.username,
        password=cassandra.password.get_secret_value() if cassandra.password else None,
        encryption=cassandra.tls,
        tls=_client_tls(settings, cassandra),
        tls_name=cassandra.tls_name,
        login_folder=_folder(cassandra.login_folder),
    )


def _folder(path: Path | None, names: tuple[str, str] = LOGIN) -> LoginFolder | None:
    return None if path is None else LoginFolder(path, names)


def _client_tls(settings: Settings, server: RabbitMQSettings | CassandraSettings) -> ClientTls:
    return ClientTls(
        server.ca_file or settings.ca_file, server.client_certificate, server.client_key
    )
