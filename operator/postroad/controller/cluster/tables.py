"""Decides the options of a cluster's tables, and which queues fit their row lifetime: pure.

The windows that a queue's history accepted bind the tables, because its rows lie in them. What a
queue merely wants binds no table: where it does not fit, that queue alone is refused.
"""

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


def refused_window(queue: Queue, row_lifetime: timedelta) -> Refusal | None:
    """Return why a queue must not begin with its window: rows of one slice would expire before it
    is cleaned. None when the window fits."""
    window, longest = queue.spec.view.slice_window, longest_slice(row_lifetime)
    if window <= longest:
        return None
    message = (
        f"sliceWindow {format_duration(window)} does not fit the rowLifetime of the QueueCluster, "
        f"{format_duration(row_lifetime)}: choose at most {format_duration(longest)}, or let "
        f"rowLifetime be at least {format_duration(4 * window)}"
    )
    return Refusal(SLICE_WINDOW_TOO_LONG, message, {"sliceWindow": (format_duration(longest),)})


def refused_step(queue: Queue, row_lifetime: timedelta) -> Refusal | None:
    """Return why a queue's longest retry step does not fit: maintenance would roll each mail
    forward that waits for it. None when it fits."""
    step, longest = max(queue.spec.retry.lanes), longest_step(row_lifetime)
    if step <= longest:
        return None
    message = (
        f"the retry step {format_duration(step)} does not fit the rowLifetime of the QueueCluster, "
        f"{format_duration(row_lifetime)}: choose at most {format_duration(longest)}, or let "
        f"rowLifetime be longer than {format_duration(2 * step)}"
    )
    return Refusal(RETRY_STEP_TOO_LONG, message, {"lanes": (format_duration(longest),)})


def together(*refusals: Refusal | None) -> Refusal | None:
    """Return several refusals as one, with the reason of the first."""
    broken = [each for each in refusals if each is not None]
    if not broken:
        return None
    allowed = {field: values for each in broken for field, values in each.allowed.items()}
    messages = dict.fromkeys(each.message for each in broken)
    return Refusal(broken[0].reason, "; ".join(messages), allowed)


def replication(cassandra: Cassandra) -> dict[str, str]:
    wanted = cassandra.replication
    if wanted.class_ == "SimpleStrategy":
        return {"class": wanted.class_, "replication_factor": str(wanted.factor)}
    return {"class": wanted.class_, cassandra.local_datacenter: str(wanted.factor)}
