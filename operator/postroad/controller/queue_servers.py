"""The server side of a MailQueue: its queues, its bucket, its tables, its configuration.

The configuration is settled in the view's history before anything follows from it, so whoever dies
between any two steps leaves a history that says what is still to be done. Source: ADR 0005.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from postroad.configuration.evidence import has_rows
from postroad.configuration.store import Settled, settle
from postroad.controller import conditions as aspect
from postroad.controller.aspects import attempt
from postroad.controller.clusters import Cluster, Clusters
from postroad.controller.conditions import Finding, bad, good, unknown
from postroad.controller.engines import Engines
from postroad.controller.resource import Queue
from postroad.controller.status import Report
from postroad.controller.tables import need_of
from postroad.errors import ServerError, ViewRefused
from postroad.ports.clock import Clock

OPERATOR = "operator"
"""How the operator signs events of the configuration history."""

SERVER_ASPECTS = (aspect.BROKER_READY, aspect.VIEW_READY, aspect.BLOBS_READY)


@dataclass(slots=True)
class Look:
    """One look at a MailQueue: what was read, and what was found so far."""

    queue: Queue
    before: Mapping[str, Any]
    report: Report
    configured: bool = False


class QueueServers:
    """Asks and prepares the servers of queues."""

    def __init__(self, clusters: Clusters, engines: Engines, clock: Clock) -> None:
        self._clusters = clusters
        self._engines = engines
        self._clock = clock

    async def ask(self, cluster: Cluster, look: Look) -> list[Finding]:
        """Bring about what the queue wants of the servers; say what was found of each aspect.

        Each goes on whatever becomes of the others. Sets `look.configured` once a configuration
        holds. Raises: KubernetesConflict, KubernetesUnavailable.
        """
        broker, blobs, view = await asyncio.gather(
            attempt(aspect.BROKER_READY, lambda: self._declare(cluster, look.queue)),
            attempt(aspect.BLOBS_READY, lambda: self._make_bucket(cluster, look.queue)),
            attempt(aspect.VIEW_READY, lambda: self._make_tables(cluster, look)),
        )
        if view.is_good:
            accepted = await attempt(
                aspect.CONFIGURATION_ACCEPTED, lambda: self._configure(cluster, look)
            )
        else:
            accepted = self._not_asked(look, view.message)
        return [accepted, broker, view, blobs]

    async def _declare(self, cluster: Cluster, queue: Queue) -> Finding:
        limit = queue.spec.broker.delivery_limit
        await cluster.servers.broker(queue.name, delivery_limit=limit).declare()
        return good(aspect.BROKER_READY, f"exchange {queue.name.exchange} and its queues are there")

    async def _make_bucket(self, cluster: Cluster, queue: Queue) -> Finding:
        bucket = queue.bucket(cluster.spec)
        blobs = cluster.servers.blobs(bucket)
        if not queue.owns_bucket:
            if await blobs.exists():
                return good(aspect.BLOBS_READY, f"bucket {bucket} is there; it is shared")
            message = f"the shared bucket {bucket} does not exist: create it"
            return bad(aspect.BLOBS_READY, "BucketNotFound", message, waits=True)
        limits = await blobs.create()
        message = f"bucket {bucket} is there"
        if limits:
            message += f"; the object store lacks something: {', '.join(limits)}"
        return good(aspect.BLOBS_READY, message, *limits[:1])

    async def _make_tables(self, cluster: Cluster, look: Look) -> Finding:
        await self._clusters.ensure_tables(cluster, need_of(look.queue, look.before))
        try:
            await cluster.servers.views().view(str(look.queue.name)).limits()
        except ViewRefused:
            self._clusters.forget_tables(cluster.uid)
            raise
        return good(aspect.VIEW_READY, f"tables are there, in {cluster.spec.cassandra.keyspace}")

    async def _configure(self, cluster: Cluster, look: Look) -> Finding:
        try:
            settled = await self._settle(cluster, look)
            if settled.state is not None:
                bucket = look.queue.bucket(cluster.spec)
                await self._engines.begin(cluster.servers, look.queue, bucket)
        except ServerError as error:
            return self._not_asked(look, error.explain())
        return self._settled(settled, look)

    async def _settle(self, cluster: Cluster, look: Look) -> Settled:
        name = look.queue.name
        view = cluster.servers.views().view(str(name))
        return await settle(
            cluster.servers.history(name),
            look.queue.spec.view.configuration(),
            at=self._clock.now(),
            by=OPERATOR,
            generation=look.queue.generation,
            status=look.before.get("history") or (),
            has_data=lambda: has_rows(view),
        )

    def _settled(self, settled: Settled, look: Look) -> Finding:
        if settled.state is not None:
            look.configured = True
            look.report.fields["configuration"] = settled.configuration()
            look.report.fields["history"] = settled.entries()
        if settled.refusal is not None:
            return bad(
                aspect.CONFIGURATION_ACCEPTED,
                settled.refusal.reason,
                settled.refusal.message,
                waits=False,
            )
        assert settled.state is not None
        message = f"version {settled.state.version} holds"
        return good(aspect.CONFIGURATION_ACCEPTED, message, "Accepted")

    def _not_asked(self, look: Look, why: str) -> Finding:
        version = (look.before.get("configuration") or {}).get("version")
        holds = f"version {version} still holds" if version else "none holds yet"
        message = f"the history in Cassandra cannot be read, {holds}: {why}"
        return unknown(aspect.CONFIGURATION_ACCEPTED, "HistoryNotReadable", message)
