"""From settings to transports."""

from __future__ import annotations

import socket

from postroad.adapters.network.pools import PoolLimits
from postroad.adapters.network.relay import SmtpRelay
from postroad.domain.nexthops import NextHop
from postroad.ports.transport import Transport
from postroad.settings import Settings


def open_transport(settings: Settings, next_hop: NextHop) -> Transport:
    """Return the transport to a next hop. Needs a running event loop; connects on first use.

    Raises: InvalidSettings.
    """
    return SmtpRelay(
        next_hop,
        ehlo_name=hostname_of(settings),
        ca_file=settings.ca_file,
        limits=PoolLimits(sessions=settings.worker.concurrency),
    )


def hostname_of(settings: Settings) -> str:
    """Return what this process calls itself in SMTP."""
    return settings.hostname or socket.getfqdn()
