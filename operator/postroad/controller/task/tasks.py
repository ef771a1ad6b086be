"""Reconciles MailQueueTasks.

A task is begun by a write of its status to the version that was read, so that the API server
refuses a change of its spec from then on; only then its Job is made, under a name that the task's
uid decides. So whatever the operator dies of, there is one Job, of the spec that the status
reports. What a pod does twice, because it was killed, has the effect of once: its selector ends at
the creation of the task. A task that is deleted takes its Job with it; where the finalizer of
another controller keeps the task, the operator deletes the Job. Source: ADR 0085."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from postroad.controller.cluster.clusters import Cluster, Clusters
from postroad.controller.kubernetes.api import (
    APPLIED_HASH,
    BEGUN,
    BEGUN_FOR,
    CRON_JOB,
    JOB,
    MAIL_QUEUE,
    MAIL_QUEUE_TASK,
    MANAGED_BY,
    POD,
    ROTATE,
    SECRET,
    TASK,
    Key,
    log_action,
)
from postroad.controller.kubernetes.drift import hash_in, is_current
from postroad.controller.pods.manifests import Child, is_owned, owned_by
from postroad.controller.pods.task_jobs import job_name, job_of
from postroad.controller.spec import task as spec
from postroad.controller.spec.queue_resource import (
    PipelineProgram,
    PodContext,
    Queue,
    cluster_of_pods,
)
from postroad.controller.status import conditions as condition
from postroad.controller.status.conditions import (
    Finding,
    Report,
    Truth,
    advice,
    attempt,
    bad,
    good,
    shortened,
    timestamp,
)
from postroad.controller.status.status_writer import NORMAL, WARNING, Announcement, StatusWriter
from postroad.controller.task.runs import (
    ANOTHER_TASK,
    COMPLETED,
    ENDED,
    FAILED,
    MAX_MESSAGE,
    PENDING,
    RUNNING,
    SCHEDULED,
    TaskProgress,
    TaskRun,
    as_begun,
    at_least,
    completed,
    failure_of,
    first_of,
    is_for_another,
    is_stray,
    is_under_way,
    latest,
    left_of,
    obstacle_of,
    phase_of,
    run_of,
    running,
    why_stopped,
)
from postroad.errors import InvalidInput, KubernetesConflict, NameTaken
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kubernetes, Object

WAITING, STUCK, AT_REST = timedelta(seconds=10), timedelta(minutes=1), timedelta(minutes=5)
"""After so long a task looks again at the pods of its run, or for its turn; for what has to be
mended first; where a watch brings what it waits for."""

COPIED = (
    "it was begun under another uid, as a copy or before a restore, and is not done again: create "
    f"another task, or remove the annotation {BEGUN}"
)


@dataclass(frozen=True, slots=True)
class Images:
    """Images that pods run, unless a MailQueue names another one."""

    queue: str
    pipeline: PipelineProgram
    pull_secrets: tuple[str, ...] = ()


class Tasks:
    """Reconciles MailQueueTasks. `certain` reads past the indexes."""

    def __init__(
        self,
        api: Kubernetes,
        certain: Kubernetes,
        clusters: Clusters,
        status_writer: StatusWriter,
        clock: Clock,
        images: Images,
    ) -> None:
        self._api = api
        self._certain = certain
        self._clusters = clusters
        self._status_writer = status_writer
        self._clock = clock
        self._images = images

    async def reconcile(self, found: Object) -> timedelta | None:
        """Carry out the next step of a task, and write its status; return after how long to go on,
        None for never. Raises: KubernetesError; the next reconcile then repeats the step."""
        metadata = found["metadata"]
        if "deletionTimestamp" in metadata and phase_of(found) in ENDED:
            return None
        if phase_of(found) not in (RUNNING, *ENDED):
            place = metadata["namespace"], metadata["name"]
            fresh = await self._certain.get(MAIL_QUEUE_TASK, *place)
            if fresh is None or fresh["metadata"]["uid"] != metadata["uid"]:
                return None
            found = fresh
        if phase_of(found) in ENDED:
            return await self._keep(found)
        progress = TaskProgress(phase_of(found), running(""))
        async with attempt(condition.COMPLETE, seconds=120) as attempted:
            found, progress = await self._proceed(found)
        if not attempted.finding.is_good:
            progress = TaskProgress(phase_of(found), attempted.finding)
        await self._write(found, progress)
        if progress.phase in ENDED:
            return await self._keep({**found, "status": {**progress.fields}})
        is_waiting = attempted.finding.is_good or progress.phase == RUNNING
        if not (is_waiting and progress.finding.retryable):
            return STUCK
        return WAITING if is_under_way(progress) else AT_REST

    async def delete_strays(self, key: Key) -> None:
        """Delete what carries a task of this name out and has no owner, as after a restore
        from a backup, or a deletion with `--cascade=orphan`: the task has its own, or is gone. What
        an earlier task owns is deleted by the API server. Raises: KubernetesError."""
        labels = f"{MANAGED_BY}=postroad,{TASK}={key.name}"
        for kind in (CRON_JOB, JOB):
            for each in await self._api.list(kind, key.namespace, labels):
                if is_stray(each):
                    await self._api.delete(kind, each)
                    log_action("stopped a task", job=each["metadata"]["name"])

    async def _write(self, found: Object, progress: TaskProgress) -> Object:
        message = {"message": shortened(progress.finding.message, MAX_MESSAGE)}
        fields = {"phase": progress.phase, **message, **progress.fields}
        report = Report([progress.finding, *progress.others], fields)
        run, before = progress.ended or failure_of(found, progress), found.get("status") or {}
        if run is not None and before.get("finishedAt") != run.finished:
            is_failed = run.error is not None
            await self._announce(found, "TaskFailed" if is_failed else "TaskCompleted", run)
        return await self._status_writer.report(MAIL_QUEUE_TASK, found, report)

    async def _announce(self, found: Object, reason: str, run: TaskRun | None = None) -> None:
        """Log what a task does, and post it about the task and its MailQueue: the operation, by
        which manager, and counts."""
        metadata, task = found["metadata"], found["spec"]
        place = metadata["namespace"], metadata["name"]
        by = spec.manager_of(await self._certain.get(MAIL_QUEUE_TASK, *place) or found)
        operation = f"{task['operation']}{' (dry run)' if task.get('dryRun') else ''}"
        counts = {} if run is None else {"matched": run.matched, "done": run.done}
        kind = WARNING if reason == "TaskFailed" else NORMAL
        log_action(
            "a task started"
            if run is None
            else ("a task failed" if kind is WARNING else "a task completed"),
            operation=operation,
            by=by,
            **counts,
        )
        what = operation if run is None else run.text(operation)
        note = f"{what}, MailQueueTask {metadata['name']}{f', by {by}' if by else ''}"
        once = task.get("schedule") is None
        event = Announcement(kind, reason, note, action=task["operation"], once=once)
        queue = spec.queue_of_task(found)
        regarding = await self._api.get(MAIL_QUEUE, queue.namespace, queue.name)
        for about in (found, *((regarding,) if regarding is not None else ())):
            own = replace(event, once=once and about is found)
            await self._status_writer.announce(about, [own])

    async def _keep(self, found: Object) -> timedelta | None:
        """Delete a finished task once its time is over; return after how long that is."""
        metadata, status = found["metadata"], found.get("status") or {}
        if status.get("observedGeneration") != metadata["generation"] and "conditions" in status:
            kept = [
                Finding(each["type"], Truth(each["status"]), each["reason"], each["message"], False)
                for each in status["conditions"]
                if each["type"] == condition.COMPLETE
            ]
            found = await self._status_writer.report(MAIL_QUEUE_TASK, found, Report(kept))
        ttl, finished = found["spec"].get("ttlSecondsAfterFinished"), status.get("finishedAt")
        if ttl is None or finished is None:
            return None
        left = datetime.fromisoformat(finished) + timedelta(seconds=ttl) - self._clock.now()
        if left > timedelta(0):
            return left
        await self._api.delete(MAIL_QUEUE_TASK, found)
        log_action("deleted a finished task")
        return None

    async def _proceed(self, found: Object) -> tuple[Object, TaskProgress]:
        """Carry out the next step; return the task as it is then. Raises: InvalidInput,
        pydantic.ValidationError, PostroadError where the QueueCluster cannot be used."""
        is_begun = phase_of(found) == RUNNING
        task = spec.Task.of(found)
        queue = await self._api.get(MAIL_QUEUE, task.key.namespace, task.spec.queue_ref.name)
        if (
            queue is None
            or any("deletionTimestamp" in each["metadata"] for each in (found, queue))
            or (is_begun and is_for_another(found, queue["metadata"]["uid"]))
        ):
            return found, await self._stopped(found, task, why_stopped(found, queue))
        if is_begun and task.spec.operation != spec.ROTATE:
            job = await self._certain.get(JOB, task.key.namespace, job_name(task))
            if job is not None and is_owned(job, task.uid):
                return found, await self._observed(found, task, job)
        if not is_begun and (obstacle := obstacle_of(queue)) is not None:
            await self._suspend(task, queue["metadata"]["uid"])
            phase = SCHEDULED if phase_of(found) == SCHEDULED else PENDING
            return found, TaskProgress(phase, obstacle)
        of = Queue.of(queue)
        cluster = await self._clusters.for_queue(of)
        if task.spec.operation == spec.ROTATE:
            return await self._rotated(found, task, of, cluster, is_begun=is_begun)
        context = self._context(of, cluster)
        if task.spec.schedule is not None:
            return found, await self._scheduled(found, task, of, job_of(task, of, context))
        _, job = job_of(task, of, context)
        if not is_begun:
            found, obstacle = await self._begin(found, of.uid)
            if obstacle is not None:
                return found, TaskProgress(PENDING, obstacle)
        if found["status"]["phase"] == RUNNING:
            await self._create(job, task.uid)
        return found, as_begun(found)

    async def _stopped(self, found: Object, task: spec.Task, why: Finding) -> TaskProgress:
        """Stop what works for a task; the deletion of a queue waits for the pods to end."""
        kind = JOB if task.spec.schedule is None else CRON_JOB
        made = await self._certain.get(kind, task.key.namespace, job_name(task))
        if made is not None and is_owned(made, task.uid):
            await self._api.delete(kind, made)
            log_action("stopped a task", job=job_name(task))
        if phase_of(found) != RUNNING:
            return TaskProgress(PENDING, why)
        status = found["status"]
        left = left_of(status.get("matched"), status.get("done"))
        fields = {"failed": left, "finishedAt": timestamp(self._clock.now())}
        return TaskProgress(FAILED, why, fields=fields)

    async def _suspend(self, task: spec.Task, queue: str) -> None:
        """Let the CronJob of a schedule begin no run, until it is applied anew."""
        if task.spec.schedule is None:
            return
        made = await self._cron_job(task, queue)
        if made is None or not is_owned(made, task.uid) or made["spec"].get("suspend"):
            return
        namespace, name = task.key.namespace, job_name(task)
        change = {"metadata": {"annotations": {APPLIED_HASH: None}}, "spec": {"suspend": True}}
        await self._api.patch(CRON_JOB, namespace, name, change)
        log_action("suspended a schedule", child=f"CronJob {name}")

    async def _cron_job(self, task: spec.Task, queue: str) -> Object | None:
        """Return what has the name of the CronJob of a schedule. One that the task made for another
        MailQueue than that of this uid is deleted, with its runs."""
        made = await self._certain.get(CRON_JOB, task.key.namespace, job_name(task))
        if made is None or not (is_owned(made, task.uid) and is_for_another(made, queue)):
            return made
        await self._api.delete(CRON_JOB, made)
        log_action("stopped a task", job=job_name(task))
        return None

    async def _another(self, found: Object, api: Kubernetes) -> Finding | None:
        """Return which task goes before one that could begin; None: it begins."""
        others = await api.list(MAIL_QUEUE_TASK, found["metadata"]["namespace"])
        if (first := first_of(found, others)) is None:
            return None
        message = f"MailQueueTask {first['metadata']['name']} of the MailQueue goes before it"
        return bad(condition.COMPLETE, ANOTHER_TASK, message, retryable=True)

    def _context(self, queue: Queue, cluster: Cluster) -> PodContext:
        servers, images = cluster_of_pods(cluster.spec, queue), self._images
        programs = images.pipeline, images.pull_secrets
        return PodContext(servers, queue.spec.image or images.queue, {}, *programs)

    async def _begin(self, found: Object, queue: str) -> tuple[Object, Finding | None]:
        """Mark a task as begun for the MailQueue of a uid, then write that it runs; return it as it
        is then, and which other task goes before it. Of two that mark themselves at a time, the one
        that reads the tasks last finds the other one marked, and takes its own mark off; where both
        do, their age decides the next time. Raises: KubernetesConflict for a version that is not
        the newest."""
        uid, marked = found["metadata"]["uid"], hash_in(found, BEGUN)
        another = await self._another(found, self._api)
        if another is None:
            if marked not in (None, uid):
                finding = bad(condition.COMPLETE, "Copied", COPIED, retryable=False)
                ended = {"finishedAt": timestamp(self._clock.now())}
                return await self._write(found, TaskProgress(FAILED, finding, fields=ended)), None
            if marked is None or is_for_another(found, queue):
                found = await self._mark(found, queue)
            another = await self._another(found, self._certain)
        if another is not None:
            is_marked = hash_in(found, BEGUN) == uid
            return (await self._mark(found, None) if is_marked else found), another
        started = {"startedAt": timestamp(self._clock.now())}
        await self._announce(found, "TaskStarted")
        begun = TaskProgress(RUNNING, running("it has begun"), fields=started)
        return await self._write(found, begun), None

    async def _mark(self, found: Object, queue: str | None) -> Object:
        """Write that a task begins for the MailQueue of a uid, None: for none any more, to the
        version that was read."""
        metadata = found["metadata"]
        begun = None if queue is None else metadata["uid"]
        change = {
            "metadata": {
                "resourceVersion": metadata["resourceVersion"],
                "annotations": {BEGUN: begun, BEGUN_FOR: queue},
            }
        }
        place = metadata["namespace"], metadata["name"]
        changed = await self._api.patch(MAIL_QUEUE_TASK, *place, change)
        if changed is None:
            raise KubernetesConflict(f"MailQueueTask {metadata['name']} is gone")
        return changed

    async def _create(self, job: Object, uid: str) -> None:
        """Create a Job, or find that it is there. Raises: NameTaken, KubernetesError."""
        try:
            await self._api.create(JOB, job)
        except KubernetesConflict:
            metadata = job["metadata"]
            there = await self._certain.get(JOB, metadata["namespace"], metadata["name"])
            if there is not None and not is_owned(there, uid):
                raise NameTaken(f"Job {metadata['name']} exists already") from None
            return
        log_action("made a job", job=job["metadata"]["name"])

    async def _observed(self, found: Object, task: spec.Task, job: Object) -> TaskProgress:
        """Report how far a Job is. Counts do not go down where a pod, and what it left, is gone."""
        pods = await self._certain.list(POD, task.key.namespace, f"{TASK}={task.key.name}")
        run, before = run_of(job, pods), found["status"]
        run = replace(
            run,
            matched=at_least(before, "matched", run.matched),
            done=at_least(before, "done", run.done),
        )
        counts = {"matched": run.matched, "done": run.done}
        text = run.text(task.spec.operation)
        if run.finished is None:
            return TaskProgress(RUNNING, running(text), fields=counts)
        fields = {**counts, "failed": 0, "finishedAt": run.finished}
        if run.error is None:
            return TaskProgress(COMPLETED, completed(text), fields=fields, ended=run)
        fields["failed"] = left_of(run.matched, run.done)
        finding = bad(condition.COMPLETE, "RunFailed", text, retryable=False)
        return TaskProgress(FAILED, finding, fields=fields, ended=run)

    async def _scheduled(
        self, found: Object, task: spec.Task, queue: Queue, child: Child
    ) -> TaskProgress:
        """Keep the CronJob as declared, and report its last run."""
        kind, wanted = child
        namespace, name = task.key.namespace, wanted["metadata"]["name"]
        present = await self._cron_job(task, queue.uid)
        if present is not None and not is_owned(present, task.uid):
            raise NameTaken(f"CronJob {name} exists already")
        if present is None or not is_current(wanted, present):
            existed, present = present is not None, await self._api.apply(kind, wanted)
            log_action("applied a child", child=f"{kind.name} {name}", existed=existed)
        labels = f"{TASK}={task.key.name}"
        last = latest(owned_by(present, await self._certain.list(JOB, namespace, labels)))
        schedule = f"the schedule {task.spec.schedule}"
        text = f"{schedule} is paused" if task.spec.paused else f"runs by {schedule}"
        scheduled = good(condition.SCHEDULED, text)
        if last is None:
            return TaskProgress(SCHEDULED, scheduled)
        pods = await self._certain.list(POD, namespace, labels)
        run = run_of(last, pods)
        before = found.get("status") or {}
        if before.get("finishedAt") == run.finished:  # its pods may be gone meanwhile
            run = replace(run, matched=before.get("matched"), done=before.get("done"))
        fields = {
            "matched": run.matched,
            "done": run.done,
            "startedAt": run.started,
            "finishedAt": run.finished,
        }
        text = run.text(task.spec.operation)
        finding = (
            completed(text) if run.error is None else advice(condition.COMPLETE, "RunFailed", text)
        )
        return TaskProgress(SCHEDULED, finding, (scheduled,), fields, run)

    async def _rotated(
        self, found: Object, task: spec.Task, queue: Queue, cluster: Cluster, *, is_begun: bool
    ) -> tuple[Object, TaskProgress]:
        """Ask for another user at RabbitMQ, and report when the queue has it."""
        if cluster.spec.rabbitmq.users is None:
            raise InvalidInput(
                "Rotate: the QueueCluster makes no users of its own at RabbitMQ: declare "
                "spec.rabbitmq.users there, or change the login in the Secret"
            )
        if not is_begun:
            found, obstacle = await self._begin(found, queue.uid)
            if obstacle is not None:
                return found, TaskProgress(PENDING, obstacle)
        if found["status"]["phase"] != RUNNING:
            return found, as_begun(found)
        started = found["status"]["startedAt"]
        secret = await self._certain.get(SECRET, queue.name.namespace, queue.login_secret)
        # Not by times: the operator that made the user may have had another clock.
        if secret is not None and hash_in(secret, ROTATE) == task.uid:
            now = timestamp(self._clock.now())
            run = TaskRun(task.key.name, started, now)
            finding = completed("Rotate: the queue has another user")
            return found, TaskProgress(COMPLETED, finding, fields={"finishedAt": now}, ended=run)
        if queue.rotate != task.uid:
            asked = {"metadata": {"annotations": {ROTATE: task.uid}}}
            await self._api.patch(MAIL_QUEUE, queue.name.namespace, queue.name.name, asked)
        return found, TaskProgress(RUNNING, running("the operator makes another user"))
