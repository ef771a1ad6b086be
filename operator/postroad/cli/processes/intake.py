"""`postroad intake`: accepts mail over SMTP and HTTP into a queue, in this process or in children,
because a Python process uses one core.

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
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.bootstrap import lock_of
from postroad.bootstrap.transports import hostname_of
from postroad.cli.options import LISTEN, NETWORKS, queue_option
from postroad.cli.processes import events, long_running
from postroad.cli.processes.event_loop import within_descriptors
from postroad.cli.processes.intake_listeners import (
    FileListeners,
    FollowedIntake,
    IntakeDocument,
    IntakeServers,
    ListenerAddress,
    Suppression,
)
from postroad.cli.processes.long_running import INTAKE_MAINTENANCE_INTERVAL
from postroad.domain.smtp.next_hops import parse_host_port
from postroad.domain.values.networks import (
    EVERY_ADDRESS,
    LOOPBACK,
    NO_ADDRESS,
    Networks,
    is_loopback,
)
from postroad.errors import InvalidSettings, ReceiverEnded
from postroad.intake.clients import Rules
from postroad.intake.context import ClientTimeouts, IntakeContext
from postroad.intake.dialogue import Offer
from postroad.intake.server import listening_on
from postroad.intake_settings.listeners import ListenerRole
from postroad.intake_settings.outbox import FileOutbox
from postroad.ports.events import EventLog
from postroad.ports.mail_queue import IntakeQueue
from postroad.settings import Settings, from_environment
from postroad.settings.intake import BareLineEnds, Intake, LongLines
from postroad.smtp.server import ServerCertificate
from postroad.telemetry.logs import logger
from postroad.telemetry.tracing import MailTracer

_log = logger("intake")

STANDARD_INPUT = 0


listen_option = click.option(
    "--listen",
    type=LISTEN,
    metavar="HOST:PORT",
    help="Address to listen on (or POSTROAD_INTAKE_HOST and POSTROAD_INTAKE_PORT; default: "
    "127.0.0.1:2525). *:PORT is that port of all addresses. Addresses other than loopback need "
    "--relay-from.",
)
intake_option = click.option(
    "--intake",
    "intake_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of intake in YAML: listeners by role, users, rules, domains, filters (or "
    "POSTROAD_INTAKE_FILE), instead of --listen and --relay-from.",
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
@intake_option
@click.option("--create", is_flag=True, help="Create the queue, or what it lacks.")
@click.option("--inherited", type=(str, click.IntRange(3)), multiple=True, hidden=True)
@click.option("--lock", type=click.IntRange(3), hidden=True)
def intake(
    url: str,
    listen: str | None,
    relay_from: Networks | None,
    intake_file: Path | None,
    create: bool,
    inherited: tuple[tuple[str, int], ...],
    lock: int | None,
) -> None:
    """Accept mail over SMTP into a queue, until SIGTERM.

    Serves probes and metrics on 127.0.0.1:8080 (POSTROAD_HEALTH_HOST; *: all addresses;
    POSTROAD_HEALTH_PORT; 0: any free one)."""
    settings = within_descriptors(with_clients(from_environment(), listen, relay_from, intake_file))
    listeners = listeners_of(settings.intake)
    long_running.run(settings, _receive(settings, url, create, listeners, inherited, lock))


def with_clients(
    settings: Settings,
    listen: str | None,
    relay_from: Networks | None = None,
    file: Path | None = None,
) -> Settings:
    """Return the settings with the address, the networks and the file of intake of the command
    line. Raises: InvalidSettings for an address that other machines reach without networks that may
    send: after an upgrade the intake would refuse permanently what it accepted before; for a file
    beside what it would hide."""
    update: dict[str, object] = {} if relay_from is None else {"relay_from": relay_from}
    if file is not None:
        update["file"] = file
    if listen is not None:
        update["host"], update["port"] = parse_host_port(listen, settings.intake.port)
    section = settings.intake.model_copy(update=update)
    if section.file is not None:
        hidden = sorted(_OF_ONE_LISTENER & section.model_fields_set)
        if hidden:
            names = ", ".join(f"POSTROAD_INTAKE_{each.upper()}" for each in hidden)
            raise InvalidSettings(
                f"the file of intake names the listeners, and {names} names one, too",
                hint="leave out --listen, --relay-from and these variables, or the file",
            )
        return settings.model_copy(update={"intake": section})
    if section.relay_from is None and not is_loopback(section.host):
        raise InvalidSettings(
            f"the intake would listen on {section.host}, but no client may send",
            hint="name their networks with --relay-from or POSTROAD_INTAKE_RELAY_FROM",
        )
    return settings.model_copy(update={"intake": section})


_OF_ONE_LISTENER = frozenset(
    ("host", "port", "tls_port", "relay_from", "tls_certificate", "tls_key")
)


def rules_of(section: Intake) -> Rules:
    """Return the rights of clients by network."""
    all_normalised = section.bare_line_ends is BareLineEnds.NORMALISE
    return Rules(
        relay_from=section.relay_from or LOOPBACK,
        early_input_from=section.early_input_from or NO_ADDRESS,
        normalise_from=EVERY_ADDRESS if all_normalised else section.normalise_from or NO_ADDRESS,
    )


def log_rules(queue: IntakeQueue, networks: Networks) -> None:
    """Log the networks that may send, and warn of an open relay."""
    _log.info("relaying for", queue=queue.name, networks=str(networks))
    if networks.hold_the_internet:
        _log.warning(
            "open relay: the whole Internet may send to any recipient",
            queue=queue.name,
            networks=str(networks),
            hint="name only the networks of your own clients in POSTROAD_INTAKE_RELAY_FROM, or "
            "of clients and proxies in `from`, `proxyFrom` and `xclientFrom` of the listener",
        )


def relays_of(document: IntakeDocument) -> list[Networks]:
    """Return the networks that each listener of role relay, or with proxies, trusts."""
    listeners = document.settings.listeners
    is_relay = ListenerRole.RELAY
    return [each.trusted for each in listeners if each.role is is_relay or each.trusted.each]


def log_relays(queue: IntakeQueue, document: IntakeDocument) -> None:
    """Log the networks that may send by a file of intake, and warn of an open relay."""
    for each in relays_of(document):
        log_rules(queue, each)


Listeners = FollowedIntake | ServerCertificate | None
"""Listeners of a file of intake, or of variables: then with a certificate, if they name one."""


def listeners_of(section: Intake) -> Listeners:
    """Return the listeners. Raises: InvalidSettings, also for a file that it names."""
    return certificate_of(section) if section.file is None else FollowedIntake(section.file)


async def _receive(
    settings: Settings,
    url: str,
    create: bool,
    listeners: Listeners,
    inherited: Sequence[tuple[str, int]] = (),
    lock: int | None = None,
) -> None:
    """`inherited`: listeners, each with a descriptor of a socket to listen on, from the parent
    process; `lock`: the descriptor of the lock on the parent's store."""
    section = outbox_of(listeners)
    if section is not None:
        from postroad.cli.processes.outbox import process_with_outbox

        async with process_with_outbox(settings, url, section, create=create) as opened:
            if opened is not None:
                await _receive_with(*opened, settings, listeners, (), None)
        return
    inheritance = long_running.Inheritance(STANDARD_INPUT, lock) if inherited else None
    async with long_running.process(settings, url, create=create, inheritance=inheritance) as this:
        if this is not None and inherited:
            sockets = [(name, socket.socket(fileno=each)) for name, each in inherited]
            await receive(this, settings, listeners, sockets)
        elif this is not None:
            async with long_running.background_maintenance(this, INTAKE_MAINTENANCE_INTERVAL):
                await receive(this, settings, listeners)


