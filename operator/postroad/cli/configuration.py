"""`postroad config show|history|check|adopt`: the configuration history of a queue's view."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TextIO, TypeVar

import click

from postroad.bootstrap.configuration_histories import ConfigurationOf, open_history
from postroad.cli import plan_output
from postroad.cli.queue_options import DURATION, json_option, say
from postroad.configuration.evidence import has_rows, observe, used_configurations
from postroad.configuration.store import adopt as record_adoption
from postroad.domain.configuration.advice import advise
from postroad.domain.configuration.documents import Document, configuration_document, to_document
from postroad.domain.configuration.history import Configured, replay
from postroad.domain.configuration.rollout import first_rollout
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.errors import HistoryMissing, InvalidInput, QueueNotFound, ServerError
from postroad.ports.history import Recorded

T = TypeVar("T")

queue_argument = click.argument("queue", envvar="POSTROAD_QUEUE")

REFUSED = 1


@click.group()
def config() -> None:
    """See and check how a queue's view is configured, and what it was configured before.

    QUEUE is NAMESPACE.NAME or distributed://NAMESPACE.NAME (default: POSTROAD_QUEUE).
    """


def wanting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a wanted configuration."""
    for option in (
        click.option("--update-browse-start-pace", type=click.IntRange(min=1), metavar="N"),
        click.option("--bucket-count", type=click.IntRange(min=1), metavar="N"),
        click.option("--slice-window", type=DURATION, metavar="DURATION", help="As in 30m."),
    ):
        command = option(command)
    return command


def changed(
    configuration: ViewConfiguration,
    slice_window: timedelta | None,
    bucket_count: int | None,
    update_browse_start_pace: int | None,
) -> ViewConfiguration:
    """Return a configuration with what is given changed."""
    pace = update_browse_start_pace
    return ViewConfiguration(
        configuration.slice_window if slice_window is None else slice_window,
        configuration.bucket_count if bucket_count is None else bucket_count,
        configuration.update_browse_start_pace if pace is None else pace,
    )


def adopted(
    slice_window: timedelta | None,
    bucket_count: int | None,
    update_browse_start_pace: int | None,
) -> ViewConfiguration | None:
    """Return the configuration that a person says, None when nothing is said.

    Half a word would be filled up with defaults, which nobody said: window and buckets go together.
    """
    if slice_window is None and bucket_count is None:
        if update_browse_start_pace is not None:
            raise click.UsageError("say --slice-window and --bucket-count too")
        return None
    if slice_window is None or bucket_count is None:
        raise click.UsageError("say both --slice-window and --bucket-count")
    return changed(ViewConfiguration(), slice_window, bucket_count, update_browse_start_pace)


@config.command()
@queue_argument
@json_option
def show(queue: str, as_json: bool) -> None:
    """Show the accepted configuration, and how far it has spread."""

    async def look(opened: ConfigurationOf) -> None:
        recorded = await opened.history.load()
        state = await _state(opened, recorded)
        rollout = recorded.rollout or first_rollout(recorded.events)
        values = {
            "queue": str(opened.name),
            "version": state.version,
            **configuration_document(state.configuration),
            "accepted_at": to_document(recorded.events[-1])["at"],
            "writing_version": rollout.writing,
            "oldest_version": rollout.oldest,
        }
        text = f"version {state.version}: {plan_output.configuration_text(state.configuration)}"
        if rollout.writing != state.version:
            text += f"\nstill written under version {rollout.writing}: a lease has to pass"
        if rollout.oldest != rollout.writing:
            text += f"\nread under versions {rollout.oldest} to {state.version}"
        say(values, as_json=as_json, text=text)

    _with(queue, look)


@config.command()
@queue_argument
@json_option
def history(queue: str, as_json: bool) -> None:
    """List all changes, accepted and refused, oldest first."""

    async def look(opened: ConfigurationOf) -> None:
        recorded = await opened.history.load()
        await _state(opened, recorded)
        for event in recorded.events:
            say(to_document(event), as_json=as_json, text=plan_output.event_text(event))

    _with(queue, look)


