"""`postroad intake`: accepts mail over SMTP into a queue, in this process or in children, because a
Python process uses one core.

The children share the listening sockets, which they inherit, and reply 250 only after `enqueue`
returned. With an embedded queue that this process owns, they also inherit the lock on its store and
store the mails themselves (`embedded/rpc/receiver.py`).
They end when this process does, even by a crash, because their standard input then ends."""

import asyncio
import os
import socket
import sys
from asyncio.subprocess import PIPE
from asyncio.subprocess import Process as Child
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any

import click

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.bootstrap import lock_of
from postroad.bootstrap.transports import hostname_of
from postroad.cli.options import LISTEN, NETWORKS, queue_option
from postroad.cli.processes import long_running
from postroad.cli.processes.event_loop import within_descriptors
from postroad.cli.processes.long_running import INTAKE_MAINTENANCE_INTERVAL
from postroad.domain.smtp.next_hops import parse_host_port
from postroad.domain.values.networks import EVERY_ADDRESS, LOOPBACK, NO_ADDRESS, Networks
from postroad.errors import InvalidSettings, ReceiverEnded
from postroad.intake.clients import ClientLimits, Rules
from postroad.intake.context import ClientTimeouts, IntakeContext
from postroad.intake.dialogue import Offer
from postroad.intake.server import SmtpServer, listening_on
from postroad.ports.mail_queue import MailQueue
from postroad.settings import Settings, from_environment
from postroad.settings.intake import BareLineEnds, Intake, LongLines
from postroad.smtp.server import ServerCertificate
from postroad.telemetry.logs import logger

_log = logger("intake")

STANDARD_INPUT = 0
NONE_INHERITED: Mapping[int, bool] = {}


listen_option = click.option(
    "--listen",
    type=LISTEN,
    metavar="HOST:PORT",
    help="Address to listen on (or POSTROAD_INTAKE_HOST and POSTROAD_INTAKE_PORT; default: "
    "127.0.0.1:2525). *:PORT is that port of all addresses. Addresses other than loopback need "
    "--relay-from.",
)
relay_from_option = click.option(
    "--relay-from",
    type=NETWORKS,
    metavar="NETWORKS",
    help="Networks whose clients may send, to any recipient: 10.0.0.0/8,2001:db8::/32 (or "
    "POSTROAD_INTAKE_RELAY_FROM; default: loopback).",
)


@click.command()
@queue_option
@listen_option
@relay_from_option
@click.option("--create", is_flag=True, help="Create the queue, or what it lacks.")
@click.option("--inherited", type=click.IntRange(3), multiple=True, hidden=True)
@click.option("--inherited-tls", type=click.IntRange(3), multiple=True, hidden=True)
@click.option("--lock", type=click.IntRange(3), hidden=True)
def intake(
    url: str,
    listen: str | None,
    relay_from: Networks | None,
    create: bool,
    inherited: tuple[int, ...],
    inherited_tls: tuple[int, ...],
    lock: int | None,
) -> None:
    """Accept mail over SMTP into a queue, until SIGTERM.

    Serves probes and metrics on 127.0.0.1:8080 (POSTROAD_HEALTH_HOST; *: all addresses;
    POSTROAD_HEALTH_PORT; 0: any free one)."""
    settings = within_descriptors(with_clients(from_environment(), listen, relay_from))
    listening = dict.fromkeys(inherited, False) | dict.fromkeys(inherited_tls, True)
    long_running.run(settings, _receive(settings, url, create, listening, lock))


def with_clients(
    settings: Settings, listen: str | None, relay_from: Networks | None = None
) -> Settings:
    """Return the settings with the address and the networks of the command line. Raises:
    InvalidSettings for an address that other machines reach without networks that may send: after
    an upgrade the intake would refuse permanently what it accepted before."""
    update: dict[str, object] = {} if relay_from is None else {"relay_from": relay_from}
    if listen is not None:
        update["host"], update["port"] = parse_host_port(listen, settings.intake.port)
    section = settings.intake.model_copy(update=update)
    is_local = section.host == "localhost" or section.host in LOOPBACK
    if section.relay_from is None and not is_local:
        raise InvalidSettings(
            f"the intake would listen on {section.host}, but no client may send",
            hint="name their networks with --relay-from or POSTROAD_INTAKE_RELAY_FROM",
        )
    return settings.model_copy(update={"intake": section})


