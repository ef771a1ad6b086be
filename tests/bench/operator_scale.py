"""MailQueues without workers: until all are ready, what that costs, a restart, and rest.

For each number in `COUNTS` bare clients make the queues first; then the operator makes as many, on
servers that are as new. After that it is restarted, and with the most queues it is measured at rest
for `MINUTES`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import dataclass

from bench.operator_bare import REQUESTS, BareClients
from bench.operator_process import Counted, MeasuredOperator, operator_on, shown
from bench.operator_setup import THREE, Site, fresh_site
from bench.operator_watch import watching
from bench.results import Result, compared, progress
from postroad.bootstrap.cluster import ClusterServers
from postroad.bootstrap.distributed import create_tables
from postroad.controller.kubernetes.api import MAIL_QUEUE, QUEUE_CLUSTER
from postroad.domain.queues.names import QueueName
from postroad.settings import from_environment
from support.cpu_time import cpu_seconds
from support.resources import mail_queue

COUNTS = [int(each) for each in os.environ.get("COUNTS", "10,100,1000").split(",")]
MINUTES = float(os.environ.get("MINUTES", "10"))

SECONDS_EACH, MIN_SECONDS = 2.0, 180.0
"""Patience with all of them: of so many seconds for each."""

SETTLE_SECONDS = 60.0
"""Between the end of a resync and rest: figures that were not counted yet are written."""

BARE = "bare clients"
MEMORY_MB, REST_REQUESTS, REST_WRITES, REST_SHARE = 200.0, 5.0, 0.0, 5.0
"""The goals at a thousand queues."""


@dataclass(frozen=True)
class Made:
    """What making the queues took. `requests`: of the API server, for each queue; `broker`: MB of
    RabbitMQ's memory for each."""

    seconds: float
    cpu_seconds: float
    requests: float
    broker_mb: float


def names(count: int, site: Site, prefix: str = "queue") -> list[QueueName]:
    """Return the names of so many queues."""
    return [QueueName(site.namespace, f"{prefix}-{number}") for number in range(count)]


def patience(count: int) -> float:
    """Return the seconds in which so many queues have to be ready."""
    return max(MIN_SECONDS, SECONDS_EACH * count)


async def measure() -> list[Result]:
    """Measure each number of queues."""
    results: list[Result] = []
    for count in COUNTS:
        async with fresh_site(*THREE) as site:
            bare = await _bare(site, count)
        async with fresh_site(*THREE) as site:
            results += await _operated(site, count, bare, rests=count == max(COUNTS))
        progress(results)
    return results


async def _bare(site: Site, count: int) -> Made:
    servers = ClusterServers(from_environment(site.variables))
    await create_tables(servers)
    await servers.close()
    clients = await asyncio.to_thread(BareClients, site)
    try:
        memory, cpu = site.memory_mb("rabbitmq"), cpu_seconds([os.getpid()])
        seconds = await asyncio.to_thread(clients.make, names(count, site))
        cpu = cpu_seconds([os.getpid()]) - cpu
        return Made(seconds, cpu, REQUESTS, (site.memory_mb("rabbitmq") - memory) / count)
    finally:
        await asyncio.to_thread(clients.close)


async def _operated(site: Site, count: int, bare: Made, *, rests: bool) -> list[Result]:
    case = f"{count} queues"
    async with operator_on(site) as operator:
        await site.apply_cluster()
        await site.until_ready(QUEUE_CLUSTER, "main")
        made = await _made(site, operator, count)
        memory = operator.memory_mb("VmHWM")
    results = [
        *_beside(case, made, bare),
        compared("memory of the operator at most", case, "MB", [memory], "goal", [MEMORY_MB],
                 less_is_better=True),
    ]  # fmt: skip
    progress(results)
    results += await _restarted(site, count, made, rests=rests)
    return results