@config.command()
@queue_argument
@wanting
@json_option
def check(
    queue: str,
    slice_window: timedelta | None,
    bucket_count: int | None,
    update_browse_start_pace: int | None,
    as_json: bool,
) -> None:
    """Say what a change would lead to; what is not given stays. Exits with 1 when refused.

    Adds which window and bucket count suit the mail that the view knows of, and why: advice, which
    changes neither the queue nor the exit code.
    """

    async def look(opened: ConfigurationOf) -> bool:
        events = (await opened.history.load()).events
        if not events and await has_rows(opened.view):
            raise HistoryMissing
        state = replay(events)
        now = state.configuration if state else ViewConfiguration()
        wanted = changed(now, slice_window, bucket_count, update_browse_start_pace)
        outcome = plan_output.outcome_of(str(opened.name), events, wanted)
        advised = await _advice(opened, state.configuration if state else wanted)
        return plan_output.say_outcome(outcome | {"advice": advised}, as_json=as_json)

    if not _with(queue, look):
        sys.exit(REFUSED)


@config.command()
@queue_argument
@click.option("--reason", required=True, help="What happened, for the history.")
@click.option(
    "--status",
    type=click.File(),
    help="The resource, as `kubectl get mailqueue NAME -o json` prints it; - for standard input.",
)
@wanting
@json_option
def adopt(
    queue: str,
    reason: str,
    status: TextIO | None,
    slice_window: timedelta | None,
    bucket_count: int | None,
    update_browse_start_pace: int | None,
    as_json: bool,
) -> None:
    """Record how a queue is configured whose history was lost, restored or forked.

    What the resource's status remembers is brought back first; without other options, its last
    configuration is adopted. Nothing that rows are known to lie under may become unreachable.
    """
    entries = _entries(status.read()) if status else []
    wanted = adopted(slice_window, bucket_count, update_browse_start_pace)
    _with(queue, lambda opened: adopt_into(opened, wanted, reason, entries, as_json=as_json))


async def adopt_into(
    opened: ConfigurationOf,
    wanted: ViewConfiguration | None,
    reason: str,
    status: list[dict[str, Any]],
    *,
    as_json: bool,
) -> None:
    """Record an adoption and print it. Raises as `configuration.store.adopt`."""
    if wanted is not None and not status:
        plan_output.note("without --status, a status that remembers more will still be in conflict")
    settled = await record_adoption(
        opened.history,
        wanted,
        at=datetime.now(UTC),
        by="config adopt",
        reason=reason,
        status=status,
        used=await used_configurations(opened.view),
    )
    assert settled.appended is not None
    say(
        to_document(settled.appended),
        as_json=as_json,
        text=plan_output.event_text(settled.appended),
    )


def _entries(text: str) -> list[dict[str, Any]]:
    """Return the history's entries of a resource, a status, or a bare list."""
    try:
        found = json.loads(text)
        if isinstance(found, dict):
            found = found.get("status", found).get("history", [])
        return [dict(each) for each in found]
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidInput("--status is not the JSON of a MailQueue") from error


async def _advice(opened: ConfigurationOf, present: ViewConfiguration) -> Document | None:
    """Return the advice as a document; None, with a note, when a server does not let it be given:
    what was asked is answered all the same."""
    try:
        seen = await observe(opened.view)
    except ServerError as error:
        plan_output.note(f"no advice, because the view could not be read: {error}")
        return None
    return plan_output.advice_document(present, advise(present, seen), seen)


async def _state(opened: ConfigurationOf, recorded: Recorded) -> Configured:
    state = replay(recorded.events)
    if state is None:
        if await has_rows(opened.view):
            raise HistoryMissing
        raise QueueNotFound(f"{opened.name} has no configuration history")
    return state


def _with(queue: str, work: Callable[[ConfigurationOf], Awaitable[T]]) -> T:
    async def session() -> T:
        async with open_history(queue) as opened:
            return await work(opened)

    return asyncio.run(session())
