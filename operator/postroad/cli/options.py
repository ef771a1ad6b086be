"""Parts that all commands about one queue share: its URL, opening it, selecting mails, printing."""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from postroad.bootstrap import open_queue
from postroad.cli.progress import progress
from postroad.cli.tables import is_terminal
from postroad.domain.mail.mail import QUARANTINE
from postroad.domain.queues.documents import MailView
from postroad.domain.queues.selection import Selector, check_selected
from postroad.domain.smtp.next_hops import parse_host_port
from postroad.domain.values.instants import parse_moment, parse_period, rfc3339
from postroad.domain.values.networks import Networks
from postroad.domain.values.text import escaped, json_line
from postroad.errors import InvalidInput
from postroad.telemetry import logs

T = TypeVar("T")
Command = Callable[..., Any]


class ParsedType(click.ParamType[T]):
    """A value that `parse` reads from a text; its InvalidInput is wrong usage. What is no text is
    such a value already."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        try:
            return self._parse(value) if isinstance(value, str) else value
        except InvalidInput as error:
            self.fail(str(error), param, ctx)


class InstantType(ParsedType[datetime]):
    """A moment such as `2026-11-26`, `2026-11-26T10:00Z`, `yesterday`, or `4d`, for so long ago. It
    is in UTC where it has no zone, and a terminal gets it in full."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        moment = super().convert(value, param, ctx)
        if moment is not value and sys.stderr.isatty() and not (ctx and ctx.resilient_parsing):
            click.echo(f"{value} is {rfc3339(moment)}", err=True)
        return moment


def _checked_address(text: str) -> str:
    parse_host_port(text, 0)
    return text


BY_SPARK = "By Spark, of a queue with tables that is too large for one process (docs/lake.md)."

DURATION = ParsedType("duration", parse_period)
"""Such as `90s`, `1h30m`, `4d`."""

INSTANT = InstantType("moment", lambda text: parse_moment(text, datetime.now(UTC)))
NETWORKS = ParsedType("networks", Networks.parse)
"""Such as `10.0.0.0/8`, comma separated."""

LISTEN = ParsedType("address", _checked_address)
"""`HOST`, `HOST:PORT` or `[ADDRESS]:PORT`; port 0: any that is free."""

