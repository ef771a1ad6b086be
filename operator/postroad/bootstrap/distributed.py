"""`distributed://NAMESPACE.NAME`: the distributed engine over RabbitMQ, Cassandra and S3."""

from __future__ import annotations

from postroad.bootstrap.cluster import ClusterServers
from postroad.bootstrap.engine import open_over
from postroad.bootstrap.open_request import OpenRequest
from postroad.bootstrap.tables import create_tables
from postroad.domain.queues.names import QueueName
from postroad.ports.mail_queue import MailQueue


async def open_requested(request: OpenRequest) -> MailQueue:
    """Open a queue. See `open_queue`."""
    name, s3 = QueueName.parse(request.url.netloc), request.settings.s3
    servers = ClusterServers(request.settings)
    try:
        if request.create:
            await create_tables(servers)
        return await open_over(servers, name, s3.bucket or name.bucket(s3.bucket_prefix), request)
    except BaseException:
        await servers.close()
        raise
