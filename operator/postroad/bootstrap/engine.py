"""Wires the distributed engine to servers, real ones or those in memory."""

from __future__ import annotations

from postroad.adapters.machine.clocks import MachineClock, SystemRandomness
from postroad.bootstrap.open_request import OpenRequest
from postroad.configuration import configured
from postroad.distributed.engine.engine import Parts
from postroad.distributed.mail_queue import DistributedQueue
from postroad.domain.queues.names import QueueName
from postroad.errors import QueueNotFound
from postroad.ports.mail_queue import MailQueue
from postroad.ports.servers import Servers


async def open_over(
    servers: Servers, name: QueueName, bucket: str, request: OpenRequest
) -> MailQueue:
    """Open a queue of the distributed engine, which then owns the servers. The configuration is
    recorded before anything is created from it (ADR 0005)."""
    clock, randomness, views = MachineClock(), SystemRandomness(), servers.views()
    if await views.row_lifetime() is None:
        raise QueueNotFound(f"the queue {name} was never created: there are no tables")
    view = views.view(str(name))
    limit = request.settings.broker.delivery_limit
    configuration = await configured(
        servers.history(name),
        view,
        clock,
        randomness,
        create=request.create,
        wanted=request.configuration,
    )
    try:
        parts = Parts(
            name=name,
            broker=servers.broker(name, delivery_limit=limit),
            view=view,
            blobs=servers.blobs(bucket),
            configuration=configuration,
            clock=clock,
            randomness=randomness,
            row_lifetime=views.row_lifetime,
            delivery_limit=limit,
            dead_letter_lifetime=request.settings.retry.dead_letter_lifetime,
            owned=(configuration, servers),
        )
        return await DistributedQueue.open(parts, create_missing=request.create)
    except BaseException:
        await configuration.close()
        raise
