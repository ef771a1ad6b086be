"""One loop for all resources: reconciles what `causes` made due, and decides when again.

Each reconcile reads the state of its resource anew, and finds out from facts how much is to do
(`scope`)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from functools import partial

from postroad.controller import reads
from postroad.controller.cluster.clusters import (
    Clusters,
    is_assigned_elsewhere,
    is_left,
)
from postroad.controller.cluster.consoles import Consoles
from postroad.controller.cluster.finalizers import Finalizers
from postroad.controller.cluster.health import ClusterHealth, left_in_use
from postroad.controller.cluster.queue_logins import QueueLogins
from postroad.controller.cluster.turns import ClusterTurns
from postroad.controller.credentials import Connect, Connections
from postroad.controller.kubernetes.api import (
    MAIL_QUEUE,
    MAIL_QUEUE_TASK,
    QUEUE_CLUSTER,
    Key,
    log_unexpected,
    read,
    reconciling,
)
from postroad.controller.mailqueue.autoscaling import LOOK, Autoscalers, Wakening
from postroad.controller.mailqueue.children import QueueChildren
from postroad.controller.mailqueue.deletion import Deletion, retained
from postroad.controller.mailqueue.orphans import OrphanList
from postroad.controller.mailqueue.plan import FactsReader, LastReconcile
from postroad.controller.mailqueue.queue_metrics import Engines, MetricsSchedule, QueueMetrics
from postroad.controller.mailqueue.queues import Queues, QueueServers
from postroad.controller.pods.upgrades import Upgrades
from postroad.controller.run.causes import Causes, OperatorClass, console_role, pipeline_role
from postroad.controller.run.options import Options
from postroad.controller.run.workqueue import Urgency, Workqueue
from postroad.controller.spec.queue_resource import PipelineProgram, cluster_of
from postroad.controller.spec.task import queue_of_task
from postroad.controller.status.conditions import ApiErrors, api_errors, count_error
from postroad.controller.status.status_writer import Failures, StatusWriter
from postroad.controller.task.tasks import Images, Tasks
from postroad.errors import KubernetesConflict, KubernetesError, LeadershipLost, PostroadError
from postroad.ports.clock import Clock, Randomness
from postroad.ports.kubernetes import Kind, Kubernetes, Object
from postroad.telemetry import metrics


class Controller:
    """Reconciles MailQueues, QueueClusters and MailQueueTasks."""

    def __init__(
        self,
        api: Kubernetes,
        options: Options,
        *,
        connect: Connect,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        namespaces, operator_class = options.namespaces, options.operator_class
        self.indexes = reads.Indexes()
        self._certain = api
        self._api = watched = reads.WatchedKubernetes(api, self.indexes, namespaces)
        self._clock = clock
        self._randomness = randomness
        self._engines = Engines(clock, randomness)
        self._intervals = options.intervals
        self._schedule = MetricsSchedule()
        self._reads = reads.RememberedReads(api, clock)
        self._connections = Connections(connect)
        self._absences = reads.Absences(clock)
        self._autoscalers = Autoscalers(clock)
        self._clusters = Clusters(
            watched,
            self._connections,
            self._absences,
            namespaces,
            ambient_credentials=options.ambient_credentials,
            operator_class=operator_class,
            certain=api,
            reads=self._reads,
        )
        self._status_writer = StatusWriter(watched, clock)
        self._failures = Failures(self._status_writer, clock)
        self._class = OperatorClass(operator_class, api, self.indexes)
        self._upgrades = Upgrades(watched, self.indexes, clock)
        self._metrics = QueueMetrics(self._engines, self._schedule, self._autoscalers, clock)
        orphans = OrphanList(watched, options.lease_namespace)
        program = PipelineProgram(options.pipeline_image, pipeline_role(operator_class))
        images = Images(options.image, program, options.pull_secrets)
        self._tasks = Tasks(watched, api, self._clusters, self._status_writer, clock, images)
        self._queues = self._make_queues(options, program, orphans)
        self._deletion = Deletion(
            watched, self._clusters, self._status_writer, clock, self._engines, orphans
        )
        self._work: Workqueue[Key] = Workqueue(self.reconcile, randomness, self._servers_of)
        self._turns = self._make_turns(options)
        self._wakening = Wakening(self._autoscalers, clock, self._work.add)
        self.causes = Causes(watched, self.indexes, self._work)
        self._last: dict[Key, LastReconcile] = {}
        self._uids: dict[Key, str] = {}

    def _make_queues(
        self, options: Options, program: PipelineProgram, orphans: OrphanList
    ) -> Queues:
        """Return what reconciles MailQueues."""
        watched, clock = self._api, self._clock
        logins = QueueLogins(watched, self._clusters, clock)
        return Queues(
            FactsReader(
                *(watched, self._clusters, self.indexes, self._upgrades),
                *(self._autoscalers, clock),
            ),
            QueueServers(self._clusters, self._engines, clock, logins),
            QueueChildren(
                *(watched, self._reads, self._upgrades, self._absences, clock, options.image),
                program,
                options.pull_secrets,
            ),
            self._metrics,
            Finalizers(watched, self._clusters),
            orphans,
            self._status_writer,
            clock,
            self._intervals.full,
        )

    def _make_turns(self, options: Options) -> ClusterTurns:
        """Return what reconciles QueueClusters."""
        watched, clock, name = self._api, self._clock, options.operator_class
        consoles = Consoles(
            *(watched, clock, console_role(name), name, options.image),
            *(options.pull_secrets, options.namespaces),
        )
        health = ClusterHealth(
            watched, self._clusters, self._status_writer, clock, self._upgrades, consoles
        )
        return ClusterTurns(
            *(health, self._clusters, consoles, self._upgrades, self._connections),
            *(self.indexes, self._reads, self._absences, clock),
            brief=self._intervals.servers,
            full=self._intervals.clusters,
            woken=lambda key: self._work.add(key, Urgency.ROUTINE),
        )

    async def run(self, tasks: int) -> None:
        """Reconcile with so many tasks until cancelled."""
        self._sample_metrics()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._work.run(tasks))
                group.create_task(self._find_missed_deletions())
                group.create_task(self._wakening.run())
        finally:
            metrics.end_samples()

    async def _find_missed_deletions(self) -> None:
        after = self._intervals.full
        while True:
            await self._clock.sleep(after)
            self._reads.forget_old()
            after = self._intervals.first_retry
            try:
                await self.causes.find_missed_deletions()
            except PostroadError:
                continue
            except Exception:  # which must not end all reconciles
                log_unexpected("missed deletions were not found")
            after = self._intervals.full

    async def finish(self) -> None:
        """Begin nothing more; return when what is under way has ended."""
        await self._work.finish()
        await self._clusters.finish()

    async def close(self) -> None:
        """Close the connections to all servers. Idempotent."""
        await self._connections.close()

    def _sample_metrics(self) -> None:
        work, states = self._work, self._status_writer.states
        metrics.WORKQUEUE_DEPTH.samples = lambda: [
            ((urgency.name.lower(),), depth) for urgency, depth in work.depths().items()
        ]
        metrics.WORKQUEUE_OLDEST.samples = lambda: [((), work.oldest_seconds())]
        metrics.RESOURCE_CONDITIONS.samples = states.conditions
        metrics.QUEUE_MAILS.samples = states.mails
        metrics.QUEUE_DUE.samples = states.due_mails
        metrics.QUEUE_OLDEST_DUE.samples = self._metrics.oldest_seconds
        metrics.PIPELINE_SUCCESSES.samples = partial(states.jobs, "success")
        metrics.PIPELINE_LAGS.samples = partial(states.jobs, "lag")
        metrics.PIPELINE_FINDINGS.samples = partial(states.jobs, "findings")
        metrics.FAILED_TASKS.samples = states.failed_tasks
        metrics.RECONCILE_FAILING_SINCE.samples = self._failures.samples

    # Reconciles

    async def reconcile(self, key: Key) -> timedelta | None:
        """Reconcile one resource; return after how long to repeat it, None for never."""
        with (
            metrics.RECONCILE_SECONDS.labels(key.kind).time(),
            reconciling(key),
            api_errors(reported=self._failures.has(key)) as errors,
        ):
            try:
                after = await self._reconcile_anew(key, errors)
            except LeadershipLost:
                raise
            except Exception as error:
                return await self._failed(key, error)
        self._failures.end(key, lacked_answers=errors.met)
        metrics.RECONCILES.labels(key.kind, "done").inc()
        return after

    async def _failed(self, key: Key, error: Exception) -> timedelta:
        """Count a reconcile that failed, and report it once that lasts; return after how long to
        repeat it. Raises: `error`, which is repeated with a growing delay."""
        is_conflict = isinstance(error, KubernetesConflict)
        metrics.RECONCILES.labels(key.kind, "conflict" if is_conflict else "error").inc()
        self._failures.add(key)
        if self._failures.lasts(key):
            with suppress(KubernetesError):  # an API server that does not answer gets no status
                if (found := await self._own(key)) is not None:
                    await self._failures.report(kind_of(key), found, error)
        elif is_conflict:
            return timedelta(seconds=0.5) * self._jitter()
        count_error(None, error)
        raise error

    async def _own(self, key: Key) -> Object | None:
        """Read a resource anew; None for one that another operator reconciles. Raises:
        KubernetesError."""
        found = await self._certain.get(kind_of(key), key.namespace, key.name)
        if found is None or not await self._class.has(found):
            return None
        if key.kind == QUEUE_CLUSTER.name:
            return None if is_assigned_elsewhere(found, self._clusters.namespaces) else found
        if key.kind == MAIL_QUEUE_TASK.name:
            return found
        return None if await self._is_left(found) else found

    async def _reconcile_anew(self, key: Key, errors: ApiErrors) -> timedelta | None:
        """Reconcile once more what had changed since a watch brought it: it is then read by a
        request, and a conflict is a finding."""
        try:
            return await self._reconcile(key)
        except KubernetesConflict:
            errors.reported, errors.met = True, False
            return await self._reconcile(key)

    async def _reconcile(self, key: Key) -> timedelta | None:
        deleted = self.causes.deleted(key)
        if deleted is not None:
            if await self._class.has(deleted):
                left = left_in_use(deleted, self.indexes.users_of(key))
                await self._status_writer.announce(
                    deleted, [*retained(deleted), *left], required=True
                )
            self.causes.announced(key, deleted)
        kind = kind_of(key)
        found = await self._api.get(kind, key.namespace, key.name)
        self._forget_others(key, found)
        if kind is MAIL_QUEUE_TASK:
            await self._tasks.delete_strays(key)
        if found is None:
            after = await self._turns.leave(key)
            return after and after * self._jitter()
        if not await self._class.has(found):
            return None
        read(found)
        if kind is QUEUE_CLUSTER:
            after = await self._turns.take(key, found)
            return after and after * self._jitter()
        if kind is MAIL_QUEUE_TASK:
            place = queue_of_task(found)
            queue = await self._api.get(MAIL_QUEUE, place.namespace, place.name)
            if queue is not None and await self._is_left(queue):
                return self._intervals.clusters * self._jitter()
            after = await self._tasks.reconcile(found)
            return after and after * self._jitter()
        is_left, is_ending = await self._is_left(found), "deletionTimestamp" in found["metadata"]
        if is_left or is_ending:
            self._autoscalers.forget(found["metadata"]["uid"])
        if is_left:
            return self._intervals.clusters * self._jitter()
        if is_ending:
            after = await self._deletion.proceed(found)
            return after and after * self._jitter()
        return await self._reconcile_queue(key, found)

    async def _is_left(self, queue: Object) -> bool:
        """True if another operator reconciles a MailQueue, as it does its QueueCluster."""
        namespaces = self._clusters.namespaces
        if not namespaces:
            return False
        place = cluster_of(queue)
        try:
            cluster = await self._api.get(QUEUE_CLUSTER, place.namespace, place.name) or {}
        except KubernetesError:  # the reconcile gets the same answer, and reports it
            return False
        return is_left(cluster, queue["metadata"]["namespace"], namespaces)

    async def _reconcile_queue(self, key: Key, found: Object) -> timedelta:
        last = await self._queues.reconcile(found, self._last.get(key))
        every = self._intervals.metrics * self._jitter()
        turn = self._schedule.wait(key, cluster_of(found), self._clock.elapsed(), every)
        if last is None:
            self._last.pop(key, None)
            return turn
        self._last[key] = last
        if self._autoscalers.has_changed(found["metadata"]["uid"], last.seen.workers):
            return timedelta()
        if last.failures:
            delay: timedelta = self._intervals.first_retry * 2 ** min(last.failures - 1, 10)
            return min(delay, self._intervals.clusters) * self._jitter()
        return turn if last.seen.looked is None else min(turn, LOOK)

    def _forget_others(self, key: Key, found: Object | None) -> None:
        """Forget a resource that is gone, also when another one has its name since."""
        uid = found["metadata"]["uid"] if found else None
        gone = self._uids.pop(key, None)
        if uid is not None:
            self._uids[key] = uid
            self._absences.end(key)
            self._turns.note_there(key)
        if uid is None:
            self._failures.end(key)
        if gone in (None, uid):
            return
        self._engines.forget(gone)
        self._autoscalers.forget(gone)
        self._status_writer.forget(gone)
        if uid is None and key.kind == QUEUE_CLUSTER.name:
            self._turns.note_gone(key, gone)
        else:
            self._clusters.forget(gone)
        self._turns.forget(gone)
        self._last.pop(key, None)
        self._upgrades.end(key)
        self._upgrades.note(key, compared=False)
        self._wake_waiting(key)
        if uid is None:
            self.causes.forget(key)
            self._metrics.forget(key)

    def _wake_waiting(self, gone: Key) -> None:
        """Reconcile the resources that wait for what one had claimed that is gone."""
        claims = self._clusters.claims
        claims.forget_waiting(gone)
        for each in claims.waiting_for(gone):
            self._turns.check_again(self._uids.get(each, ""))
            self._work.add(each, Urgency.CHILD)

    def _servers_of(self, key: Key) -> tuple[str, Key]:
        """Return whose servers a reconcile needs. That of a QueueCluster, which finds out that they
        are away, does not wait for those of its MailQueues."""
        of_tasks = map(
            queue_of_task, self.indexes.at(key) if key.kind == MAIL_QUEUE_TASK.name else ()
        )
        place = next(of_tasks, key)
        queues = self.indexes.at(place) if place.kind == MAIL_QUEUE.name else ()
        return key.kind, next(map(cluster_of, queues), key)

    def _jitter(self) -> float:
        return 0.9 + 0.2 * self._randomness.uniform()


def kind_of(key: Key) -> Kind:
    """Return the kind of a resource."""
    return next(each for each in reads.OWN if each.name == key.kind)
