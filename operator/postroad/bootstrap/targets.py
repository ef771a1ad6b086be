"""Destinations of a worker's mail, by its settings: next hops, or a program; the limits that follow
from them."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from postroad.adapters.clocks import MachineClock
from postroad.adapters.programs.function import FunctionConnector
from postroad.contents import MemoryBudget
from postroad.delivery_settings.delivery import DeliveryFileSettings
from postroad.delivery_settings.hops import Hop
from postroad.delivery_settings.routing import RoutingSettings
from postroad.domain.delivery.webhooks import WebhookAddress
from postroad.domain.mail.envelope_documents import MAX_HANDED
from postroad.domain.smtp.next_hops import NextHop
from postroad.errors import CredentialsMissing, InvalidInput, InvalidSettings, TlsRefused
from postroad.handling import HandlerFunction
from postroad.logins import LoginFolder
from postroad.ports.delivery import Connector
from postroad.scheduling.ranking import SchedulerRules
from postroad.settings import Settings
from postroad.tls import ClientTls, client_context

SCHEME = "python:"
"""May stand before the name of a function."""

ROOM = MAX_HANDED + 14 * 2**20
"""Octets of contents in memory: a pod has 512 MiB."""


def webhook_url_of(settings: Settings) -> WebhookAddress:
    """Return the webhook of the settings, which must have one. Raises: InvalidSettings."""
    section = settings.worker_webhook
    assert section.url is not None
    if section.login_folder is None:
        raise InvalidSettings(
            "the webhook has no secret that signs requests",
            hint="write one into the file `secret` of a folder, such as from `openssl rand -hex"
            " 32`, and name the folder with --webhook-login-folder",
        )
    try:
        return WebhookAddress(section.url.get_secret_value())
    except InvalidInput as error:
        raise InvalidSettings(str(error)) from error


def open_webhook(settings: Settings, url: WebhookAddress) -> Connector:
    """Return what opens connections to a webhook. Raises: InvalidSettings."""
    from postroad.adapters.programs.webhook import (  # aiohttp's client is not loaded for nothing
        Webhook,
        WebhookConnector,
    )

    section = settings.worker_webhook
    assert section.login_folder is not None
    webhook = Webhook(
        url,
        section.login_folder / "secret",
        section.ca_file or settings.ca_file,
        section.timeout,
        section.largest_bytes,
    )
    webhook.secrets()
    return WebhookConnector(webhook, MachineClock(), MemoryBudget(ROOM))


def open_function(settings: Settings, function: HandlerFunction) -> Connector:
    return FunctionConnector(function, MemoryBudget(ROOM), settings.worker.concurrency)


def function_of(settings: Settings) -> HandlerFunction:
    """Import the function of the settings, which must have one. Raises: InvalidSettings."""
    section = settings.worker_function
    assert section.name is not None
    name = section.name.removeprefix(SCHEME)
    return HandlerFunction(name, imported(name), section.timeout, section.largest_bytes)


def imported(name: str) -> Callable[..., Any]:
    """Import a function, `package.module:function`. Raises: InvalidSettings."""
    module, _, path = name.partition(":")
    if not module or not path:
        raise InvalidSettings(f"{name!r} names no function", hint="write module:function")
    try:
        found: object = import_module(module)
    except Exception as error:  # whatever the module raises
        raise InvalidSettings(
            f"the module {module} cannot be imported: {type(error).__name__}: {error}",
            hint="install it beside postroad, or name its folder with PYTHONPATH",
        ) from error
    for each in path.split("."):
        found = getattr(found, each, None)
    if not callable(found):
        raise InvalidSettings(f"the module {module} has no function {path}")
    return found


DeliveryTarget = NextHop | WebhookAddress | HandlerFunction | RoutingSettings
"""Destination of a worker's mail: to one next hop or program, or by routes."""


