"""`postroad worker`: delivers the mail of a queue to a next hop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from postroad.adapters.machine.clocks import MachineClock, SystemRandomness
from postroad.bootstrap.transports import open_attempt_log, open_signer, open_transport
from postroad.cli.long_running import Process, background_maintenance, process, run
from postroad.cli.queue_options import RELAY, queue_option
from postroad.cli.reporting import reporting_of
from postroad.domain.next_hops import HopLogin, NextHop, TlsMode, parse_host_port
from postroad.domain.retries import RetryPlan
from postroad.domain.sasl import Mechanism
from postroad.errors import CredentialsMissing, InvalidSettings
from postroad.logins import LoginFolder
from postroad.ports.signing import Signer
from postroad.settings import Settings, Worker, from_environment
from postroad.worker.consumer import Consumer
from postroad.worker.deliveries import Deliverer

relay_option = click.option(
    "--relay",
    type=RELAY,
    metavar="HOST[:PORT]",
    help="The next hop (or POSTROAD_WORKER_RELAY_HOST and POSTROAD_WORKER_RELAY_PORT; "
    "default port: 25, or 465 with --tls implicit).",
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
    help="Mails in flight at the same time (or POSTROAD_WORKER_CONCURRENCY; default: 200).",
)


delivery_option = click.option(
    "--delivery",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file of what is decided about delivery (YAML), such as the keys that sign mail (or "
    "POSTROAD_WORKER_DELIVERY_FILE).",
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


@click.command()
@queue_option
@relay_option
@tls_option
@concurrency_option
@delivery_option
@login_options
@click.option("--create", is_flag=True, help="Create the queue, or what it lacks.")
def worker(
    url: str,
    relay: str | None,
    tls: str | None,
    concurrency: int | None,
    delivery: Path | None,
    create: bool,
    **login: Any,
) -> None:
    """Deliver the mail of a queue to a next hop, until SIGTERM.

    Serves probes and metrics on 127.0.0.1:8080 (POSTROAD_HEALTH_HOST; *: all addresses;
    POSTROAD_HEALTH_PORT; 0: any free one).
    """
    settings = with_relay(from_environment(), relay, tls, concurrency, delivery, login)
    run(settings, _deliver(settings, url, create))


def with_relay(
    settings: Settings,
    relay: str | None,
    tls: str | None,
    concurrency: int | None,
    delivery: Path | None,
    login: Mapping[str, Any],
) -> Settings:
    """Return the settings with what the command line has of delivery; `login` by the names of
    settings (`relay_login_…`)."""
    mode = settings.worker.relay_tls if tls is None else TlsMode(tls)
    changes: dict[str, object] = {
        "relay_tls": mode,
        "concurrency": concurrency,
        "delivery_file": delivery,
        **login,
    }
    if (mechanism := login.get("relay_login_mechanism")) is not None:
        changes["relay_login_mechanism"] = Mechanism(mechanism)
    if relay is not None:
        host, port = parse_host_port(relay, settings.worker.relay_port or mode.default_port)
        changes |= {"relay_host": host, "relay_port": port}
    given = {field: value for field, value in changes.items() if value is not None}
    section = settings.worker.model_copy(update=given)
    return settings.model_copy(update={"worker": section})


async def _deliver(settings: Settings, url: str, create: bool) -> None:
    hop, signer = next_hop(settings), open_signer(settings)
    async with process(settings, url, create=create) as this:
        if this is not None:
            await deliver(this, settings, hop, signer)


def next_hop(settings: Settings) -> NextHop:
    """Return the next hop. Raises: InvalidSettings."""
    section = settings.worker
    if section.relay_host is None:
        raise InvalidSettings("the worker has no next hop", hint="give --relay host:port")
    port = section.relay_port or section.relay_tls.default_port
    return NextHop(
        section.relay_host, port, section.relay_tls, section.relay_protocol, _login(section)
    )


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


async def deliver(this: Process, settings: Settings, hop: NextHop, signer: Signer | None) -> None:
    """Deliver the queue's mail to the next hop until the process is to end. Raises: what `dequeue`
    raises."""
    attempt_log = open_attempt_log(settings)
    transport = open_transport(settings, hop, signer)
    plan = RetryPlan(settings.retry.lanes, settings.retry.max_age)
    deliverer = Deliverer(
        this.queue.name,
        transport,
        plan,
        MachineClock(),
        SystemRandomness(),
        attempt_log,
        reporting_of(settings, this.queue, plan),
    )
    consumer = Consumer(this.queue, deliverer, concurrency=settings.worker.concurrency)
    try:
        async with background_maintenance(this):
            await consumer.run(this.stop, this.drain_within)
    finally:
        await transport.close()
        if attempt_log is not None:
            attempt_log.close()
