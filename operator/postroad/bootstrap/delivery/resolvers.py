"""Builds what routing asks from settings: resolvers, policies of MTA-STS."""

from collections.abc import Callable
from pathlib import Path

from postroad.adapters.machine.clocks import MachineClock
from postroad.delivery_settings.routing import NameServers, StsSettings
from postroad.ports.delivery import Resolver, StsPolicies


def open_resolver(settings: NameServers) -> Resolver:
    """Return a resolver with a cache. Needs a running event loop; asks on first use. Raises:
    InvalidSettings where there is no name server."""
    # Here, because a process without routes has no use for DNS.
    from postroad.adapters.dns import CachingResolver, DnsResolver, name_servers

    servers = name_servers(settings.addresses())
    return CachingResolver(DnsResolver(servers, settings.timeout), MachineClock())


def open_sts(
    sts: StsSettings, resolver: Resolver, allow: Callable[[str], bool], ca_file: Path | None
) -> StsPolicies:
    """Return what finds policies of MTA-STS. `allow`: whether their web servers may have an
    address; `ca_file` verifies these (None: the system's authorities). Needs a running event loop;
    connects on first use. Raises: InvalidSettings."""
    # Here, because routes without policies have no use for aiohttp.
    from postroad.adapters.mta_sts import FetchedPolicies, PolicyFetcher, PolicyFolder

    fetcher = PolicyFetcher(resolver, allow, ca_file)
    folder = None if sts.folder is None else PolicyFolder(sts.folder)
    return FetchedPolicies(resolver, fetcher.fetch, MachineClock(), folder)
