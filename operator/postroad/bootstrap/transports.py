"""Builds what transmits and routes mail from settings: resolvers, policies of MTA-STS, and the
names of this process in SMTP."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from postroad.adapters.clocks import MachineClock
from postroad.adapters.disk.attempt_log import FileAttemptLog, LogLimits
from postroad.bootstrap.followed_file import path_of
from postroad.bootstrap.targets import DeliveryTarget, open_function, open_webhook
from postroad.delivery_settings.hops import Hop
from postroad.delivery_settings.routing import NameServers, StsSettings
from postroad.domain.delivery.webhooks import WebhookAddress
from postroad.handling import HandlerFunction
from postroad.ports.delivery import Connector, Resolver, Signer, StsPolicies
from postroad.settings import Settings
from postroad.smtp.client.connections import SmtpConnector

if TYPE_CHECKING:
    from postroad.bootstrap.delivery_file import DeliveryFile


def open_connector(
    settings: Settings, target: DeliveryTarget, delivery: DeliveryFile | None = None
) -> Connector:
    """Return what opens connections to next hops, or to a program; `delivery` signs mail and
    reverse-paths. Needs a running event loop. Raises: InvalidSettings."""
    if isinstance(target, WebhookAddress):
        return open_webhook(settings, target)
    if isinstance(target, HandlerFunction):
        return open_function(settings, target)
    return SmtpConnector(
        ehlo_name=ehlo_name_of(settings),
        ca_file=settings.ca_file,
        signer=open_signer(delivery),
        path_of=path_of(
            lambda: None if delivery is None else delivery.current.return_paths, MachineClock()
        ),
    )


def open_delivery(settings: Settings, relay: Hop | None) -> DeliveryFile | None:
    """Return the file of delivery, with the relay of the command line; None where there is none.
    Raises: InvalidSettings."""
    if settings.worker.delivery_file is None:
        return None
    from postroad.bootstrap.delivery_file import DeliveryFile  # nor cryptography for nothing

    return DeliveryFile(settings.worker.delivery_file, relay)


def open_signer(delivery: DeliveryFile | None) -> Signer | None:
    """Return what signs mail by a file of delivery; None where there is none."""
    if delivery is None:
        return None
    from postroad.bootstrap.delivery_file import FileSigner

    return FileSigner(lambda: delivery.current.signing, MachineClock())


def open_attempt_log(settings: Settings) -> FileAttemptLog | None:
    """Return the attempt log of this process; None: no folder is set. Raises: InvalidSettings."""
    section = settings.worker
    if section.attempt_log is None:
        return None
    limits = LogLimits(
        section.attempt_log_lifetime, section.attempt_log_bytes, section.attempt_log_addresses
    )
    return FileAttemptLog(section.attempt_log, limits, MachineClock().now)


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
