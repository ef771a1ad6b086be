"""The options of commands that deliver: to a next hop, by routes, or to a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from pydantic import SecretStr

from postroad.cli.options import RELAY
from postroad.domain.smtp.next_hops import SOCKET_SCHEME, TlsMode, parse_host_port
from postroad.domain.smtp.sasl_client import Mechanism
from postroad.settings import Settings

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
    help="Connections to next hops at most, and by routes half as many again that wait for theirs "
    "(or POSTROAD_WORKER_CONCURRENCY; default: 200).",
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
