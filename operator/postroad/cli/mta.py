"""`postroad mta`: a small MTA: what intake and worker do, over one queue."""

from __future__ import annotations

import asyncio
import ssl

import click

from postroad.cli.delivering import deliver, next_hop, with_relay
from postroad.cli.queues import LISTEN, RELAY, queue_option
from postroad.cli.receivers import receive_in_children
from postroad.cli.receiving import receive, tls_context, with_address
from postroad.cli.serving import process, run
from postroad.domain.nexthops import NextHop, TlsMode
from postroad.errors import InvalidSettings, PostroadError
from postroad.settings import Settings, from_environment


@click.command()
@queue_option
@click.option(
    "--listen",
    type=LISTEN,
    metavar="HOST:PORT",
    help="Where to listen (or POSTROAD_INTAKE_PORT).",
)
@click.option(
    "--relay",
    type=RELAY,
    metavar="HOST[:PORT]",
    help="The next hop (or POSTROAD_WORKER_RELAY_HOST).",
)
@click.option(
    "--tls", type=click.Choice([mode.value for mode in TlsMode]), help="How far TLS is needed."
)
@click.option("--concurrency", type=click.IntRange(1), help="Mails in flight at the same time.")
@click.option(
    "--receivers",
    type=click.IntRange(0),
    default=0,
    help="Processes that talk to clients; 0: this one does it too.",
)
def mta(
    url: str,
    listen: str | None,
    relay: str | None,
    tls: str | None,
    concurrency: int | None,
    receivers: int,
) -> None:
    """Accept mail over SMTP into a queue, and hand it to a next hop, until SIGTERM.

    With embedded:///DIR nothing else is needed; the directory is made when it is missing.
    """
    if receivers and url.startswith("memory:"):
        raise InvalidSettings("a queue in this process' memory cannot be reached by receivers")
    settings = with_address(with_relay(from_environment(), relay, tls, concurrency), listen)
    tls_offered = tls_context(settings.intake)
    run(settings, _serve(settings, url, next_hop(settings), tls_offered, receivers))


async def _serve(
    settings: Settings, url: str, hop: NextHop, tls: ssl.SSLContext | None, receivers: int
) -> None:
    """When either half fails the process ends, and whoever started it starts it again."""
    async with process(settings, url, create=True) as this:
        if this is None:
            return
        try:
            async with asyncio.TaskGroup() as halves:
                if receivers:
                    halves.create_task(receive_in_children(this, settings, url, receivers))
                else:
                    halves.create_task(receive(this, settings, tls))
                halves.create_task(deliver(this, settings, hop))
        except ExceptionGroup as group:
            ours = group.subgroup(PostroadError) or group
            raise ours.exceptions[0] from group
