"""`postroad worker`: delivers the mail of a queue to a next hop, or by routes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click
from pydantic import SecretStr

from postroad.adapters.machine.clocks import MachineClock, SystemRandomness
from postroad.adapters.programs.function import HandlerFunction
from postroad.bootstrap import board_of
from postroad.bootstrap.transports import (
    ehlo_name_of,
    open_attempt_log,
    open_connector,
    open_delivery,
    open_signer,
)
from postroad.bootstrap.ways import Way, rules_of, way_of, window_of
from postroad.cli.long_running import Process, background_maintenance, process, run
from postroad.cli.queue_options import RELAY, queue_option
from postroad.cli.reporting import reporting_of
from postroad.delivery_settings.delivery import DeliverySettings
from postroad.delivery_settings.routing import RoutingSettings
from postroad.domain.next_hops import SOCKET_SCHEME, NextHop, TlsMode, parse_host_port
from postroad.domain.retries import RetryPlan
from postroad.domain.sasl import Mechanism
from postroad.domain.webhooks import WebhookAddress
from postroad.settings import Settings, from_environment
from postroad.telemetry.logs import logger
from postroad.worker.consumer import Consumer
from postroad.worker.deliveries import Deliverer
from postroad.worker.driving import LONGEST_GOODBYE, Driving
from postroad.worker.pacing import Pacer
from postroad.worker.routing import RelayRoutes
from postroad.worker.site_control import SiteControl

if TYPE_CHECKING:
    from postroad.bootstrap.delivery_file import DeliveryFile, Use
    from postroad.cli.routes import RoutesBySettings

_log = logger("worker")

relay_option = click.option(
    "--relay",
    type=RELAY,
    metavar="HOST[:PORT]|unix:PATH",
    help="The next hop (or POSTROAD_WORKER_RELAY_HOST and POSTROAD_WORKER_RELAY_PORT; "
    "default port: 25, or 465 with --tls implicit), or the Unix socket of an LMTP server "
    "(or POSTROAD_WORKER_RELAY_SOCKET).",
)
tls_option = click.option(
    "--tls",
    type=click.Choice([mode.value for mode in TlsMode]),
    help="none: never. opportunistic: where the next hop offers it, whatever its certificate. "
    "encrypted: always, whatever its certificate. "
    "required: only with a certificate that verifies. implicit: the same, with TLS from the first "
    "octet on. (Or POSTROAD_WORKER_RELAY_TLS; default: opportunistic.)",
)
concurrency_option = click.option(
    "--concurrency",
    type=click.IntRange(1),
    help="Connections to next hops at most (or POSTROAD_WORKER_CONCURRENCY; default: 200).",
)


delivery_option = click.option(
    "--delivery",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file of what is decided about delivery (YAML), such as the keys that sign mail, and "
    "where mail goes without --relay (or POSTROAD_WORKER_DELIVERY_FILE).",
)


def login_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the login at the next hop, which the command gets as `login`."""
    for each in (
        click.option(
            "--relay-login-unverified",
            is_flag=True,
            default=None,
            help="Log in also in clear, and where the certificate of the next hop is not verified "
            "(or POSTROAD_WORKER_RELAY_LOGIN_UNVERIFIED).",
        ),
        click.option(
            "--relay-login-mechanism",
            type=click.Choice([each.value for each in Mechanism], case_sensitive=False),
            help="XOAUTH2: the password is an access token. (Or "
            "POSTROAD_WORKER_RELAY_LOGIN_MECHANISM; default: the best that the next hop offers.)",
        ),
        click.option(
            "--relay-login-folder",
            type=click.Path(file_okay=False, path_type=Path),
            help="A folder with the files `username` and `password`: the login at the next hop. "
            "Needs --tls required or implicit (or POSTROAD_WORKER_RELAY_LOGIN_FOLDER).",
        ),
    ):
        command = each(command)
    return command


