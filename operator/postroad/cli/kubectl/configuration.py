"""`postroad config show|history|check|adopt|import-james`: the configuration history of a queue's
view, as Cassandra has it; its advice and outcomes as text."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial, wraps
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click

from postroad import configuration
from postroad.administration.configuration import (
    ConfigurationOf,
    planned,
    present_document,
    state_of,
)
from postroad.cli.options import DURATION, james_option, json_option, plural, say
from postroad.configuration import has_rows, used_configurations
from postroad.domain.configuration.consistency import REASON_BYTES, check_reason
from postroad.domain.configuration.documents import Document, to_document
from postroad.domain.configuration.history import (
    ConfigurationEvent,
    first_rollout,
)
from postroad.domain.configuration.rules import FIELD_NAMES, ViewConfiguration, value_of
from postroad.errors import (
    ConfigurationRefused,
    InvalidInput,
)
from postroad.james.hiding import left_to_record


def say_outcome(outcome: Document, *, as_json: bool) -> bool:
    """Print an outcome; return whether it is accepted."""
    lines = [f"{outcome['queue']}: {outcome['outcome']}"]
    lines += [f"  {each['field']}: {_change(each)}" for each in outcome.get("changes", ())]
    if outcome["outcome"] == "refused":
        lines.append(f"  {outcome['message']}")
    elif outcome["outcome"] != "unchanged":
        lines.append(f"  would be version {outcome['version']}")
    if outcome.get("advice") is not None:
        lines += _advice_lines(outcome["advice"])
    say(outcome, as_json=as_json, text="\n".join(lines))
    return bool(outcome["outcome"] != "refused")


def _advice_lines(advice: Document) -> list[str]:
    basis, since = plural(advice["closed_slices"], "closed slice"), advice["since"]
    lines = [f"  advice, from {basis}{f' since {since}' if since else ''}:"]
    for name in ("sliceWindow", "bucketCount"):
        present, value = advice[name]["present"], advice[name]["value"]
        change = f"keep {value}" if value == present else f"{present} -> {value}"
        lines.append(f"    {name}: {change}; {advice[name]['reason']}")
    return lines


def event_text(event: ConfigurationEvent) -> str:
    """Return an event as people read it in a list: one line."""
    document = to_document(event)
    changes = [f"{each['field']} {_change(each)}" for each in document.get("changes", ())]
    parts = [
        f"{event.sequence:>4}",
        f"v{document['version']}" if "version" in document else "-",
        document["at"],
        document["type"],
        ", ".join(changes or (f"{field} {document[field]}" for field in FIELD_NAMES.values())),
        f"({count} events folded)" if (count := document.get("count")) else "",
        document.get("message", ""),
        f"by {event.by}" if event.by else "",
        f"generation {event.generation}" if event.generation is not None else "",
    ]
    return "  ".join(part for part in parts if part)


def _change(change: Document) -> str:
    return f"{change['from']} -> {change['to']}"


def configuration_text(configuration: ViewConfiguration) -> str:
    return ", ".join(
        f"{name} {value_of(configuration, attribute)}" for attribute, name in FIELD_NAMES.items()
    )


def note(text: str) -> None:
    """Print a remark beside the result, on standard error, which scripts do not parse."""
    click.echo(text, err=True)


T = TypeVar("T")
Given = dict[str, Any]
"""The fields of a configuration that options give, by attribute."""

queue_argument = click.argument("queue", envvar="POSTROAD_QUEUE")


def _checked_reason(_context: click.Context, _option: click.Parameter, reason: str) -> str:
    """Check a reason before a server is asked."""
    check_reason(reason)
    return reason


reason_option = click.option(
    "--reason",
    required=True,
    callback=_checked_reason,
    help=f"What happened, for the history; at most {REASON_BYTES} bytes as JSON.",
)

REFUSED = 1


def wanting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a wanted configuration; the command gets those given as `given`."""

    @click.option("--slice-window", type=DURATION, metavar="DURATION", help="As in 30m.")
    @click.option("--bucket-count", type=click.IntRange(min=1), metavar="N")
    @click.option("--update-browse-start-pace", type=click.IntRange(min=1), metavar="N")
    @wraps(command)
    def run(**options: Any) -> Any:
        fields = {field: options.pop(field) for field in FIELD_NAMES}
        given = {field: value for field, value in fields.items() if value is not None}
        return command(given=given, **options)

    return run


@click.group()
def config() -> None:
    """See and check how a queue's view is configured, and what it was configured before.

    QUEUE is NAMESPACE.NAME or distributed://NAMESPACE.NAME (default: POSTROAD_QUEUE)."""


