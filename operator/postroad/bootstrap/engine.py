"""Wires the distributed engine to servers, real ones or those in memory.

The request of a caller of `open_queue`, and the check of its URL.

`memory://NAME`: the distributed engine over servers in the memory of this process."""

from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qs

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.adapters.memory.servers import MemoryServers, MemoryWorld
from postroad.configuration import configured
from postroad.distributed.engine.engine import Parts
from postroad.distributed.mail_queue import DistributedQueue
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.names import QueueName
from postroad.errors import InvalidQueueURL, QueueNotFound
from postroad.ports.mail_queue import MailQueue
from postroad.ports.servers import Servers
from postroad.settings import Settings


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A queue's URL, and how to open it."""

    url: SplitResult
    settings: Settings
    create: bool
    configuration: ViewConfiguration | None
    lock: int | None = None
    """The descriptor of the lock on a store, inherited from its owner."""


PARAMETERS = {"embedded": {"mail"}}
"""The parameters that a URL may have, by scheme."""


def check_parts(url: SplitResult) -> None:
    """Refuse parts of a URL that would be ignored, such as a misspelt parameter.
    Raises: InvalidQueueURL."""
    if url.fragment or (url.path.strip("/") and url.scheme != "embedded"):
        raise InvalidQueueURL(
            f"{url.geturl()!r} has more than a queue's URL has: write %23 for # and %3F for ?"
        )
    known = PARAMETERS.get(url.scheme, set())
    unknown = sorted(parse_qs(url.query, keep_blank_values=True).keys() - known)
    if unknown:
        names = ", ".join(sorted(known)) or "none"
        raise InvalidQueueURL(f"unknown parameter of the URL: {unknown[0]!r} (known: {names})")


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
            event_spool=servers.event_spool(name),
            owned=(configuration, servers),
        )
        return await DistributedQueue.open(parts, create_missing=request.create)
    except BaseException:
        await configuration.close()
        raise


_MEMORY = MemoryWorld(MachineClock())
"""The servers of this process' queues; their data end with the process."""


def connect() -> MemoryServers:
    return MemoryServers(_MEMORY)


async def open_requested(request: OpenRequest) -> MailQueue:
    name = QueueName("memory", request.url.netloc)
    return await open_over(connect(), name, name.bucket(""), request)
