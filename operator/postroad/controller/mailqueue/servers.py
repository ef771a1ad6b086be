"""Creates what a MailQueue needs on its servers: queues, bucket, tables, configuration.

The configuration is recorded in the view's history before the operator acts on it, so that after a
crash between any two steps the history shows what is left to do. Source: ADR 0005.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from postroad.configuration.store import Settled, settle
from postroad.controller.cluster.clusters import Cluster, Clusters
from postroad.controller.cluster.queue_claims import QueueClaims
from postroad.controller.cluster.queue_logins import QueueLogins
from postroad.controller.cluster.tables import refused_step, refused_window, together
from postroad.controller.kubernetes.actions import log_repair
from postroad.controller.mailqueue.engines import Engines
from postroad.controller.spec.queue_resource import Queue
from postroad.controller.status import conditions as condition
from postroad.controller.status.attempts import TOO_SLOW, attempt
from postroad.controller.status.conditions import Finding, bad, good, unknown
from postroad.controller.status.reconcile import CONFLICT, ReconcileState
from postroad.domain.configuration.rules import Refusal
from postroad.errors import ServerError
from postroad.ports.blobs import OBJECTS_EXPIRE
from postroad.ports.clock import Clock

OPERATOR = "operator"
"""The operator's name in events of the configuration history."""


SERVER_CONDITIONS = (condition.BROKER_READY, condition.VIEW_READY, condition.BLOBS_READY)