@config.command()
@queue_argument
@json_option
def show(queue: str, as_json: bool) -> None:
    """Show the accepted configuration, and how far it has spread."""

    async def look(opened: ConfigurationOf) -> None:
        recorded = await opened.history.load()
        state = await state_of(opened, recorded)
        rollout = recorded.rollout or first_rollout(recorded.events)
        values = present_document(opened, recorded, state)
        text = f"version {state.version}: {configuration_text(state.configuration)}"
        if rollout.writing != state.version:
            text += f"\nstill written under version {rollout.writing}: a lease has to pass"
        if rollout.oldest != rollout.writing:
            text += f"\nread under versions {rollout.oldest} to {state.version}"
        say(values, as_json=as_json, text=text)

    with_history(queue, look)


@config.command()
@queue_argument
@json_option
def history(queue: str, as_json: bool) -> None:
    """List all changes, accepted and refused, oldest first."""

    async def look(opened: ConfigurationOf) -> None:
        recorded = await opened.history.load()
        await state_of(opened, recorded)
        for event in recorded.events:
            say(to_document(event), as_json=as_json, text=event_text(event))

    with_history(queue, look)


@config.command()
@queue_argument
@wanting
@json_option
def check(queue: str, given: Given, as_json: bool) -> None:
    """Show what a change would lead to; what is not given stays. Exits with 1 when refused.

    Adds which window and bucket count suit the mail that the view knows of, and why: advice, which
    changes neither the queue nor the exit code."""

    async def look(opened: ConfigurationOf) -> bool:
        outcome, problem = await planned(opened, given)
        if problem is not None:
            note(problem)
        return say_outcome(outcome, as_json=as_json)

    if not with_history(queue, look):
        sys.exit(REFUSED)


@config.command()
@queue_argument
@reason_option
@click.option(
    "--status",
    type=click.File(),
    help="The resource, as `kubectl get mailqueue NAME -o json` prints it; - for standard input.",
)
@wanting
@json_option
def adopt(queue: str, reason: str, status: TextIO | None, given: Given, as_json: bool) -> None:
    """Record how a queue is configured whose history was lost, restored or forked.

    What the resource's status remembers is brought back first; without other options, its last
    configuration is adopted. Nothing that rows are known to lie under may become unreachable."""
    try:
        entries = entries_of(json.loads(status.read())) if status else []
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidInput("--status is not the JSON of a MailQueue") from error
    record_adoption(queue, given, reason, entries, as_json=as_json)


@config.command("import-james")
@queue_argument
@james_option
@json_option
def import_james(queue: str, conf: Path, as_json: bool) -> None:
    """Begin the history of a queue with the configurations that a James server recorded.

    A call that was cut short is finished by the next one."""
    from postroad.james.tables import recorded_configurations

    async def begin(opened: ConfigurationOf) -> None:
        found = await recorded_configurations(conf)
        events = (await opened.history.load()).events
        for wanted in left_to_record(events, found):
            settled = await configuration.settle(
                opened.history,
                wanted,
                at=datetime.now(UTC),
                by="config import-james",
                has_data=partial(has_rows, opened.view),
            )
            if settled.refusal is not None:
                raise ConfigurationRefused(settled.refusal.message)
            if settled.appended is not None:
                text = event_text(settled.appended)
                say(to_document(settled.appended), as_json=as_json, text=text)

    with_history(queue, begin)


def record_adoption(
    queue: str, given: Given, reason: str, status: Sequence[Document], *, as_json: bool
) -> None:
    """Record an adoption and print it. Window and buckets go together, because defaults in the
    place of one would be adopted as if the administrator had given them."""
    if given and not {"slice_window", "bucket_count"} <= given.keys():
        raise click.UsageError("give both --slice-window and --bucket-count")
    if given and not status:
        note("without --status, a status that remembers more will still be in conflict")

    async def record(opened: ConfigurationOf) -> None:
        settled = await configuration.adopt(
            opened.history,
            ViewConfiguration(**given) if given else None,
            at=datetime.now(UTC),
            by="config adopt",
            reason=reason,
            status=status,
            used=await used_configurations(opened.view),
        )
        assert settled.appended is not None
        text = event_text(settled.appended)
        say(to_document(settled.appended), as_json=as_json, text=text)

    with_history(queue, record)


def entries_of(resource: Any) -> list[Document]:
    """Return the history's entries of a resource, a status, or a bare list."""
    if isinstance(resource, dict):
        resource = (resource.get("status", resource) or {}).get("history") or []
    return [dict(each) for each in resource]


def with_history(queue: str, work: Callable[[ConfigurationOf], Awaitable[T]]) -> T:
    from postroad.bootstrap.distributed import open_history

    async def session() -> T:
        async with open_history(queue) as opened:
            return await work(opened)

    return asyncio.run(session())
