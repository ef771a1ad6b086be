"""`postroad config show|history|check|adopt` and `kubectl mailqueue plan|adopt`: the configuration
history of a queue's view, and a resource's configuration before it is applied.

The first read the history in Cassandra. The others read the resource with `kubectl` itself, so that
its contexts and credentials are the user's.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import wraps
from typing import Any, BinaryIO, TextIO, TypeVar

import click

from postroad.bootstrap.configuration_histories import ConfigurationOf, open_history
from postroad.cli import configuration_output as output
from postroad.cli.kubectl import Kubectl, Resource, with_kubectl
from postroad.cli.manifests import mail_queues, queue_of, specification_after
from postroad.cli.queue_options import DURATION, json_option, say
from postroad.configuration import store
from postroad.configuration.evidence import has_rows, observe, used_configurations
from postroad.domain.configuration.advice import advise
from postroad.domain.configuration.consistency import REASON_BYTES, check_reason, readable
from postroad.domain.configuration.documents import (
    Document,
    configuration_document,
    configuration_from,
    to_document,
)
from postroad.domain.configuration.history import ConfigurationEvent, Configured, replay
from postroad.domain.configuration.rollout import first_rollout
from postroad.domain.configuration.rules import FIELD_NAMES, ViewConfiguration
from postroad.domain.names import QueueName
from postroad.errors import (
    HistoryMissing,
    InvalidInput,
    KubernetesRefused,
    KubernetesUnavailable,
    QueueNotFound,
    ServerError,
)
from postroad.ports.history import Recorded

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

    QUEUE is NAMESPACE.NAME or distributed://NAMESPACE.NAME (default: POSTROAD_QUEUE).
    """


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
        text = f"version {state.version}: {output.configuration_text(state.configuration)}"
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
            say(to_document(event), as_json=as_json, text=output.event_text(event))

    _with(queue, look)


@config.command()
@queue_argument
@wanting
@json_option
def check(queue: str, given: Given, as_json: bool) -> None:
    """Show what a change would lead to; what is not given stays. Exits with 1 when refused.

    Adds which window and bucket count suit the mail that the view knows of, and why: advice, which
    changes neither the queue nor the exit code.
    """

    async def look(opened: ConfigurationOf) -> bool:
        events = (await opened.history.load()).events
        if not events and await has_rows(opened.view):
            raise HistoryMissing
        state = replay(events)
        wanted = replace(state.configuration if state else ViewConfiguration(), **given)
        outcome = output.outcome_of(str(opened.name), events, wanted)
        outcome["advice"] = await _advice(opened, state.configuration if state else wanted)
        return output.say_outcome(outcome, as_json=as_json)

    if not _with(queue, look):
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
    configuration is adopted. Nothing that rows are known to lie under may become unreachable.
    """
    try:
        entries = _entries(json.loads(status.read())) if status else []
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidInput("--status is not the JSON of a MailQueue") from error
    _adopt(queue, given, reason, entries, as_json=as_json)


@click.command("adopt")
@with_kubectl
@click.argument("name")
@reason_option
@wanting
@json_option
def adopt_resource(kubectl: Kubectl, name: str, reason: str, given: Given, as_json: bool) -> None:
    """Record how the queue NAME is configured whose history was lost, restored or forked.

    Brings back to Cassandra (POSTROAD_CASSANDRA_*) what the resource's status remembers.
    """
    namespace = kubectl.default_namespace()
    entries = _entries(kubectl.require(name, namespace))
    _adopt(str(QueueName(namespace, name)), given, reason, entries, as_json=as_json)


@click.command()
@with_kubectl
@click.option(
    "-f",
    "--filename",
    "manifests",
    type=click.File("rb"),
    multiple=True,
    required=True,
    help="Manifests as for kubectl apply; - for standard input. What is no MailQueue is passed by.",
)
@click.option(
    "--from-view",
    is_flag=True,
    help="Decide by the history in Cassandra (POSTROAD_CASSANDRA_*) instead of the status.",
)
@json_option
def plan(kubectl: Kubectl, manifests: tuple[BinaryIO, ...], from_view: bool, as_json: bool) -> None:
    """Show what applying MailQueues would do to their view configurations.

    Nothing is changed. A field that a manifest leaves out keeps its stored value, as it does with
    kubectl apply, unless the last apply named it. Exits with 1 when one of them would be refused,
    for CI in GitOps repositories; with 75 when that cannot be found out now.
    """
    accepted = []
    for resource in mail_queues(manifests):
        queue = queue_of(resource, kubectl)
        stored = _stored(kubectl, queue, is_needed=not from_view)
        wanted = configuration_from(specification_after(resource, stored).get("view") or {})
        events = _recorded(queue) if from_view else _remembered(stored, queue)
        outcome = output.outcome_of(str(queue), events, wanted)
        accepted.append(output.say_outcome(outcome, as_json=as_json))
    if not accepted:
        raise click.UsageError("there is no MailQueue in the manifests")
    if not all(accepted):
        sys.exit(REFUSED)


def _adopt(
    queue: str, given: Given, reason: str, status: Sequence[Document], *, as_json: bool
) -> None:
    """Record an adoption and print it. Window and buckets go together, because defaults in the
    place of one would be adopted as if the administrator had given them."""
    if given and not {"slice_window", "bucket_count"} <= given.keys():
        raise click.UsageError("give both --slice-window and --bucket-count")
    if given and not status:
        output.note("without --status, a status that remembers more will still be in conflict")

    async def record(opened: ConfigurationOf) -> None:
        settled = await store.adopt(
            opened.history,
            ViewConfiguration(**given) if given else None,
            at=datetime.now(UTC),
            by="config adopt",
            reason=reason,
            status=status,
            used=await used_configurations(opened.view),
        )
        assert settled.appended is not None
        text = output.event_text(settled.appended)
        say(to_document(settled.appended), as_json=as_json, text=text)

    _with(queue, record)


def _entries(resource: Any) -> list[Document]:
    """Return the history's entries of a resource, a status, or a bare list."""
    if isinstance(resource, dict):
        resource = (resource.get("status", resource) or {}).get("history") or []
    return [dict(each) for each in resource]


