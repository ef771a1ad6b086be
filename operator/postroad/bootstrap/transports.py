"""Builds transports from settings, and the names of this process in SMTP."""

from __future__ import annotations

import socket

from postroad.adapters.network.pools import PoolLimits
from postroad.adapters.network.relay import SmtpRelay
from postroad.domain.next_hops import NextHop
from postroad.ports.transport import Transport
from postroad.settings import Settings


def open_transport(settings: Settings, next_hop: NextHop) -> Transport:
    """Return the transport to a next hop. Needs a running event loop; connects on first use.

    Raises: InvalidSettings.
    """
    return SmtpRelay(
        next_hop,
        ehlo_name=ehlo_name_of(settings),
        ca_file=settings.worker.relay_ca_file or settings.ca_file,
        limits=PoolLimits(sessions=settings.worker.concurrency),
    )


def hostname_of(settings: Settings) -> str:
    """Return the name of this process in greetings and trace fields."""
    return settings.hostname or socket.getfqdn()


def ehlo_name_of(settings: Settings) -> str | None:
    """Return the name for EHLO to a next hop. None: the machine's name has no dot (as a pod's), and
    servers refuse such names. Source: RFC 5321 4.1.1.1."""
    name = hostname_of(settings)
    if settings.hostname or ("." in name and not name.lower().endswith(".localdomain")):
        return name
    return None