queue_option = click.option(
    "--queue",
    "url",
    metavar="URL",
    envvar="POSTROAD_QUEUE",
    required=True,
    show_envvar=True,
    help="embedded:///DIR, memory://NAME or distributed://NAMESPACE.NAME.",
)
queues_option = click.option(
    "--queue",
    "urls",
    metavar="URL",
    envvar="POSTROAD_QUEUE",
    multiple=True,
    required=True,
    help="embedded:///DIR or distributed://NAMESPACE.NAME; give several for several queues (or "
    "POSTROAD_QUEUE).",
)
lake_option = click.option(
    "--lake",
    "folder",
    type=click.Path(path_type=Path),
    help="The directory of the lake, of a queue in a directory.",
)
master_option = click.option(
    "--master", default="local[*]", help="Spark's master; default: this process."
)
james_option = click.option(
    "--conf",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="James' configuration directory: his property files have his servers and the secrets.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


def with_queue(command: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    """Run an async command on the queue of `--queue`, passed as `queue`."""

    @queue_option
    @wraps(command)
    def run(url: str, **options: Any) -> T:
        no_tracebacks()

        async def session() -> T:
            async with open_queue(url) as queue:
                return await command(queue=queue, **options)

        return asyncio.run(session())

    return run


def no_tracebacks() -> None:
    """Send warnings to standard error, and none of Cassandra's driver, whose tracebacks would stand
    before the error with which a command ends."""
    if not logging.getLogger().handlers:
        logs.configure("WARNING")  # else Python prints warnings without their fields
        logging.getLogger("cassandra").setLevel(logging.CRITICAL)


def is_given(option: str) -> bool:
    """Return whether the command line has an option of the present command."""
    source = click.get_current_context().get_parameter_source(option)
    return source is ParameterSource.COMMANDLINE


def by_spark(job: Command, flag: str = "--spark", text: str = BY_SPARK) -> Callable[[Command], Any]:
    """Add a flag with which `job` runs in place of the command, with its options and `master`."""

    def adding(command: Command) -> Command:
        @click.option(flag, "is_by_spark", is_flag=True, help=text)
        @master_option
        @wraps(command)
        def run(*, is_by_spark: bool, master: str, **options: Any) -> Any:
            if is_by_spark:
                return job(master=master, **options)
            if is_given("master"):
                raise click.UsageError(f"--master is for {flag}")
            return command(**options)

        return run

    return adding


def selecting(command: Command) -> Command:
    """Add the flags of a selector; the command gets it as `selector` (empty when none is given)."""

    @click.option("--sender", help="The reverse-path; '<>': the null one.")
    @click.option("--recipient", help="One of the recipients left.")
    @click.option("--name", help="The mail's name.")
    @click.option("--domain", help="The domain of one of the recipients left.")
    @click.option("--older-than", type=DURATION, help="Age since acceptance: 90m, 4d.")
    @click.option("--id", "enqueue_id", type=click.UUID, help="The enqueue id.")
    @click.option("--attribute", metavar="NAME=VALUE", help="An attribute.")
    @click.option("--all", "everything", is_flag=True, help="Every mail.")
    @wraps(command)
    def run(**options: Any) -> Any:
        fields = ("sender", "recipient", "name", "domain", "older_than", "enqueue_id", "attribute")
        given = {field: options.pop(field) for field in fields}
        return command(selector=_selector(everything=options.pop("everything"), **given), **options)

    return run


def _selector(*, everything: bool, **given: Any) -> Selector:
    chosen = {field: value for field, value in given.items() if value is not None}
    if everything and chosen:
        raise click.UsageError("--all cannot be combined with other selectors")
    for name in ("sender", "recipient", "domain"):
        try:
            if name in chosen:
                check_selected(name, chosen[name])
        except InvalidInput as error:
            raise click.UsageError(f"--{name}: {error.explain()}") from error
    # Behind the check: '' is a variable of a script that is not set, and would select all bounces.
    if chosen.get("sender") == "<>":
        chosen["sender"] = ""
    if "attribute" in chosen:
        name, equals, value = chosen["attribute"].partition("=")
        if not equals:
            raise click.UsageError("--attribute is NAME=VALUE")
        chosen["attribute"] = (name, value)
    return Selector.all() if everything else Selector(**chosen)


def on_purpose(selector: Selector) -> Selector:
    """Return a selector that selects something. Raises: click.UsageError, which names how to."""
    if selector.is_empty:
        raise click.UsageError("name the mails by a selector such as --sender, or give --all")
    return selector


def asking(verb: str, counted: Callable[..., int]) -> Callable[[Command], Command]:
    """Add `--yes`: without it, a terminal is asked whether so many mails shall be changed, as
    `counted` finds by the options of the command."""

    def adding(command: Command) -> Command:
        @click.option("--yes", "is_agreed", is_flag=True, help="Do not ask, as at a terminal.")
        @wraps(command)
        def run(*, is_agreed: bool, **options: Any) -> Any:
            if not is_agreed and is_terminal():
                is_large = options.get("is_by_spark")
                mails = "the selected mails" if is_large else plural(counted(**options), "mail")
                click.confirm(f"{verb} {mails} of {options['url']}?", abort=True)
            return command(**options)

        return run

    return adding


def say(value: object, *, as_json: bool, text: str) -> None:
    click.echo(json_line(value) if as_json else escaped(text))


async def say_count(counted: Awaitable[int], *, as_json: bool, verb: str) -> None:
    """Print how many mails an operation changed."""
    with progress("changing mails"):
        count = await counted
    say({"count": count}, as_json=as_json, text=f"{verb} {plural(count, 'mail')}")


def plural(count: int, noun: str) -> str:
    """Return a number with its noun: `1 mail`, `2 mails`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


VIEW_HEAD = ("ID", "ACCEPTED", "STATE", "OCTETS", "PRIORITY", "FROM", "TO", "REASON")


def view_cells(view: MailView) -> tuple[str, ...]:
    """Return a mail as people read it in a list, by VIEW_HEAD."""
    state = "held" if view.held else "delayed" if view.due_at else "due"
    recipients = view.mail.recipients
    more = f" and {len(recipients) - 1} more" if len(recipients) > 1 else ""
    return (
        str(view.enqueue_id),
        str(rfc3339(view.accepted_at)),
        "dead" if view.reason is not None else state,
        str(view.size_bytes),
        str(view.mail.priority or ""),
        view.mail.sender or "<>",
        f"{recipients[0]}{more}",
        view.reason or view.last_error or view.mail.attributes.get(QUARANTINE, ""),
    )