async def receive(
    this: long_running.Process,
    settings: Settings,
    listeners: Listeners,
    inherited: Sequence[tuple[str, socket.socket]] = (),
) -> None:
    """Accept mail into the queue until the process is to end. `inherited`: sockets to use instead
    of those that the settings name, each with its listener."""
    async with events.noting(this, settings.worker.delivery_file) as noted:
        await _receive_with(this, this.queue, settings, listeners, inherited, noted)


def outbox_of(listeners: Listeners) -> FileOutbox | None:
    """Return the outbox that the file of intake declares."""
    return listeners.current.settings.outbox if isinstance(listeners, FollowedIntake) else None


async def _receive_with(
    this: long_running.Process,
    queue: IntakeQueue,
    settings: Settings,
    listeners: Listeners,
    inherited: Sequence[tuple[str, socket.socket]],
    noted: EventLog | None,
) -> None:
    section = settings.intake
    certificate = None if isinstance(listeners, FollowedIntake) else listeners
    base = _base_context(queue, settings, certificate, noted, this.tracer)
    file, by_file = None, None
    if isinstance(listeners, FollowedIntake):
        suppression = Suppression(this.queue.suppression_list, lambda: this.suppression)
        file = listeners
        by_file = FileListeners(file, base, settings.ca_file, suppression)
        await by_file.open()
    servers = IntakeServers(base, section, ports_of(section, listeners), by_file, inherited)
    servers.listen(None if file is None else file.current)
    if inherited:
        click.echo("listening")  # to the parent
    else:
        log_listening(queue, section, listeners, servers.sockets)

    def use(document: IntakeDocument) -> None:
        servers.use(document)
        if file is not None and relays_of(document) != relays_of(file.current):
            log_relays(queue, document)

    try:
        async with long_running.following(this, file, use):
            await this.stop.wait()
    finally:
        await servers.drain(this.drain_within)


