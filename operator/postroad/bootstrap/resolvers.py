"""Builds resolvers from settings."""

from __future__ import annotations

from postroad.adapters.dns.caching import CachingResolver
from postroad.adapters.dns.resolver import DnsResolver, name_servers
from postroad.adapters.machine.clocks import MachineClock
from postroad.delivery_settings.routing import NameServers
from postroad.ports.resolver import Resolver


def open_resolver(settings: NameServers) -> Resolver:
    """Return a resolver with a cache. Needs a running event loop; asks on first use.

    Raises: InvalidSettings where there is no name server.
    """
    servers = name_servers(settings.addresses())
    return CachingResolver(DnsResolver(servers, settings.timeout), MachineClock())