async def _advice(opened: ConfigurationOf, present: ViewConfiguration) -> Document | None:
    """Return the advice as a document; None, with a note, where a server does not answer, so that
    the check itself is answered all the same."""
    try:
        seen = await observe(opened.view)
    except ServerError as error:
        output.note(f"no advice, because the view could not be read: {error}")
        return None
    return output.advice_document(present, advise(present, seen), seen)


async def _state(opened: ConfigurationOf, recorded: Recorded) -> Configured:
    state = replay(recorded.events)
    if state is None:
        if await has_rows(opened.view):
            raise HistoryMissing
        raise QueueNotFound(f"{opened.name} has no configuration history")
    return state


def _stored(kubectl: Kubectl, queue: QueueName, *, is_needed: bool) -> Resource | None:
    """Return the resource as the cluster has it. Raises: KubernetesUnavailable, KubernetesRefused
    when it is needed."""
    try:
        return kubectl.find(queue.name, queue.namespace)
    except (KubernetesUnavailable, KubernetesRefused):
        if is_needed:
            raise
        output.note(f"{queue}: not read from the cluster; what is left out counts as its default")
        return None


def _remembered(stored: Resource | None, queue: QueueName) -> tuple[ConfigurationEvent, ...]:
    """Return what the resource's status remembers; nothing for a queue that is new."""
    entries = _entries(stored or {})
    if not entries and os.environ.get("POSTROAD_CASSANDRA_CONTACT_POINTS"):
        return _recorded(queue)
    if not entries:
        output.note(f"{queue}: no status yet; data that wait in Cassandra may decide otherwise")
    return readable(entries)


def _recorded(queue: QueueName) -> tuple[ConfigurationEvent, ...]:
    async def load(opened: ConfigurationOf) -> tuple[ConfigurationEvent, ...]:
        return (await opened.history.load()).events

    return _with(str(queue), load)


def _with(queue: str, work: Callable[[ConfigurationOf], Awaitable[T]]) -> T:
    async def session() -> T:
        async with open_history(queue) as opened:
            return await work(opened)

    return asyncio.run(session())
