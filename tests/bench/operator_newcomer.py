"""Seconds until a new MailQueue is ready, beside `COUNT` others with workers: at rest, while an
operator that was just started reconciles all of them, while the Deployments of all are changed, and
while the Cassandra of another QueueCluster, with `FROZEN` queues, is frozen.

No pods run: the workers have no replicas. The servers of the QueueCluster are changed by another
spelling of RabbitMQ's vhost, which leads to the same one.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from bench.operator_process import MeasuredOperator, operator_on
from bench.operator_scale import apply_queues, names, patience, until_resynced
from bench.operator_setup import THREE, Site, fresh_site, stack_in
from bench.operator_watch import ReadyWatch, watching
from bench.results import Result, compared, percentile, progress
from postroad.controller.kubernetes.api import MAIL_QUEUE, QUEUE_CLUSTER, SECRET
from postroad.ports.kubernetes import Object
from stack.local import Stack
from support.named_servers import named_logins
from support.resources import secret, workers

COUNT = int(os.environ.get("COUNT", "1000"))
FROZEN = int(os.environ.get("FROZEN", "50"))
NEWCOMERS = int(os.environ.get("NEWCOMERS", "10"))
"""At the most in each situation."""

PAUSE_SECONDS = 1.0
"""Between a newcomer that is ready and the next one."""

GOAL_SECONDS = 5.0
PATIENCE_SECONDS = 180.0
OTHER = "other"

Goes = Callable[[], Awaitable[bool]]


async def measure() -> list[Result]:
    """Measure all situations."""
    async with fresh_site(*THREE) as site, _other_cassandra() as other:
        async with operator_on(site) as operator, watching(site.api, site.namespace) as watch:
            await _fill(site, watch, other)
            results = await _newcomers(site, watch, "at rest")
        results += await _resynced(site)
        async with operator_on(site) as operator, watching(site.api, site.namespace) as watch:
            await until_resynced(operator, COUNT + FROZEN)
            results += await _frozen(site, watch, other)
            results += await _rolled(site, operator, watch)
    return results


@asynccontextmanager
async def _other_cassandra() -> AsyncIterator[Stack]:
    """Start one more Cassandra; remove it at the end, frozen or not."""
    other = stack_in(OTHER)
    await asyncio.to_thread(other.down)
    try:
        await asyncio.to_thread(other.up, ["cassandra"])
        yield other
    finally:
        await asyncio.to_thread(other.down)


async def _fill(site: Site, watch: ReadyWatch, other: Stack) -> None:
    """Apply both QueueClusters and their queues."""
    await site.apply_cluster()
    variables = {**site.variables, **other.environment(["cassandra"])}
    login = named_logins(variables)["cassandra"]
    await site.api.create(SECRET, secret(site.namespace, "other-cassandra", login))
    await site.apply_cluster(OTHER, variables, secrets={"cassandra": "other-cassandra"})
    for each in ("main", OTHER):
        await site.until_ready(QUEUE_CLUSTER, each)
    frozen = names(FROZEN, site, "frozen")
    await apply_queues(site, frozen, clusterRef={"name": OTHER})
    await apply_queues(site, names(COUNT, site), workers=workers())
    everything = [each.name for each in (*frozen, *names(COUNT, site))]
    await watch.until_ready(everything, patience(len(everything)))
    print(f"{len(everything)} queues are ready", file=sys.stderr, flush=True)


async def _newcomers(
    site: Site, watch: ReadyWatch, situation: str, goes_on: Goes | None = None
) -> list[Result]:
    """Make queues one after the other while a situation goes on, and time each."""
    seconds: list[float] = []
    while len(seconds) < NEWCOMERS and (goes_on is None or await goes_on()):
        name = f"{situation.lower().replace(' ', '-')}-{len(seconds)}"
        began = time.monotonic()
        await apply_queues(site, [names(1, site, name)[0]])
        seconds.append(await watch.until_ready([f"{name}-0"], PATIENCE_SECONDS) - began)
        await asyncio.sleep(PAUSE_SECONDS)
    print(f"{situation}: {[round(each, 2) for each in seconds]} s", file=sys.stderr, flush=True)
    if not seconds:
        print(f"{situation}: it was over before a queue was made", file=sys.stderr, flush=True)
        return []
    case = f"{situation}, {len(seconds)} beside {COUNT}"
    results = [
        compared(f"a new queue is ready, {name}", case, "s", [percentile(seconds, share)], "goal",
                 [GOAL_SECONDS], less_is_better=True)
        for name, share in (("p50", 0.5), ("longest", 1.0))
    ]  # fmt: skip
    progress(results)
    return results


async def _resynced(site: Site) -> list[Result]:
    """Start another operator; make queues while it reconciles those that there are."""
    async with operator_on(site) as operator, watching(site.api, site.namespace) as watch:

        async def goes_on() -> bool:
            return (await operator.counted()).reconciles["MailQueue"] < COUNT + FROZEN

        return await _newcomers(site, watch, "during a resync", goes_on)


async def _frozen(site: Site, watch: ReadyWatch, other: Stack) -> list[Result]:
    """Freeze the other Cassandra, change all queues that need it, and make queues."""
    await asyncio.to_thread(other.cassandra.pause)
    try:
        change = {"spec": {"retry": {"maxAge": "96h"}}}
        async with asyncio.TaskGroup() as group:
            for each in names(FROZEN, site, "frozen"):
                group.create_task(site.api.patch(MAIL_QUEUE, site.namespace, each.name, change))
        return await _newcomers(site, watch, "another Cassandra frozen")
    finally:
        await asyncio.to_thread(other.cassandra.resume)


async def _rolled(site: Site, operator: MeasuredOperator, watch: ReadyWatch) -> list[Result]:
    """Change all Deployments, by their QueueCluster; make queues meanwhile."""
    before = await operator.counted()

    async def changed() -> int:
        return (await operator.counted()).since(before).calls["PATCH", "deployments"]

    async def goes_on() -> bool:
        return await changed() < COUNT

    found: Object = await site.api.get(QUEUE_CLUSTER, site.namespace, "main") or {}
    uri = found["spec"]["rabbitmq"]["url"]
    assert uri.endswith("%2F"), uri
    spec = {"rabbitmq": {"url": f"{uri.removesuffix('%2F')}%2f"}}
    await site.api.patch(QUEUE_CLUSTER, site.namespace, "main", {"spec": spec})
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await changed():
            await asyncio.sleep(0.5)
    results = await _newcomers(site, watch, "during a rollout", goes_on)
    print(f"{await changed()} Deployments were changed by then", file=sys.stderr, flush=True)
    return results