def target_of(settings: Settings, delivery: DeliveryFileSettings | None = None) -> DeliveryTarget:
    """Return where mail goes. `delivery`: the file's, with `--relay`. Raises: InvalidSettings."""
    delivery = delivery or DeliveryFileSettings()
    relay, routing = delivery.relay, delivery.routing
    targets: dict[str, Callable[[], DeliveryTarget]] = {}
    if relay is not None:
        targets[f"to the relay {relay.host or relay.socket}"] = lambda: _relay(relay, delivery)
    if settings.worker_webhook.url is not None:
        targets["to the webhook"] = lambda: webhook_url_of(settings)
    if (function := settings.worker_function.name) is not None:
        targets[f"to the function {function}"] = lambda: function_of(settings)
    if routing is not None:
        targets[f"by the routing of {settings.worker.delivery_file}"] = lambda: routing
    if not targets:
        raise InvalidSettings(
            "the worker has no next hop",
            hint="give --relay host:port, or --delivery with a file in which `relay` or "
            "`routing: {}` stands, to deliver by the MX records of domains, or --webhook or "
            "--function",
        )
    if len(targets) > 1:
        raise InvalidSettings(
            f"mail goes either {' or '.join(targets)}",
            hint="leave one of them out; a rule of routing can name a relay in hops",
        )
    (target,) = targets.values()
    return target()


def _relay(relay: Hop, delivery: DeliveryFileSettings) -> DeliveryTarget:
    check_files(relay)
    # By DATA unless it is asked for: else a series of mails is in doubt where a connection is lost.
    return delivery.routes() or relay.next_hop(usually_chunks=False)


def check_files(hop: Hop) -> None:
    """Read the files of a smart host, to see mistakes at the start. Raises: InvalidSettings."""
    try:
        if hop.login is not None and hop.login.folder is not None:
            LoginFolder(hop.login.folder).read()
        if hop.tls.ca_file is not None:
            client_context(ClientTls(hop.tls.ca_file))
    except (CredentialsMissing, TlsRefused) as error:
        raise InvalidSettings(str(error), hint=error.hint) from error


MAX_RELAY_BACKOFF = 300.0
"""Seconds between two attempts at a relay or a program that is away: all mail waits for it, so that
it costs one connection and not one a site, and an administrator who has mended it sees mail within
minutes."""


MAX_RELAY_QUEUE, ENOUGH_AT_ONCE = 2, 100
"""Mails that a connection to a relay has at most: one that is transmitted, and one whose first
commands go out behind its end, which saves a round trip; by DATA no more of them can. And mails at
work at once with which distance costs no speed: connections of that number have one each, because
a slow mail blocks the one behind it."""


def _longest_queue(target: DeliveryTarget, connections: int) -> int:
    """Return the most mails of a connection to a relay or a program, which gets one at a time."""
    few = ENOUGH_AT_ONCE // MAX_RELAY_QUEUE
    return MAX_RELAY_QUEUE if isinstance(target, NextHop) and connections <= few else 1


def rules_of(settings: Settings, target: DeliveryTarget) -> SchedulerRules:
    """Return the limits of the worker's connections. All of them may lead to a relay or a
    program; no other next hop needs room beside it."""
    connections = settings.worker.concurrency
    if isinstance(target, RoutingSettings):
        return SchedulerRules(connections)
    return SchedulerRules(
        connections,
        per_destination=connections,
        backlog=1,
        longest_queue=_longest_queue(target, connections),
        max_backoff=MAX_RELAY_BACKOFF,
        least_for_new=1.0,
        least_for_failing=1.0,
        overdue_share=0.0,
    )


def window_of(settings: Settings, target: DeliveryTarget) -> int:
    """Return how many mails may be in flight: with a relay or a program, what its connections have;
    where mails are behind one another, one more for each, whose outcome is being recorded."""
    if isinstance(target, RoutingSettings):
        return settings.worker.window
    connections = settings.worker.concurrency
    queue = _longest_queue(target, connections)
    return connections * (queue if queue == 1 else queue + 1)
