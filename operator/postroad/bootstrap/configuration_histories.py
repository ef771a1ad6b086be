"""The configuration history of a queue, without the queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from postroad.bootstrap.open_request import check_parts
from postroad.domain.queues.names import QueueName
from postroad.errors import InvalidQueueURL
from postroad.ports.history import History
from postroad.ports.servers import Servers
from postroad.ports.view import View
from postroad.settings import Settings, from_environment


@dataclass(frozen=True, slots=True)
class ConfigurationOf:
    """The configuration history of a queue, and the view whose rows it describes."""

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
        from postroad.bootstrap import memory

        servers, name = memory.connect(), QueueName("memory", parts.netloc)
    elif parts.scheme == "distributed":
        from postroad.bootstrap import cluster

        servers = cluster.connect(settings or from_environment())
        name = QueueName.parse(parts.netloc)
    else:
        raise InvalidQueueURL(f"{url!r} has no view, and so no configuration history")
    try:
        yield ConfigurationOf(name, servers.history(name), servers.views().view(str(name)))
    finally:
        await servers.close()
