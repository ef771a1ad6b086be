"""`kubectl mailqueue status|events|top|config history`: the operator's reports about MailQueues.
They ask no server of the queue, and need no right but to read resources."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import click

from postroad.cli.kubectl import configuration
from postroad.cli.kubectl.plugin import RESOURCE, Kubectl, Resource, with_kubectl
from postroad.cli.options import DURATION, json_option, say
from postroad.cli.tables import Rates, watch
from postroad.controller.kubernetes.api import GROUP, MAIL_QUEUE, MAIL_QUEUE_TASK
from postroad.controller.status.conditions import READY, condition_of
from postroad.domain.configuration.consistency import readable

TASKS = f"{MAIL_QUEUE_TASK.plural}.{GROUP}"

COUNTS = ("size", "delayed", "held", "deadLetters")
HEAD = ("NAMESPACE", "NAME", "READY", "WORKERS", "SIZE", "DELAYED", "HELD", "DEAD", "CHANGE/S")


@click.command()
@with_kubectl
@click.argument("name")
@json_option
def status(kubectl: Kubectl, name: str, as_json: bool) -> None:
    """Show how the queue NAME is: its conditions that are not good, mails, pods and tasks."""
    namespace = kubectl.default_namespace()
    resource = kubectl.require(name, namespace)
    tasks = [
        each
        for each in kubectl.all(TASKS, namespace)
        if each["spec"]["queueRef"]["name"] == name and not is_over(each)
    ]
    values = {"status": resource.get("status") or {}, "tasks": tasks}
    say(values, as_json=as_json, text="\n".join(status_lines(resource, tasks)))


def is_over(task: Resource) -> bool:
    return (task.get("status") or {}).get("phase") in ("Completed", "Failed")


def status_lines(resource: Resource, tasks: Sequence[Resource]) -> Iterator[str]:
    """Yield the lines about a MailQueue and its tasks that go on."""
    found = resource.get("status") or {}
    ready = condition_of(found, READY)
    message = ready.get("message", "the operator has not looked at it yet")
    reason = f"{ready['reason']}: " if ready else ""
    yield f"ready      {ready.get('status', 'Unknown')}  {reason}{message}"
    shown = ("Ready", "Reconciling", "Stalled")
    for each in found.get("conditions") or ():
        is_good = (each["status"] == "True") != (each["type"] == "Paused")
        if each["type"] not in shown and not is_good and each["message"] != message:
            yield f"           {each['type']} ({each['reason']}): {each['message']}"
    counts = {each: found.get(each, "-") for each in COUNTS}
    apart = f"{counts['delayed']} delayed, {counts['held']} held"
    yield f"mails      {counts['size']} waiting ({apart}), {counts['deadLetters']} dead letters"
    for of in ("workers", "intake"):
        if of in found:
            yield f"{of:10} {found[of].get('ready', 0)} of {found[of].get('desired', 0)} ready"
    for each in tasks:
        report = each.get("status") or {}
        message = report.get("message", "")
        yield f"task       {each['metadata']['name']}  {report.get('phase', 'Pending')}  {message}"


@click.command()
@with_kubectl
@click.argument("name")
@json_option
def events(kubectl: Kubectl, name: str, as_json: bool) -> None:
    """List the Events about the queue NAME, oldest first."""
    selected = f"involvedObject.kind={MAIL_QUEUE.name},involvedObject.name={name}"
    found = kubectl.all("events", kubectl.default_namespace(), "--field-selector", selected)
    for each in sorted(found, key=seen_at):
        count = (each.get("series") or {}).get("count") or each.get("count") or 1
        times = f"  ({count} times)" if count > 1 else ""
        text = (
            f"{seen_at(each)}  {each['type']:7}  {each['reason']}  {each.get('message', '')}{times}"
        )
        say(each, as_json=as_json, text=text)


def seen_at(event: Resource) -> str:
    """Return when an Event was last seen, to the second."""
    of_series = (event.get("series") or {}).get("lastObservedTime")
    moment = of_series or event.get("lastTimestamp") or event.get("eventTime") or ""
    return f"{moment[:19]}Z" if moment else "-"


@click.command()
@with_kubectl
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Of all namespaces.")
@click.option("--every", type=DURATION, default="5s", show_default=True, help="The interval.")
@click.option("--once", is_flag=True, help="Print one table, and end.")
@json_option
def top(kubectl: Kubectl, everywhere: bool, every: timedelta, once: bool, as_json: bool) -> None:
    """Show a table of queues that is renewed, the largest first, until it is interrupted.

    Numbers are those of the statuses, which the operator renews every half minute. With --json, a
    line for each queue, once."""
    namespace = None if everywhere else kubectl.default_namespace()
    scope = ("--all-namespaces",) if everywhere else ()
    rates = Rates()

    def found() -> list[Resource]:
        return sorted(kubectl.all(RESOURCE, namespace, *scope), key=_largest_first)

    if as_json:
        for each in found():
            say(_numbers_of(each), as_json=True, text="")
        return
    watch(HEAD, lambda: [row_of(each, rates) for each in found()], every, once=once)


def _largest_first(resource: Resource) -> tuple[int, str, str]:
    """Sort key, which puts queues without a size last."""
    metadata, size = resource["metadata"], (resource.get("status") or {}).get("size")
    return 1 if size is None else -size, metadata["namespace"], metadata["name"]


def _numbers_of(resource: Resource) -> dict[str, Any]:
    """Return what the table shows of a MailQueue, as its status calls it."""
    metadata, found = resource["metadata"], resource.get("status") or {}
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "ready": condition_of(found, READY).get("status", "Unknown"),
        **{each: found.get(each) for each in ("workers", *COUNTS)},
    }


def row_of(resource: Resource, rates: Rates) -> tuple[str, ...]:
    """Return the cells of a MailQueue."""
    metadata, found = resource["metadata"], resource.get("status") or {}
    size = found.get("size")
    workers: dict[str, Any] = found.get("workers") or {}
    return (
        *(metadata["namespace"], metadata["name"]),
        str(condition_of(found, READY).get("status", "Unknown")),
        f"{workers.get('ready', 0)}/{workers.get('desired', 0)}",
        *(str(found.get(each, "-")) for each in COUNTS),
        "-" if size is None else rates.note(metadata["uid"], size),
    )


@click.command()
@with_kubectl
@click.argument("name")
@json_option
def history(kubectl: Kubectl, name: str, as_json: bool) -> None:
    """List how the queue NAME was configured, from its status, oldest first."""
    entries = configuration.entries_of(kubectl.require(name, kubectl.default_namespace()))
    for entry, event in zip(entries, readable(entries), strict=False):
        say(entry, as_json=as_json, text=configuration.event_text(event))
