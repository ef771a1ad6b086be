"""`memory://NAME`: the distributed engine over servers in the memory of this process."""

from __future__ import annotations

from postroad.adapters.machine.clocks import MachineClock
from postroad.adapters.memory.servers import MemoryServers, MemoryWorld
from postroad.bootstrap.engine import open_over
from postroad.bootstrap.open_request import OpenRequest
from postroad.domain.queues.names import QueueName
from postroad.ports.mail_queue import MailQueue

_MEMORY = MemoryWorld(MachineClock())
"""The servers of this process' queues; their data end with the process."""


def connect() -> MemoryServers:
    """Return the servers in the memory of this process."""
    return MemoryServers(_MEMORY)


async def open_requested(request: OpenRequest) -> MailQueue:
    """Open a queue. See `open_queue`."""
    name = QueueName("memory", request.url.netloc)
    return await open_over(connect(), name, name.bucket(""), request)
