"""`postroad console`: queues over HTTP, for administrators of this machine."""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from postroad.adapters.clocks import MachineClock
from postroad.administration.suppression import keeps_hashes
from postroad.bootstrap import open_queue
from postroad.cli.options import LISTEN, queues_option
from postroad.cli.processes.long_running import run
from postroad.domain.smtp.next_hops import parse_host_port
from postroad.domain.values.networks import is_loopback
from postroad.errors import InvalidInput, InvalidSettings
from postroad.settings import Settings, from_environment
from postroad.telemetry.health import Readiness

if TYPE_CHECKING:
    from postroad.administration.configuration import ConfigurationOf
    from postroad.console.api.server import ConsoleServer
    from postroad.console.queues import ConsoleQueue


@click.command()
@queues_option
@click.option(
    "--listen",
    type=LISTEN,
    default="127.0.0.1:8600",
    show_default=True,
    help="An address of loopback; port 0: any that is free.",
)
@click.option(
    "--log",
    "attempt_log",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="POSTROAD_WORKER_ATTEMPT_LOG",
    help="The folder of the workers' attempt log, for attempts and traces (or "
    "POSTROAD_WORKER_ATTEMPT_LOG).",
)
@click.option(
    "--reports",
    type=click.Path(file_okay=False, path_type=Path),
    help="A folder with a folder NAMESPACE/NAME for each queue that `postroad pipeline report` "
    "writes.",
)
def console(
    urls: tuple[str, ...], listen: str, attempt_log: Path | None, reports: Path | None
) -> None:
    """Serve queues over HTTP, until SIGTERM: a page, and for programs an API, described
    at /api/v1/openapi.json.

    The first line that it prints is a link that is good once, for 15 minutes, and leads to a
    session; SIGHUP prints another one. Probes and metrics are at the same address."""
    host, port = parse_host_port(listen, 0)
    if not is_loopback(host):
        raise InvalidInput(
            "a console listens on loopback, because its link gives all rights",
            hint="take --listen 127.0.0.1:8600, and reach it by `ssh -L 8600:127.0.0.1:8600`",
        )
    settings = from_environment()
    run(settings, _serve(settings, urls, host, port, attempt_log, reports))


async def _serve(
    settings: Settings,
    urls: tuple[str, ...],
    host: str,
    port: int,
    attempt_log: Path | None,
    reports: Path | None,
) -> None:
    from postroad.console.api.access import Console
    from postroad.console.api.server import ConsoleServer
    from postroad.console.queues import ConsoleQueue, OpenQueues, names_of
    from postroad.console.rights import SessionRights

    readiness = Readiness()
    listening = listen_on(host, port)
    async with AsyncExitStack() as opened:
        opened.callback(listening.close)
        is_hashed = keeps_hashes(settings.worker.delivery_file)
        queues = [
            ConsoleQueue(
                name,
                await opened.enter_async_context(open_queue(url, settings=settings)),
                attempt_log,
                await _configuration_of(url, settings, opened),
                is_hashed,
                report=None
                if reports is None
                else reports / name.namespace / name.name / "index.html",
            )
            for name, url in zip(names_of(urls), urls, strict=True)
        ]
        served = Console.over(OpenQueues(queues), SessionRights(), MachineClock())
        opened.push_async_callback(served.operations.close)
        serving = ConsoleServer(listening, served, readiness)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, lambda: _print_link(serving.new_link()))
        readiness.opened(partial(_check_open, queues))
        _print_link(serving.new_link())
        await serve_until_signal(serving)


async def _configuration_of(
    url: str, settings: Settings, opened: AsyncExitStack
) -> ConfigurationOf | None:
    if url.startswith("embedded:"):
        return None
    from postroad.bootstrap.distributed import open_history

    return await opened.enter_async_context(open_history(url, settings))


def _check_open(queues: list[ConsoleQueue]) -> None:
    for each in queues:
        each.queue.check_open()


def _print_link(link: str) -> None:
    click.echo(f"open {link}")


async def serve_until_signal(serving: ConsoleServer) -> None:
    from postroad.console.api.server import serve

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve(serving, stop)


def listen_on(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, dualstack_ipv6=host == "::")
    except OSError as error:
        raise InvalidSettings(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="take another port with --listen, such as 127.0.0.1:0 for any that is free",
        ) from error
