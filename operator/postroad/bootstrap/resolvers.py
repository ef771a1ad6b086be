"""Builds what routing asks from settings: resolvers, policies of MTA-STS."""

from __future__ import annotations

from pathlib import Path

from postroad.adapters.dns.caching import CachingResolver
from postroad.adapters.dns.resolver import DnsResolver, name_servers
from postroad.adapters.machine.clocks import MachineClock
from postroad.delivery_settings.routing import NameServers, RoutingSettings
from postroad.ports.resolver import Resolver
from postroad.ports.sts import StsPolicies
from postroad.routing.securing import PublishedSecurity


def open_resolver(settings: NameServers) -> Resolver:
    """Return a resolver with a cache. Needs a running event loop; asks on first use.

    Raises: InvalidSettings where there is no name server.
    """
    servers = name_servers(settings.addresses())
    return CachingResolver(DnsResolver(servers, settings.timeout), MachineClock())


def open_sts(
    routing: RoutingSettings, resolver: Resolver, ca_file: Path | None
) -> StsPolicies | None:
    """Return what finds policies of MTA-STS; None where no rule honours them. `ca_file` verifies
    the web servers (None: the system's authorities). Needs a running event loop; connects on first
    use.

    Raises: InvalidSettings.
    """
    if not any(PublishedSecurity.STS in each.honours for each in routing.ways_by_mx()):
        return None
    from postroad.adapters.mta_sts.fetching import (
        PolicyFetcher,
    )  # aiohttp is not loaded for nothing
    from postroad.adapters.mta_sts.keeping import PolicyFolder
    from postroad.adapters.mta_sts.policies import FetchedPolicies

    plan = routing.plan()
    fetcher = PolicyFetcher(resolver, plan.may_reach, ca_file)
    folder = None if routing.sts.folder is None else PolicyFolder(routing.sts.folder)
    return FetchedPolicies(resolver, fetcher.fetch, MachineClock(), folder)