class QueueServers:
    """Prepares the servers of queues."""

    def __init__(
        self, clusters: Clusters, engines: Engines, clock: Clock, logins: QueueLogins
    ) -> None:
        self._clusters = clusters
        self._engines = engines
        self._clock = clock
        self._claims = QueueClaims(clusters.claims)
        self._logins = logins

    async def ask(self, cluster: Cluster, state: ReconcileState) -> list[Finding]:
        """Create what the queue needs on each server; return a finding for each condition.

        A failure of one server stops none of the others; a conflict over one stops all, because
        pods would use its objects. Sets `state.configured` once a configuration holds. Raises:
        KubernetesConflict, KubernetesUnavailable.
        """
        claimed = await _ask(cluster, condition.BROKER_READY, self._claimed_queue(cluster, state))
        if claimed.reason == CONFLICT:
            return self._not_taken(state, claimed)
        broker, blobs, view = await asyncio.gather(
            _ask(cluster, condition.BROKER_READY, self._declare(cluster, state, claimed)),
            _ask(cluster, condition.BLOBS_READY, self._make_bucket(cluster, state)),
            _ask(cluster, condition.VIEW_READY, self._make_tables(cluster, state)),
        )
        if blobs.reason == CONFLICT:
            return self._not_taken(state, blobs)
        if view.is_good:
            async with attempt(condition.CONFIGURATION_ACCEPTED) as attempted:
                attempted.finding = await self._configure(cluster, state)
            accepted = attempted.finding
            if accepted.reason == TOO_SLOW:
                accepted = self._not_asked(state, accepted.message)
        else:
            accepted = self._not_asked(state, view.message)
        return [accepted, broker, view, blobs]

    async def _claimed_queue(self, cluster: Cluster, state: ReconcileState) -> Finding:
        await self._claims.claim_queue(cluster, state.queue)
        return good(condition.BROKER_READY, f"exchange {state.queue.name.exchange} is claimed")

    def _not_taken(self, state: ReconcileState, conflict: Finding) -> list[Finding]:
        """Return the findings about a queue that another one has: nothing more of it is made, and
        what pods it has go on."""
        state.configured = False
        types = (condition.CONFIGURATION_ACCEPTED, *SERVER_CONDITIONS)
        others = [each for each in types if each != conflict.condition]
        return [conflict, *(unknown(each, CONFLICT, conflict.message) for each in others)]

    async def _declare(self, cluster: Cluster, state: ReconcileState, claimed: Finding) -> Finding:
        if not claimed.is_good:
            return claimed
        queue = state.queue
        broker = cluster.servers.broker(queue.name, delivery_limit=queue.spec.broker.delivery_limit)
        missing = state.configured and not await broker.exists()
        await broker.declare(first=not state.configured)
        changes = await self._logins.keep(cluster, queue)
        state.report.repairs += changes.repairs
        state.report.switches += changes.switches
        if missing:
            log_repair("queues", exchange=queue.name.exchange)
            return bad(condition.BROKER_READY, *missing_queues(queue), retryable=True)
        return good(condition.BROKER_READY, f"exchange {queue.name.exchange} and its queues exist")

    async def _make_bucket(self, cluster: Cluster, state: ReconcileState) -> Finding:
        queue = state.queue
        bucket = queue.bucket(cluster.spec)
        blobs = cluster.servers.blobs(bucket)
        if not queue.owns_bucket:
            if await blobs.exists():
                return good(condition.BLOBS_READY, f"bucket {bucket} exists; it is shared")
            message = f"the shared bucket {bucket} does not exist: create it"
            return bad(condition.BLOBS_READY, "BucketNotFound", message, retryable=True)
        missing = state.configured and not await blobs.exists()
        limits = await blobs.create(f"{queue.name}/", first=not state.configured)
        await self._claims.claim_bucket(cluster, queue)
        if missing:
            log_repair("bucket", bucket=bucket)
            return bad(condition.BLOBS_READY, *missing_bucket(bucket), retryable=True)
        if OBJECTS_EXPIRE in limits:
            message = f"a lifecycle rule of bucket {bucket} deletes bytes of mail: remove it"
            return bad(condition.BLOBS_READY, OBJECTS_EXPIRE, message, retryable=True)
        message = f"bucket {bucket} exists"
        if limits:
            message += f"; the object store does not offer: {', '.join(limits)}"
        return good(condition.BLOBS_READY, message, *limits[:1])

    async def _make_tables(self, cluster: Cluster, state: ReconcileState) -> Finding:
        await self._clusters.ensure_tables(cluster)
        limits = await cluster.servers.views().view(str(state.queue.name)).limits()
        state.has_rows = limits.browse_start is not None
        return good(condition.VIEW_READY, f"tables exist in {cluster.spec.cassandra.keyspace}")

    async def _configure(self, cluster: Cluster, state: ReconcileState) -> Finding:
        try:
            settled = await self._settle(cluster, state)
            if settled.state is not None:
                bucket = state.queue.bucket(cluster.spec)
                await self._engines.begin(cluster.servers, state.queue, bucket)
        except ServerError as error:
            return self._not_asked(state, error.explain())
        unfit = refused_step(state.queue, cluster.spec.cassandra.row_lifetime)
        return self._settled(settled, state, together(settled.refusal, unfit))

    async def _settle(self, cluster: Cluster, state: ReconcileState) -> Settled:
        lifetime = cluster.spec.cassandra.row_lifetime

        async def has_data() -> bool:
            return state.has_rows

        return await settle(
            cluster.servers.history(state.queue.name),
            state.queue.spec.view.configuration(),
            at=self._clock.now(),
            by=OPERATOR,
            generation=state.queue.generation,
            status=state.before.get("history") or (),
            has_data=has_data,
            unfit=together(
                refused_window(state.queue, lifetime), refused_step(state.queue, lifetime)
            ),
        )

    def _settled(self, settled: Settled, state: ReconcileState, refusal: Refusal | None) -> Finding:
        if settled.state is not None:
            state.configured = True
            state.report.fields["configuration"] = settled.configuration()
            state.report.fields["history"] = settled.entries()
        if refusal is not None:
            return bad(
                condition.CONFIGURATION_ACCEPTED, refusal.reason, refusal.message, retryable=False
            )
        assert settled.state is not None
        message = f"version {settled.state.version} holds"
        return good(condition.CONFIGURATION_ACCEPTED, message, "Accepted")

    def _not_asked(self, state: ReconcileState, why: str) -> Finding:
        version = (state.before.get("configuration") or {}).get("version")
        holds = f"version {version} still holds" if version else "none holds yet"
        message = f"the history in Cassandra cannot be read, {holds}: {why}"
        return unknown(condition.CONFIGURATION_ACCEPTED, "HistoryNotReadable", message)


async def _ask(cluster: Cluster, which: str, work: Coroutine[Any, Any, Finding]) -> Finding:
    """Ask a server, unless the QueueCluster has just found that it does not answer: a thousand
    queues that wait for it would hold up those of every other cluster."""
    if which in cluster.away:
        work.close()
        return cluster.away[which]
    async with attempt(which) as attempted:
        attempted.finding = await work
    return attempted.finding


def missing_queues(queue: Queue) -> tuple[str, str]:
    """Return reason and message about queues that a configured MailQueue lacked in RabbitMQ."""
    name = queue.name
    return "QueuesWereMissing", (
        f"the queues of exchange {name.exchange} were missing and are made anew, empty: where the "
        "cluster has a managementURL, maintenance publishes waiting mail again; at once does it "
        f"`kubectl mailqueue republish {name.name} -n {name.namespace} --older-than 5m`"
    )


def missing_bucket(bucket: str) -> tuple[str, str]:
    """Return reason and message about a bucket that a configured MailQueue lacked."""
    return "BucketWasMissing", (
        f"bucket {bucket} was missing and is made anew, empty: mail whose bytes were in it becomes "
        "dead letters; copy the objects back, then requeue them"
    )
