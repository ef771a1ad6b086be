"""Decides the options of a cluster's tables, and which queues fit their row lifetime: pure.

The windows that a queue's history accepted bind the tables, because its rows lie in them. What a
queue merely wants binds no table: where it does not fit, that queue alone is refused."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from postroad.controller.spec.cluster import Cassandra
from postroad.controller.spec.queue_resource import Queue
from postroad.domain.configuration.rules import Refusal
from postroad.domain.queues.lifetimes import lifetimes_of, longest_slice, longest_step
from postroad.domain.values.instants import format_duration, parse_duration
from postroad.errors import ConfigurationRefused, InvalidInput
from postroad.ports.view import TableOptions

SLICE_WINDOW_TOO_LONG = "SliceWindowTooLong"
RETRY_STEP_TOO_LONG = "RetryStepTooLong"


@dataclass(frozen=True, slots=True)
class Need:
    """Requirements of one queue, `NAMESPACE/NAME`, on the tables: room for its longest slice."""

    queue: str
    longest_window: timedelta


def need_of(found: Mapping[str, Any]) -> Need | None:
    """Return the need of a MailQueue: for every window that its status has as accepted, because
    rows of older windows still live. None before the first one."""
    metadata, status = found["metadata"], found.get("status") or {}
    accepted = [
        each for each in status.get("history") or () if each.get("type") != "ConfigurationRefused"
    ]
    windows = []
    for each in (status.get("configuration") or {}, *accepted):
        try:
            windows.append(parse_duration(each["sliceWindow"]))
        except (KeyError, InvalidInput):
            continue
    return Need(f"{metadata['namespace']}/{metadata['name']}", max(windows)) if windows else None


def table_options(cassandra: Cassandra, needs: Iterable[Need]) -> TableOptions:
    """Return the options. Raises: ConfigurationRefused for a row lifetime that is too short for
    slices which have rows."""
    every = list(needs)
    for each in every:
        if each.longest_window > longest_slice(cassandra.row_lifetime):
            raise ConfigurationRefused(
                f"rowLifetime {format_duration(cassandra.row_lifetime)} is too short for MailQueue "
                f"{each.queue}, which has slices of {format_duration(each.longest_window)}: the "
                "tables stay as they are",
                hint=f"at least {format_duration(4 * each.longest_window)}, four of its slices",
            )
    lifetimes = lifetimes_of(
        cassandra.row_lifetime, [each.longest_window for each in every], timedelta(0)
    )
    return TableOptions(
        replication=replication(cassandra),
        row_lifetime=lifetimes.row_lifetime,
        compaction_window=lifetimes.compaction_window,
        gc_grace=lifetimes.gc_grace,
    )


def refused_by_lifetime(
    queue: Queue, row_lifetime: timedelta
) -> tuple[Refusal | None, Refusal | None]:
    """Return why a queue must not begin with its window, as rows of one slice would expire before
    it is cleaned; and why its longest retry step does not fit, as maintenance would roll each mail
    forward that waits for it. None for what fits."""
    slice_limit, step_limit = longest_slice(row_lifetime), longest_step(row_lifetime)
    window, step = queue.spec.view.slice_window, max(queue.spec.retry.lanes)
    declared = f"the rowLifetime of the QueueCluster, {format_duration(row_lifetime)}"
    refused_window = refused_step = None
    if window > slice_limit:
        message = (
            f"sliceWindow {format_duration(window)} does not fit {declared}: choose at most "
            f"{format_duration(slice_limit)}, or let rowLifetime be at least "
            f"{format_duration(4 * window)}"
        )
        allowed = {"sliceWindow": (format_duration(slice_limit),)}
        refused_window = Refusal(SLICE_WINDOW_TOO_LONG, message, allowed)
    if step > step_limit:
        message = (
            f"the retry step {format_duration(step)} does not fit {declared}: choose at most "
            f"{format_duration(step_limit)}, or let rowLifetime be longer than "
            f"{format_duration(2 * step)}"
        )
        allowed = {"lanes": (format_duration(step_limit),)}
        refused_step = Refusal(RETRY_STEP_TOO_LONG, message, allowed)
    return refused_window, refused_step


def replication(cassandra: Cassandra) -> dict[str, str]:
    wanted = cassandra.replication
    if wanted.class_ == "SimpleStrategy":
        return {"class": wanted.class_, "replication_factor": str(wanted.factor)}
    return {"class": wanted.class_, cassandra.local_datacenter: str(wanted.factor)}
