"""`postroad worker`: delivers the mail of a queue to a next hop, by routes, or to a program."""

from pathlib import Path
from typing import Any

import click

from postroad.cli.options import queue_option
from postroad.cli.processes import delivery_options
from postroad.cli.processes.delivering import deliver, target_and_file
from postroad.cli.processes.event_loop import within_descriptors
from postroad.cli.processes.long_running import process, run
from postroad.delivery_settings.hops import Hop
from postroad.settings import Settings, from_environment


@click.command()
@queue_option
@delivery_options.relay_option
@delivery_options.tls_option
@delivery_options.concurrency_option
@delivery_options.delivery_option
@delivery_options.program_options
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
    settings = within_descriptors(
        delivery_options.with_delivery(from_environment(), concurrency, delivery, more)
    )
    run(settings, _deliver(settings, url, delivery_options.hop_of(relay, tls), create))


async def _deliver(settings: Settings, url: str, relay: Hop | None, create: bool) -> None:
    target, delivery = target_and_file(settings, relay)
    async with process(settings, url, create=create) as this:
        if this is not None:
            await deliver(this, settings, target, delivery)
