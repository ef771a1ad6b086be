"""Destinations of a worker's mail, by its settings, and the limits that follow from it."""

from __future__ import annotations

from collections.abc import Callable

from postroad.adapters.programs.function import HandlerFunction
from postroad.bootstrap.delivery.programs import function_of, webhook_url_of
from postroad.delivery_settings.delivery import DeliverySettings
from postroad.delivery_settings.routing import RoutingSettings
from postroad.domain.delivery.webhooks import WebhookAddress
from postroad.domain.smtp.next_hops import HopLogin, NextHop, SourceAddresses
from postroad.errors import CredentialsMissing, InvalidInput, InvalidSettings
from postroad.logins import LoginFolder
from postroad.routing.answers import is_address
from postroad.scheduling.ranking import SchedulerRules
from postroad.settings import Settings
from postroad.settings.delivery import Worker

Way = NextHop | WebhookAddress | HandlerFunction | RoutingSettings
"""Destination of a worker's mail: to one next hop or program, or by routes."""


def way_of(settings: Settings, delivery: DeliverySettings | None = None) -> Way:
    """Return where mail goes. `delivery`: what the file of delivery has. Raises:
    InvalidSettings."""
    section = settings.worker
    routing = None if delivery is None else delivery.routing
    ways: dict[str, Callable[[], Way]] = {}
    if section.relay_host is not None:
        ways[f"to the relay {section.relay_host}"] = lambda: _relay(section)
    if section.relay_socket is not None:
        ways[f"to the socket {section.relay_socket}"] = lambda: _socket(section)
    if settings.worker_webhook.url is not None:
        ways["to the webhook"] = lambda: webhook_url_of(settings)
    if (function := settings.worker_function.name) is not None:
        ways[f"to the function {function}"] = lambda: function_of(settings)
    if routing is not None:
        ways[f"by the routing of {section.delivery_file}"] = lambda: routing
    if not ways:
        raise InvalidSettings(
            "the worker has no next hop",
            hint="give --relay host:port, or --delivery with a file in which `routing: {}` "
            "stands, to deliver by the MX records of domains, or --webhook or --function",
        )
    if len(ways) > 1:
        raise InvalidSettings(
            f"mail goes either {' or '.join(ways)}",
            hint="leave one of them out; a rule of routing can name a relay in hops",
        )
    (way,) = ways.values()
    return way()


def _relay(section: Worker) -> NextHop:
    assert section.relay_host is not None
    return NextHop(
        section.relay_host,
        section.relay_port or section.relay_tls.default_port,
        section.relay_tls,
        section.relay_protocol,
        _login(section),
        source=_source(section),
        chunking=False,  # else a series of mails is in doubt where a connection is lost, or killed
    )


def _socket(section: Worker) -> NextHop:
    """Return the LMTP server behind a Unix socket. Raises: InvalidSettings."""
    assert section.relay_socket is not None
    if section.relay_tls.never_in_clear or section.relay_login_folder is not None:
        raise InvalidSettings(
            f"a server at a Unix socket ({section.relay_socket}) has neither TLS nor a login",
            hint="leave them out; the rights of the socket's folder decide who reaches it",
        )
    try:
        return NextHop.at_socket(section.relay_socket)
    except InvalidInput as error:
        raise InvalidSettings(str(error)) from error


def _source(section: Worker) -> SourceAddresses | None:
    """Return from where the next hop is connected to. Raises: InvalidSettings."""
    addresses = section.source_addresses
    if not addresses:
        return None
    families = {":" in each for each in addresses}
    if not all(map(is_address, addresses)) or len(families) < len(addresses):
        raise InvalidSettings(
            f"{', '.join(addresses)} are no source addresses",
            hint="name one address of IPv4 and one of IPv6 at most with "
            "POSTROAD_WORKER_SOURCE_ADDRESSES",
        )
    return SourceAddresses(addresses)


def _login(section: Worker) -> HopLogin | None:
    """Return the login at the next hop. Raises: InvalidSettings."""
    folder = section.relay_login_folder
    if folder is None:
        return None
    login = HopLogin(folder, section.relay_login_mechanism, section.relay_login_unverified)
    if not login.fits(section.relay_tls):
        raise InvalidSettings(
            f"a login is not sent to a next hop with TLS {section.relay_tls}, whose certificate is "
            "not verified",
            hint="use --tls required or --tls implicit; --relay-login-unverified permits it",
        )
    try:
        LoginFolder(folder).read()
    except CredentialsMissing as error:
        raise InvalidSettings(str(error), hint=error.hint) from error
    return login


MAX_RELAY_REST = 300.0
"""Seconds between two attempts at a relay or a program that is away: all mail waits for it, so that
it costs one connection and not one a site, and an administrator who has mended it sees mail within
minutes."""


MAX_RELAY_QUEUE, ENOUGH_AT_ONCE = 2, 100
"""Mails that a connection to a relay has at most: one that is transmitted, and one whose first
commands go out behind its end, which saves a round trip; by DATA no more of them can. And mails at
work at once with which distance costs no speed: connections of that number have one each, because
a slow mail holds up the one behind it."""


def _longest_queue(way: Way, connections: int) -> int:
    """Return how many mails a connection to a relay or a program has at most; a program gets one
    after the other."""
    few = ENOUGH_AT_ONCE // MAX_RELAY_QUEUE
    return MAX_RELAY_QUEUE if isinstance(way, NextHop) and connections <= few else 1


def rules_of(settings: Settings, way: Way) -> SchedulerRules:
    """Return the limits of the worker's connections. All of them may lead to a relay or a
    program; no other next hop needs room beside it."""
    connections = settings.worker.concurrency
    if isinstance(way, RoutingSettings):
        return SchedulerRules(connections)
    return SchedulerRules(
        connections,
        per_destination=connections,
        backlog=1,
        longest_queue=_longest_queue(way, connections),
        longest_rest=MAX_RELAY_REST,
        least_for_new=1.0,
        least_for_troubled=1.0,
        overdue_share=0.0,
    )


def window_of(settings: Settings, way: Way) -> int:
    """Return how many mails may be in hand: with a relay or a program, what its connections have;
    where mails are behind one another, one more for each, whose outcome is being recorded."""
    if isinstance(way, RoutingSettings):
        return settings.worker.window
    connections = settings.worker.concurrency
    queue = _longest_queue(way, connections)
    return connections * (queue if queue == 1 else queue + 1)