def program_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of programs that get the mail, which the command gets as `webhook_…` and
    `function_…`."""
    for each in (
        click.option(
            "--function",
            "function_name",
            metavar="MODULE:FUNCTION",
            help="A function in Python that gets the mail (or POSTROAD_WORKER_FUNCTION_NAME).",
        ),
        click.option(
            "--webhook-login-folder",
            type=click.Path(file_okay=False, path_type=Path),
            help="A folder with the file `secret`, which signs requests to the webhook (or "
            "POSTROAD_WORKER_WEBHOOK_LOGIN_FOLDER).",
        ),
        click.option(
            "--webhook",
            "webhook_url",
            metavar="URL",
            type=SecretStr,
            help="A webhook that gets the mail (or POSTROAD_WORKER_WEBHOOK_URL).",
        ),
    ):
        command = each(command)
    return command


@click.command()
@queue_option
@relay_option
@tls_option
@concurrency_option
@delivery_option
@login_options
@program_options
@click.option("--create", is_flag=True, help="Create the queue, or what it lacks.")
def worker(
    url: str,
    relay: str | None,
    tls: str | None,
    concurrency: int | None,
    delivery: Path | None,
    create: bool,
    **more: Any,
) -> None:
    """Deliver the mail of a queue to a next hop, by routes (--delivery), or to a program (--webhook
    or --function), until SIGTERM.

    Serves probes and metrics on 127.0.0.1:8080 (POSTROAD_HEALTH_HOST; *: all addresses;
    POSTROAD_HEALTH_PORT; 0: any free one).
    """
    settings = with_relay(from_environment(), relay, tls, concurrency, delivery, more)
    run(settings, _deliver(settings, url, create))


def with_relay(
    settings: Settings,
    relay: str | None,
    tls: str | None,
    concurrency: int | None,
    delivery: Path | None,
    more: Mapping[str, Any],
) -> Settings:
    """Return the settings with what the command line has of delivery; `more` by the names of
    settings (`relay_login_…`, `webhook_…`, `function_…`)."""
    mode = settings.worker.relay_tls if tls is None else TlsMode(tls)
    changes: dict[str, object] = {
        "relay_tls": mode,
        "concurrency": concurrency,
        "delivery_file": delivery,
        **{name: value for name, value in more.items() if name.startswith("relay_")},
    }
    if (mechanism := more.get("relay_login_mechanism")) is not None:
        changes["relay_login_mechanism"] = Mechanism(mechanism)
    given = {field: value for field, value in changes.items() if value is not None}
    if relay is not None and relay.startswith(SOCKET_SCHEME):
        given |= {"relay_host": None, "relay_socket": Path(relay.removeprefix(SOCKET_SCHEME))}
    elif relay is not None:
        host, port = parse_host_port(relay, settings.worker.relay_port or mode.default_port)
        given |= {"relay_host": host, "relay_port": port, "relay_socket": None}
    section = settings.worker.model_copy(update=given)
    changed = {"worker": section}
    for program in ("webhook", "function"):
        own = {
            name.removeprefix(f"{program}_"): value
            for name, value in more.items()
            if name.startswith(f"{program}_") and value is not None
        }
        name = f"worker_{program}"
        changed[name] = getattr(settings, name).model_copy(update=own)
    return settings.model_copy(update=changed)


def way_and_file(settings: Settings) -> tuple[Way, DeliveryFile | None]:
    """Return where mail goes, and the file of delivery. Raises: InvalidSettings."""
    delivery = open_delivery(settings)
    return way_of(settings, None if delivery is None else delivery.current.settings), delivery


async def _deliver(settings: Settings, url: str, create: bool) -> None:
    way, delivery = way_and_file(settings)
    async with process(settings, url, create=create) as this:
        if this is not None:
            await deliver(this, settings, way, delivery)


async def deliver(
    this: Process, settings: Settings, way: Way, delivery: DeliveryFile | None
) -> None:
    """Deliver the queue's mail until the process is to end. Raises: what `dequeue` raises;
    InvalidSettings."""
    section = settings.retry
    plan = RetryPlan(section.lanes, section.max_age, soft_bounce=section.soft_bounce)
    randomness, window = SystemRandomness(), window_of(settings, way)
    is_routed = isinstance(way, RoutingSettings)
    if is_routed and ehlo_name_of(settings) is None:
        _log.warning("no name for EHLO: set POSTROAD_HOSTNAME, as many servers refuse an address")
    attempt_log, routes = open_attempt_log(settings), open_routes(settings, way)
    board, name = board_of(this.queue), worker_name()
    control = SiteControl(
        board,
        MachineClock(),
        name,
        watches_answers=is_routed and settings.worker.suspend_by_answers,
    )
    pacer = None
    if delivery is not None:
        limits, held = delivery.current.settings.limit_rules(), max(10, window // 4)
        pacer = Pacer(limits, board, MachineClock(), name, held)
    driving = Driving(
        Deliverer(
            this.queue.name,
            plan,
            MachineClock(),
            randomness,
            attempt_log,
            reporting_of(settings, this.queue, plan),
        ),
        open_connector(settings, way, open_signer(delivery)),
        routes,
        rules_of(settings, way),
        randomness,
        window=window if is_routed else None,
        control=control,
        pacer=pacer,
    )
    consumer = Consumer(this.queue, driving, window=window)

    def use(changed: DeliverySettings) -> None:
        found = way_of(settings, changed)  # the file may not lead to another kind of way
        is_other = False
        if isinstance(found, RoutingSettings) and not isinstance(routes, RelayRoutes):
            is_other = routes.replace(found)  # first, as it may raise
        if pacer is not None:
            is_other |= pacer.replace(changed.limit_rules())
        if is_other:
            driving.route_again()

    try:
        await control.read()  # before the first mail
        async with (
            background_maintenance(this),
            _controlled(control, pacer, driving),
            following(delivery, use),
        ):
            await consumer.run(this.stop, this.drain_within)
    finally:
        if attempt_log is not None:
            attempt_log.close()


def worker_name() -> str:
    """Return this worker's name on the board. Pods may share process ids, and machines names."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}"