async def _made(site: Site, operator: MeasuredOperator, count: int) -> Made:
    """Apply queues, and wait until all are ready."""
    memory, cpu = site.memory_mb("rabbitmq"), operator.cpu_seconds
    before = await operator.counted()
    async with watching(site.api, site.namespace) as watch:
        began = time.monotonic()
        await apply_queues(site, names(count, site))
        wanted = [each.name for each in names(count, site)]
        seconds = await watch.until_ready(wanted, patience(count)) - began
    cpu = operator.cpu_seconds - cpu
    counted = (await operator.counted()).since(before)
    print(f"{count} made: {shown(counted.calls)}", file=sys.stderr, flush=True)
    each = (counted.requests + count) / count  # with the one that applies the MailQueue
    return Made(seconds, cpu, each, (site.memory_mb("rabbitmq") - memory) / count)


async def apply_queues(site: Site, wanted: list[QueueName], **spec: object) -> None:
    """Apply MailQueues, several at the same time."""
    async with asyncio.TaskGroup() as group:
        for each in wanted:
            body = mail_queue(site.namespace, each.name, **spec)
            group.create_task(site.api.create(MAIL_QUEUE, body))


def _beside(case: str, ours: Made, theirs: Made) -> list[Result]:
    figures = [
        ("applied until all are ready", "s", ours.seconds, theirs.seconds),
        ("CPU", "s", ours.cpu_seconds, theirs.cpu_seconds),
        ("API requests for each queue", "requests", ours.requests, theirs.requests),
        ("RabbitMQ's memory for each queue", "MB", ours.broker_mb, theirs.broker_mb),
    ]
    return [
        compared(measure, case, unit, [mine], BARE, [other], less_is_better=True)
        for measure, unit, mine, other in figures
    ]


async def _restarted(site: Site, count: int, made: Made, *, rests: bool) -> list[Result]:
    """Start another operator over the queues; where it rests, measure that too."""
    case = f"{count} queues"
    began = time.monotonic()
    async with operator_on(site) as operator:
        counted = await until_resynced(operator, count)
        seconds, cpu = time.monotonic() - began, operator.cpu_seconds
        print(f"{count} resynced: {shown(counted.calls)}", file=sys.stderr, flush=True)
        figures = [
            ("restart until all are reconciled", "s", seconds, made.seconds),
            ("CPU of that", "s", cpu, made.cpu_seconds),
            ("API requests of that, for each queue", "requests", counted.requests / count,
             made.requests),
        ]  # fmt: skip
        results = [
            compared(measure, case, unit, [mine], "making them", [other], less_is_better=True)
            for measure, unit, mine, other in figures
        ]
        if rests and MINUTES:
            results += await _at_rest(operator, case)
    return results


async def until_resynced(operator: MeasuredOperator, count: int) -> Counted:
    """Wait until an operator that was just started has reconciled so many MailQueues; return what
    it counted. Raises: TimeoutError."""
    async with asyncio.timeout(patience(count)):
        while (found := await operator.counted()).reconciles["MailQueue"] < count or found.waiting:
            await asyncio.sleep(1)
    return found


async def _at_rest(operator: MeasuredOperator, case: str) -> list[Result]:
    await asyncio.sleep(SETTLE_SECONDS)
    before = await operator.counted()
    cpu, began = operator.cpu_seconds, time.monotonic()
    await asyncio.sleep(60 * MINUTES)
    share = 100 * (operator.cpu_seconds - cpu) / (time.monotonic() - began)
    found = (await operator.counted()).since(before)
    print(f"{case} at rest: {shown(found.calls)}", file=sys.stderr, flush=True)
    at_rest = f"{case} at rest, {MINUTES:g} minutes"
    figures = [
        ("API requests a second", "1/s", found.requests / (60 * MINUTES), REST_REQUESTS),
        ("writes but renewals of the Lease", "requests", found.writes.total(), REST_WRITES),
        ("share of a core", "%", share, REST_SHARE),
        ("memory of the operator", "MB", operator.memory_mb(), MEMORY_MB),
    ]
    return [
        compared(measure, at_rest, unit, [value], "goal", [goal], less_is_better=True)
        for measure, unit, value, goal in figures
    ]
