"""`postroad mta`: a small MTA, which runs intake and worker over one queue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from postroad.batching import together
from postroad.bootstrap.targets import DeliveryTarget
from postroad.cli.options import queue_option
from postroad.cli.processes import intake, worker
from postroad.cli.processes.delivering import deliver, target_and_file
from postroad.cli.processes.event_loop import within_descriptors
from postroad.cli.processes.events import events_of
from postroad.cli.processes.long_running import process, run
from postroad.domain.values.networks import Networks
from postroad.errors import InvalidSettings
from postroad.settings import Settings, from_environment

if TYPE_CHECKING:
    from postroad.bootstrap.delivery_file import DeliveryFile


@click.command()
@queue_option
@intake.listen_option
@intake.relay_from_option
@intake.intake_option
@worker.relay_option
@worker.tls_option
@worker.concurrency_option
@worker.delivery_option
@worker.program_options
@click.option(
    "--receivers",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Processes that serve clients; 0: this one does.",
)
def mta(
    url: str,
    listen: str | None,
    relay_from: Networks | None,
    intake_file: Path | None,
    relay: str | None,
    tls: str | None,
    concurrency: int | None,
    delivery: Path | None,
    receivers: int,
    **more: Any,
) -> None:
    """Accept mail over SMTP into a queue, and deliver it to a next hop, by routes (--delivery), or
    to a program (--webhook or --function), until SIGTERM.

    With embedded:///DIR it needs no server; a missing directory is created.

    Serves probes and metrics on 127.0.0.1:8080 (POSTROAD_HEALTH_HOST; *: all addresses;
    POSTROAD_HEALTH_PORT; 0: any free one)."""
    if receivers and url.startswith("memory:"):
        raise InvalidSettings(
            "receivers cannot reach a queue in the memory of this process",
            hint="leave out --receivers, or use embedded:///DIR",
        )
    settings = worker.with_delivery(from_environment(), concurrency, delivery, more)
    settings = within_descriptors(intake.with_clients(settings, listen, relay_from, intake_file))
    listeners = intake.listeners_of(settings.intake)
    if intake.outbox_of(listeners) is not None:
        raise InvalidSettings(
            "an outbox is for `postroad intake`", hint="run intake and worker as two processes"
        )
    target, decided = target_and_file(settings, worker.hop_of(relay, tls))
    run(settings, _serve(settings, url, target, decided, listeners, receivers))


async def _serve(
    settings: Settings,
    url: str,
    target: DeliveryTarget,
    delivery: DeliveryFile | None,
    listeners: intake.Listeners,
    receivers: int,
) -> None:
    """End the process when intake or worker fails, so that its supervisor restarts both."""
    async with process(settings, url, create=True) as this:
        if this is None:
            return
        events_of(this, () if delivery is None else delivery.current.settings.events)
        if delivery is not None:
            this.suppression = delivery.current.settings.suppression_rules()
        async with together() as halves:
            halves.create_task(
                intake.receive_in_children(this, settings, url, listeners, receivers)
                if receivers
                else intake.receive(this, settings, listeners)
            )
            halves.create_task(deliver(this, settings, target, delivery))