def _base_context(
    queue: IntakeQueue,
    settings: Settings,
    certificate: ServerCertificate | None,
    noted: EventLog | None,
    tracer: MailTracer | None,
) -> IntakeContext:
    """Return what the sessions of all listeners share."""
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
    return IntakeContext(
        queue,
        offer,
        MachineClock(),
        SystemRandomness(),
        None if certificate is None else certificate.context,
        timeouts,
        rules_of(section),
        takes_long_lines=section.long_lines is LongLines.FOLD,
        events=noted,
        tracer=tracer,
    )


def ports_of(section: Intake, listeners: Listeners) -> list[ListenerAddress]:
    """Return where to listen."""
    if isinstance(listeners, FollowedIntake):
        return FileListeners.ports(listeners.current.settings.listeners)
    plain = ListenerAddress("smtp", section.host, section.port)
    if section.tls_port is None:
        return [plain]
    is_instead = section.tls_port == section.port != 0
    return [
        *(() if is_instead else (plain,)),
        ListenerAddress("smtps", section.host, section.tls_port, True),
    ]


def log_listening(
    queue: IntakeQueue,
    section: Intake,
    listeners: Listeners,
    sockets: Sequence[tuple[str, socket.socket]],
) -> None:
    """Log where the intake listens, and whose mail it relays."""
    if not isinstance(listeners, FollowedIntake):
        log_rules(queue, rules_of(section).relay_from)
    else:
        log_relays(queue, listeners.current)
    for name, bound in sockets:
        _log.info("listening", queue=queue.name, listener=name, address=_address_of(bound))


def certificate_of(section: Intake) -> ServerCertificate | None:
    """Return the certificate that the settings name. Raises: InvalidSettings."""
    if section.tls_certificate is not None:
        return ServerCertificate(section.tls_certificate, section.tls_key)
    for name, value in (("PORT", section.tls_port), ("KEY", section.tls_key)):
        if value is not None:
            raise InvalidSettings(
                f"POSTROAD_INTAKE_TLS_{name} is set without a certificate",
                hint="name its PEM file with POSTROAD_INTAKE_TLS_CERTIFICATE",
            )
    return None


GRACE = timedelta(seconds=5)
"""Time that a child may run beyond the drain time before it is killed."""


async def receive_in_children(
    this: long_running.Process, settings: Settings, url: str, listeners: Listeners, count: int
) -> None:
    """Accept mail in `count` processes until this one is to end. Raises: InvalidSettings for an
    address that cannot be used, ReceiverEnded when a child ends."""
    children: list[Child] = []
    try:
        with ExitStack() as stack:
            sockets = [
                (port.name, stack.enter_context(each))
                for port in ports_of(settings.intake, listeners)
                for each in listening_on(port.host, port.port)
            ]
            lock = lock_of(this.queue)
            while len(children) < count:
                children.append(await _start(settings, url, sockets, lock, count))
            log = partial(log_listening, this.queue, settings.intake, listeners, sockets)
            await _watch(this, children, log)
    finally:
        await _end(children, this.drain_within + GRACE)


async def _watch(
    this: long_running.Process, children: list[Child], log: Callable[[], None]
) -> None:
    """Wait until this process is to end; `log` once all children listen. They follow the file of
    intake by themselves. Raises: ReceiverEnded."""
    stopping = asyncio.create_task(this.stop.wait())
    beginning = asyncio.gather(*map(_is_listening, children))
    try:
        either: list[asyncio.Future[Any]] = [stopping, beginning]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if this.stop.is_set():
            return  # a signal to the whole process group may have ended the children already
        if not all(beginning.result()):
            raise ReceiverEnded
        log()
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
    sockets: Sequence[tuple[str, socket.socket]],
    lock: int | None,
    count: int,
) -> Child:
    words: list[str] = []
    for name, each in sockets:
        words += ["--inherited", name, str(each.fileno())]
    words += [] if lock is None else ["--lock", str(lock)]
    inherited = [each.fileno() for _, each in sockets] + ([] if lock is None else [lock])
    section = settings.intake
    environment = {
        "POSTROAD_HEALTH_HOST": "127.0.0.1",
        "POSTROAD_HEALTH_PORT": "0",  # the parent answers the probes
        "POSTROAD_INTAKE_MAX_SESSIONS": str(-(-section.max_sessions // count)),
    }
    if section.file is None:
        environment["POSTROAD_INTAKE_RELAY_FROM"] = str(rules_of(section).relay_from)
    else:
        environment["POSTROAD_INTAKE_FILE"] = str(section.file)
    if settings.worker.delivery_file is not None:
        environment["POSTROAD_WORKER_DELIVERY_FILE"] = str(settings.worker.delivery_file)
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
