"""The only module that knows every adapter: it turns a queue's URL and settings into a queue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qs, urlsplit

from postroad.adapters.machine.clocks import MachineChance, MachineClock
from postroad.adapters.memory.servers import MemoryServers, World
from postroad.bootstrap.cluster import ClusterServers
from postroad.bootstrap.cluster import connect as connect
from postroad.bootstrap.directory import open_embedded
from postroad.bootstrap.tables import create_tables
from postroad.domain.configuration_rules import ViewConfiguration
from postroad.domain.names import QueueName
from postroad.errors import InvalidInput, InvalidQueueURL, QueueNotFound
from postroad.mailqueue.configure import configured
from postroad.mailqueue.engine import Parts
from postroad.mailqueue.queue import DistributedQueue
from postroad.ports.history import History
from postroad.ports.queue import MailQueue
from postroad.ports.servers import Servers
from postroad.ports.view import View
from postroad.settings import Settings, from_environment


@dataclass(frozen=True, slots=True)
class Asked:
    """What a caller of `open_queue` asked for."""

    url: SplitResult
    settings: Settings
    create: bool
    configuration: ViewConfiguration | None


Opener = Callable[[Asked], Awaitable[MailQueue]]


class _Opening:
    """What `open_queue` returns: awaitable, and an async context manager."""

    def __init__(self, opening: Callable[[], Awaitable[MailQueue]]) -> None:
        self._opening = opening
        self._queue: MailQueue | None = None

    def __await__(self):  # type: ignore[no-untyped-def]
        return self._opening().__await__()

    async def __aenter__(self) -> MailQueue:
        self._queue = await self._opening()
        return self._queue

    async def __aexit__(self, *exc: object) -> None:
        if self._queue is not None:
            await self._queue.close()


def open_queue(
    url: str,
    *,
    create: bool = False,
    configuration: ViewConfiguration | None = None,
    settings: Settings | None = None,
) -> _Opening:
    """Open a queue by URL: `async with open_queue(url) as queue`, or `await open_queue(url)`.

    `embedded:///DIR`, `memory://NAME`, `distributed://NAMESPACE.NAME`; the servers of the last come
    from `settings` (default: the environment). `create=True` creates what is missing, and holds a
    wanted `configuration` of the view against the queue's history (None: whatever holds there).

    Raises: InvalidQueueURL, InvalidSettings, QueueNotFound, ConfigurationRefused, HistoryMissing,
    CredentialsRefused, ServerError, StoreDamaged.
    """
    if configuration is not None and not create:
        raise InvalidInput("a configuration is only wanted together with create=True")

    async def opening() -> MailQueue:
        parts = urlsplit(url)
        opener = OPENERS.get(parts.scheme)
        if opener is None:
            raise InvalidQueueURL(
                f"{url!r} has no known scheme: write one of "
                + ", ".join(f"{scheme}://" for scheme in sorted(OPENERS))
            )
        check_parts(parts)
        asked = Asked(parts, settings or from_environment(), create, configuration)
        return await opener(asked)

    return _Opening(opening)


_MEMORY = World(MachineClock())
"""What the `memory://` queues of this process hold; gone with it."""


async def _open_memory(asked: Asked) -> MailQueue:
    name = QueueName("memory", asked.url.netloc)
    return await _open_over(MemoryServers(_MEMORY), name, name.bucket(""), asked)


async def _open_distributed(asked: Asked) -> MailQueue:
    name, s3 = QueueName.parse(asked.url.netloc), asked.settings.s3
    servers = ClusterServers(asked.settings)
    try:
        if asked.create:
            await create_tables(servers)
        return await _open_over(servers, name, s3.bucket or name.bucket(s3.bucket_prefix), asked)
    except BaseException:
        await servers.close()
        raise


async def _open_over(servers: Servers, name: QueueName, bucket: str, asked: Asked) -> MailQueue:
    """Open a queue of the distributed engine, which then owns the servers. The configuration is
    settled before anything is made that follows from it (ADR 0005)."""
    clock, views = MachineClock(), servers.views()
    if await views.row_lifetime() is None:
        raise QueueNotFound(f"the queue {name} was never created: there are no tables")
    view = views.view(str(name))
    limit = asked.settings.broker.delivery_limit
    configuration = await configured(
        servers.history(name), view, clock, create=asked.create, wanted=asked.configuration
    )
    try:
        parts = Parts(
            name=name,
            broker=servers.broker(name, delivery_limit=limit),
            view=view,
            blobs=servers.blobs(bucket),
            configuration=configuration,
            clock=clock,
            chance=MachineChance(),
            row_lifetime=views.row_lifetime,
            delivery_limit=limit,
            owned=(configuration, servers),
        )
        return await DistributedQueue.open(parts, create_missing=asked.create)
    except BaseException:
        await configuration.close()
        raise


async def _open_embedded(asked: Asked) -> MailQueue:
    lanes = asked.settings.retry.lanes
    return await open_embedded(asked.url, create=asked.create, steps=lanes)


PARAMETERS = {"embedded": {"mail"}}
"""The parameters that a URL may have, by scheme."""


def check_parts(url: SplitResult) -> None:
    """Refuse what would be ignored: a misspelt parameter is not what was asked for.
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


OPENERS: dict[str, Opener] = {
    "distributed": _open_distributed,
    "embedded": _open_embedded,
    "memory": _open_memory,
}


@dataclass(frozen=True, slots=True)
class ConfigurationOf:
    """The configuration history of a queue, and the view it speaks of."""

    name: QueueName
    history: History
    view: View


@asynccontextmanager
async def open_history(
    url: str, settings: Settings | None = None
) -> AsyncIterator[ConfigurationOf]:
    """Open the configuration history of a queue, created or not: a URL, or `NAMESPACE.NAME`.

    Raises: InvalidQueueURL, InvalidQueueName, InvalidSettings.
    """
    parts = urlsplit(url if "://" in url else f"distributed://{url}")
    check_parts(parts)
    servers: Servers
    if parts.scheme == "memory":
        servers, name = MemoryServers(_MEMORY), QueueName("memory", parts.netloc)
    elif parts.scheme == "distributed":
        servers, name = connect(settings or from_environment()), QueueName.parse(parts.netloc)
    else:
        raise InvalidQueueURL(f"{url!r} has no view, and so no configuration history")
    try:
        yield ConfigurationOf(name, servers.history(name), servers.views().view(str(name)))
    finally:
        await servers.close()
