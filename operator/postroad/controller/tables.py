"""Computes the options of a cluster's tables from the queues that share them: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from postroad.controller.cluster_spec import Cassandra
from postroad.controller.queue_resource import Queue
from postroad.domain.durations import parse_duration
from postroad.domain.lifetimes import lifetimes_of
from postroad.errors import InvalidInput
from postroad.ports.view import TableOptions


@dataclass(frozen=True, slots=True)
class Need:
    """What one queue requires of the tables."""

    longest_window: timedelta
    longest_step: timedelta


def need_of(queue: Queue, status: Mapping[str, Any]) -> Need:
    """Return the need of a queue: for its wanted window and every window in its status, because
    rows of older windows still live."""
    windows = [queue.spec.view.slice_window]
    for each in (status.get("configuration") or {}, *(status.get("history") or ())):
        try:
            windows.append(parse_duration(each["sliceWindow"]))
        except (KeyError, InvalidInput):
            continue
    return Need(max(windows), max(queue.spec.retry.lanes))


def table_options(cassandra: Cassandra, needs: Iterable[Need]) -> TableOptions:
    """Return the options. Raises: ConfigurationRefused for a row lifetime that is too short."""
    every = list(needs)
    lifetimes = lifetimes_of(
        cassandra.row_lifetime,
        [each.longest_window for each in every],
        max((each.longest_step for each in every), default=timedelta(0)),
    )
    return TableOptions(
        replication=replication(cassandra),
        row_lifetime=lifetimes.row_lifetime,
        compaction_window=lifetimes.compaction_window,
        gc_grace=lifetimes.gc_grace,
    )


def replication(cassandra: Cassandra) -> dict[str, str]:
    """Return the replication as CQL has it."""
    wanted = cassandra.replication
    if wanted.class_ == "SimpleStrategy":
        return {"class": wanted.class_, "replication_factor": str(wanted.factor)}
    return {"class": wanted.class_, cassandra.local_datacenter: str(wanted.factor)}