def rules_of(section: Intake) -> Rules:
    """Return the rights of clients by network."""
    all_normalised = section.bare_line_ends is BareLineEnds.NORMALISE
    return Rules(
        relay_from=section.relay_from or LOOPBACK,
        early_input_from=section.early_input_from or NO_ADDRESS,
        normalise_from=EVERY_ADDRESS if all_normalised else section.normalise_from or NO_ADDRESS,
    )


def log_rules(queue: MailQueue, section: Intake) -> None:
    """Log the networks that may send, and warn of an open relay."""
    networks = rules_of(section).relay_from
    _log.info("relaying for", queue=queue.name, networks=str(networks))
    if networks.hold_the_internet:
        _log.warning(
            "open relay: the whole Internet may send to any recipient",
            queue=queue.name,
            networks=str(networks),
            hint="name only the networks of your own clients in POSTROAD_INTAKE_RELAY_FROM",
        )


async def _receive(
    settings: Settings,
    url: str,
    create: bool,
    inherited: Mapping[int, bool] = NONE_INHERITED,
    lock: int | None = None,
) -> None:
    """`inherited`: descriptors of sockets to listen on, from the parent process, each with whether
    TLS begins with the connection; `lock`: the descriptor of the lock on the parent's store."""
    certificate = certificate_of(settings.intake)
    inheritance = long_running.Inheritance(STANDARD_INPUT, lock) if inherited else None
    async with long_running.process(settings, url, create=create, inheritance=inheritance) as this:
        if this is not None and inherited:
            listening = {socket.socket(fileno=each): tls for each, tls in inherited.items()}
            await receive(this, settings, certificate, listening)
        elif this is not None:
            async with long_running.background_maintenance(this, INTAKE_MAINTENANCE_INTERVAL):
                await receive(this, settings, certificate)


async def receive(
    this: long_running.Process,
    settings: Settings,
    certificate: ServerCertificate | None,
    listening: Mapping[socket.socket, bool] | None = None,
) -> None:
    """Accept mail into the queue until the process is to end. `listening`: sockets to use instead
    of the settings' address, each with whether TLS begins with the connection."""
    section = settings.intake
    offer = Offer(
        hostname_of(settings),
        section.max_size_bytes,
        section.max_recipients,
        dsn=settings.reports.enabled,
    )
    timeouts = ClientTimeouts(
        least_bytes_per_second=section.least_bytes_per_second, session=section.longest_session
    )
    context = IntakeContext(
        this.queue,
        offer,
        MachineClock(),
        SystemRandomness(),
        None if certificate is None else certificate.context,
        timeouts,
        rules_of(section),
        takes_long_lines=section.long_lines is LongLines.FOLD,
    )
    server = SmtpServer(
        context, max_sessions=section.max_sessions, client_limits=client_limits(section)
    )
    if listening is None:
        log_rules(this.queue, section)
        for port, tls in ports_of(section):
            await server.listen(section.host, port, tls=tls)
    else:
        for each, tls in listening.items():
            server.listen_on(each, tls=tls)
        click.echo("listening")  # to the parent
    try:
        await this.stop.wait()
    finally:
        await server.drain(this.drain_within)


