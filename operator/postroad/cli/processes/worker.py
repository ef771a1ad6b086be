"""`postroad worker`: delivers the mail of a queue to a next hop, by routes, or to a program; the
options of all commands that deliver."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from pydantic import SecretStr

from postroad.cli.options import queue_option
from postroad.cli.processes.delivering import deliver, target_and_file
from postroad.cli.processes.event_loop import within_descriptors
from postroad.cli.processes.long_running import process, run
from postroad.delivery_settings.files import read_hop
from postroad.delivery_settings.hops import Hop
from postroad.domain.smtp.next_hops import SOCKET_SCHEME, TlsMode, split_host_port
from postroad.errors import InvalidInput, InvalidSettings
from postroad.settings import Settings, from_environment

relay_option = click.option(
    "--relay",
    metavar="HOST[:PORT]|unix:PATH|{FIELD: VALUE, ...}",
    help="The next hop (default port: 25, or 465 with --tls implicit), the Unix socket of an LMTP "
    "server, or all fields of a smart host in YAML, as the file of --delivery has them: '{host: "
    "smtp.example.org, tls: {mode: Required}, login: {folder: /run/login}}'.",
)
tls_option = click.option(
    "--tls",
    type=click.Choice([mode.value for mode in TlsMode]),
    help="Of --relay. none: never. opportunistic (the default): where the next hop offers it, "
    "whatever its certificate. encrypted: always, whatever its certificate. required: only with a "
    "certificate that verifies. implicit: the same, with TLS from the first octet on.",
)
concurrency_option = click.option(
    "--concurrency",
    type=click.IntRange(1),
    help="Connections to next hops at most, and by routes half as many again that wait for theirs "
    "(or POSTROAD_WORKER_CONCURRENCY; default: 200).",
)


delivery_option = click.option(
    "--delivery",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file of what is decided about delivery (YAML), such as the keys that sign mail, and "
    "where mail goes without --relay (or POSTROAD_WORKER_DELIVERY_FILE).",
)


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


def hop_of(relay: str | None, tls: str | None) -> Hop | None:
    """Return the next hop that the command line names. Raises: click.UsageError."""
    if relay is None:
        if tls is not None:
            raise click.UsageError("--tls is of --relay: give both, or tls in the file")
        return None
    mode = None if tls is None else TlsMode(tls)
    try:
        if relay.startswith("{"):
            return read_hop(relay, mode)
        if relay.startswith(SOCKET_SCHEME):
            return read_hop({"socket": relay.removeprefix(SOCKET_SCHEME)}, mode)
        host, port = split_host_port(relay)
        return read_hop({"host": host, "port": port}, mode)
    except (InvalidInput, InvalidSettings) as error:
        raise click.BadParameter(error.explain(), param_hint="'--relay'") from error


def with_delivery(
    settings: Settings, concurrency: int | None, delivery: Path | None, more: Mapping[str, Any]
) -> Settings:
    """Return the settings with what the command line has of delivery; `more` by the names of
    settings (`webhook_…`, `function_…`)."""
    changes = {"concurrency": concurrency, "delivery_file": delivery}
    given = {field: value for field, value in changes.items() if value is not None}
    changed: dict[str, object] = {"worker": settings.worker.model_copy(update=given)}
    for program in ("webhook", "function"):
        own = {
            name.removeprefix(f"{program}_"): value
            for name, value in more.items()
            if name.startswith(f"{program}_") and value is not None
        }
        name = f"worker_{program}"
        changed[name] = getattr(settings, name).model_copy(update=own)
    return settings.model_copy(update=changed)


@click.command()
@queue_option
@relay_option
@tls_option
@concurrency_option
@delivery_option
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
    POSTROAD_HEALTH_PORT; 0: any free one)."""
    settings = within_descriptors(with_delivery(from_environment(), concurrency, delivery, more))
    run(settings, _deliver(settings, url, hop_of(relay, tls), create))


async def _deliver(settings: Settings, url: str, relay: Hop | None, create: bool) -> None:
    target, delivery = target_and_file(settings, relay)
    async with process(settings, url, create=create) as this:
        if this is not None:
            await deliver(this, settings, target, delivery)