@asynccontextmanager
async def _controlled(
    control: SiteControl, pacer: Pacer | None, driving: Driving
) -> AsyncIterator[None]:
    """Let a worker obey suspensions and limits, and post what it knows of its sites."""
    running = [asyncio.create_task(control.run(driving.sites), name="control of sites")]
    if pacer is not None:
        running.append(asyncio.create_task(pacer.run(), name="shares of limits"))
    try:
        yield
    finally:
        for each in running:
            each.cancel()
        await asyncio.wait(running)
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_GOODBYE.total_seconds()):
                await control.close()
                if pacer is not None:
                    await pacer.close()


def open_routes(settings: Settings, way: Way) -> RelayRoutes | RoutesBySettings:
    """Return what finds routes. Needs a running event loop; asks on first use.

    Raises: InvalidSettings, as where there is no name server.
    """
    if isinstance(way, NextHop):
        return RelayRoutes(way)
    if isinstance(way, WebhookAddress | HandlerFunction):
        return RelayRoutes(NextHop(way.name, 0, TlsMode.NONE), way.name)
    from postroad.cli.routes import RoutesBySettings  # dnspython is not loaded for nothing

    return RoutesBySettings(way, settings.ca_file)


@asynccontextmanager
async def following(delivery: DeliveryFile | None, use: Use) -> AsyncIterator[None]:
    """Follow the changes of a file of delivery meanwhile; SIGHUP asks for a look at once."""
    if delivery is None:
        yield
        return
    asked, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, asked.set)
    task = asyncio.create_task(delivery.follow(use, asked), name="follow delivery")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