def client_limits(section: Intake) -> ClientLimits:
    return ClientLimits(
        section.client_sessions or -(-section.max_sessions // 2),
        section.client_connections_per_minute,
        section.client_mails_per_minute,
    )


def ports_of(section: Intake) -> list[tuple[int, bool]]:
    """Return the ports to listen on, each with whether TLS begins with the connection."""
    if section.tls_port is None:
        return [(section.port, False)]
    plain = [] if section.tls_port == section.port != 0 else [(section.port, False)]
    return [*plain, (section.tls_port, True)]


def certificate_of(section: Intake) -> ServerCertificate | None:
    """Return the certificate that the settings name. Raises: InvalidSettings."""
    if section.tls_certificate is None and section.tls_port is not None:
        raise InvalidSettings(
            "POSTROAD_INTAKE_TLS_PORT is set without a certificate",
            hint="name its PEM file with POSTROAD_INTAKE_TLS_CERTIFICATE",
        )
    if section.tls_certificate is None and section.tls_key is not None:
        raise InvalidSettings(
            "POSTROAD_INTAKE_TLS_KEY is set without a certificate",
            hint="name its PEM file with POSTROAD_INTAKE_TLS_CERTIFICATE",
        )
    if section.tls_certificate is None:
        return None
    return ServerCertificate(section.tls_certificate, section.tls_key)


GRACE = timedelta(seconds=5)
"""Time that a child may run beyond the drain time before it is killed."""


async def receive_in_children(
    this: long_running.Process, settings: Settings, url: str, count: int
) -> None:
    """Accept mail in `count` processes until this one is to end. Raises: InvalidSettings for an
    address that cannot be used, ReceiverEnded when a child ends."""
    children: list[Child] = []
    try:
        with ExitStack() as sockets:
            log_rules(this.queue, settings.intake)
            listening = {
                sockets.enter_context(each): tls
                for port, tls in ports_of(settings.intake)
                for each in listening_on(settings.intake.host, port)
            }
            addresses, lock = list(map(_address_of, listening)), lock_of(this.queue)
            while len(children) < count:
                children.append(await _start(settings, url, listening, lock, count))
        await _watch(this, children, addresses)
    finally:
        await _end(children, this.drain_within + GRACE)


async def _watch(this: long_running.Process, children: list[Child], addresses: list[str]) -> None:
    """Wait until this process is to end. Raises: ReceiverEnded."""
    stopping = asyncio.create_task(this.stop.wait())
    beginning = asyncio.gather(*map(_is_listening, children))
    try:
        either: list[asyncio.Future[Any]] = [stopping, beginning]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if this.stop.is_set():
            return  # a signal to the whole process group may have ended the children already
        if not all(beginning.result()):
            raise ReceiverEnded
        for address in addresses:
            _log.info("listening", queue=this.queue.name, address=address)
        ends = [asyncio.create_task(child.wait()) for child in children]
        await asyncio.wait([stopping, *ends], return_when=asyncio.FIRST_COMPLETED)
        if not this.stop.is_set():
            raise ReceiverEnded
    finally:
        stopping.cancel()
        beginning.cancel()


def _address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"{host}:{port}"


async def _start(
    settings: Settings,
    url: str,
    listening: Mapping[socket.socket, bool],
    lock: int | None,
    count: int,
) -> Child:
    words: list[str] = []
    for each, tls in listening.items():
        words += ["--inherited-tls" if tls else "--inherited", str(each.fileno())]
    words += [] if lock is None else ["--lock", str(lock)]
    inherited = [each.fileno() for each in listening] + ([] if lock is None else [lock])
    section = settings.intake
    environment = {
        "POSTROAD_HEALTH_HOST": "127.0.0.1",
        "POSTROAD_HEALTH_PORT": "0",  # the parent answers the probes
        "POSTROAD_INTAKE_RELAY_FROM": str(rules_of(section).relay_from),
        "POSTROAD_INTAKE_MAX_SESSIONS": str(-(-section.max_sessions // count)),
    }
    if section.client_sessions is not None:
        share = -(-section.client_sessions // count)
        environment["POSTROAD_INTAKE_CLIENT_SESSIONS"] = str(share)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "postroad", "intake", "--queue", url),
        *words,
        stdin=PIPE,
        stdout=PIPE,
        pass_fds=inherited,
        env=os.environ | environment,
    )


async def _is_listening(child: Child) -> bool:
    assert child.stdout is not None
    return await child.stdout.readline() != b""


async def _end(children: list[Child], within: timedelta) -> None:
    """Stop the children, which first finish the mails that they are receiving; kill late ones."""
    if not children:
        return
    for child in children:
        with suppress(ProcessLookupError):
            child.terminate()
    waits = [asyncio.create_task(child.wait()) for child in children]
    _, late = await asyncio.wait(waits, timeout=within.total_seconds())
    if late:
        for child in children:
            with suppress(ProcessLookupError):
                child.kill()
        await asyncio.wait(late)
