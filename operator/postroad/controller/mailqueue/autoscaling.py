"""Decides how many workers a MailQueue has, by the mail that is due: pure, but for the decisions
that a process keeps.

More at once where more mail is due than they are for, or the oldest waits too long; fewer once
fewer would have done for `scaleDownAfter`. Workers that keep up leave no mail due: so what one
carried while mail lacked workers is kept, and there are never fewer than the pace needs. What each
carried at best is tried later, since the next hop may have been slow.

After an increase the pace of attempts is compared, and nothing that administration ends: where more
workers brought no faster one, the next hop is the limit, and there are no more until the pace
changes. Whatever the load does, there are at most `MAX_CHANGES` in `PERIOD`: the last one goes to
the bound, so that none is lacking.

A process that begins takes over the number that the Deployment has, and keeps it for as long as any
other. It cannot know since when there is no worker: then the age of the rows decides whether they
need one. Source: ADR 0082.

Another autoscaler may have the replicas. Who wrote replicas last does not tell: one that is deleted
leaves its name in `managedFields`, and some write under names of their own. So the autoscalers
themselves are asked, but only about an object whose scale another process wrote."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import floor
from typing import Any, NamedTuple

from postroad.controller.cluster.plans import ViewPlan
from postroad.controller.kubernetes.api import (
    AUTOSCALED,
    AUTOSCALERS,
    DEPLOYMENT,
    Key,
    log_unexpected,
)
from postroad.controller.kubernetes.drift import hash_in
from postroad.controller.reads import Absences
from postroad.controller.spec.mailqueue import Workers
from postroad.controller.spec.queue_resource import Queue
from postroad.domain.queues.documents import Sizes
from postroad.errors import PostroadError
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kubernetes, Object

SETTLE = timedelta(minutes=2)
"""Time after a change until there are more workers, or what they brought is judged: pods start, and
two counts follow."""

FASTER = 1.1
"""Factor by which attempts end faster, at least, where further workers are of use."""

STEP = 5
"""An increase is of such a part of the workers, at least: fewer could not bring that much."""

FORGET = timedelta(days=1)
"""Time after which fewer workers are tried though they would have lacked: mail may have become
faster to deliver, which workers that are not busy do not show."""

TRY_AGAIN = timedelta(hours=1)
"""After so long there are more workers once more though the last ones brought nothing: what they
were compared with may have been another mixture of mail."""

TRY_FEWER = timedelta(hours=6)
"""Time to the next trial of fewer workers after one at which they lacked, though each had carried
more before. A trial takes away half of them at most."""

PERIOD, MAX_CHANGES = timedelta(minutes=30), 6
"""Changes in any time of this length. Half of them are kept for increases."""

REST = 4
"""Part of rowLifetime for which a queue with mail, and without an intake, may have no worker: rows
are rolled forward at half of it."""

LEFT = 3
"""Such parts that rows reach before they are rolled forward, as a slice has one itself, at most.
With older ones the worker that does it is not done."""

NOT_COUNTED, ENOUGH, AT_MAXIMUM = "NotCounted", "EnoughWorkers", "AtMaximum"
MAILS_DUE, OLDEST_LATE, MAINTENANCE = "MailsDue", "OldestMailLate", "MaintenanceDue"
FEWER, FEWER_LATER, MORE_LATER = "FewerSuffice", "FewerLater", "MoreLater"
NO_FASTER, TOO_OFTEN, BOUNDS = "NoFasterDelivery", "ChangedTooOften", "BoundsChanged"
BY_AUTOSCALER = "AutoscalerDecides"

CHANGED = {
    MAILS_DUE: "more mails are due than mailsPerWorker for each",
    OLDEST_LATE: "the oldest due mail waits longer than oldestMail",
    MAINTENANCE: "mail that waits needs maintenance, and no intake does it",
    FEWER: "fewer sufficed for scaleDownAfter",
    BOUNDS: "the number was outside of minReplicas and maxReplicas",
}
"""Why the number changed, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """Mail of a queue when it was counted. `attempted`: a number that grows by each attempt that
    ends, None where it was not counted; `oldest`: for how long a mail has been due; `rest`: for how
    long the queue may be without workers; `at_least`: more mails may be due; `age`: of the oldest
    row, at most."""

    at: timedelta
    due: int
    attempted: int | None = None
    oldest: timedelta | None = None
    rest: timedelta | None = None
    at_least: bool = False
    age: timedelta = timedelta()


@dataclass(frozen=True, slots=True)
class Scale:
    """The number of workers of a queue, and what the next decision needs. `at`: of the last change;
    `fewer`: since when fewer would do, and how many; `pace`: attempts in a second; `before`: that
    before an increase that is not judged yet; `limit`: that at which more were of no use;
    `carried`: attempts in a second by each worker when mail lacked workers last, and when; `best`:
    the most of each in two counts, busy or not, and when; `trial`: when there were fewer because of
    that, and whether they lacked; `has_worked`: a worker was ready since there were none."""

    size: int
    at: timedelta
    reason: str = NOT_COUNTED
    changes: tuple[timedelta, ...] = ()
    fewer: tuple[timedelta, int] | None = None
    counted: QueueLoad | None = None
    pace: float = 0.0
    before: float | None = None
    limit: float | None = None
    carried: tuple[float, timedelta] | None = None
    best: tuple[float, timedelta] | None = None
    trial: tuple[timedelta, bool] | None = None
    has_worked: bool = False

    def recent(self, now: timedelta) -> int:
        """Return how many changes there were in the last `PERIOD`."""
        return sum(now - each < PERIOD for each in self.changes)


def next_scale(workers: Workers, scale: Scale, load: QueueLoad) -> Scale:
    """Return the scale after a count. `workers` have autoscaling."""
    rules = workers.autoscaling
    assert rules is not None
    scale = _with_pace(workers, within_bounds(workers, scale, load.at), load)
    needed, why = _needed(workers, scale, load)
    wanted = min(max(needed, rules.min_replicas), rules.max_replicas)
    fewer = max(wanted, _carrying(scale, load.at))
    if fewer < scale.size and not load.at_least:
        return _with_fewer(scale, fewer, load.at, rules.scale_down_after)
    scale = replace(scale, fewer=None)
    if wanted > scale.size:
        return _with_more(scale, wanted, rules.max_replicas, load.at, why)
    return replace(scale, reason=AT_MAXIMUM if needed > wanted else ENOUGH)


def _needed(workers: Workers, scale: Scale, load: QueueLoad) -> tuple[int, str]:
    """Return how many workers there should be, and why. Those that are added because a mail waits
    long have mail to take: what `concurrency` allows is in the hands of others already."""
    rules = workers.autoscaling
    assert rules is not None
    by_number = -(-load.due // rules.mails_per_worker)
    if load.oldest is not None and load.oldest > rules.oldest_mail:
        with_mail = -(-load.due // workers.concurrency)
        late = min(scale.size + max(1, scale.size // 2), with_mail)
        if late > by_number:
            return late, OLDEST_LATE
    if not by_number and load.rest is not None:
        return int(_is_maintenance_due(scale, load, load.rest)), MAINTENANCE
    return by_number, MAILS_DUE


def _is_maintenance_due(scale: Scale, load: QueueLoad, rest: timedelta) -> bool:
    """True if the rows need a worker: there was none for long, or the one that there is was not
    ready yet, or is not done."""
    if scale.size:
        return not scale.has_worked or load.age >= LEFT * rest
    idle = load.at - scale.at
    if not scale.changes:  # since when there is none, this process does not know
        idle = max(idle, load.age)
    return idle >= rest


def _carrying(scale: Scale, now: timedelta) -> int:
    """Return how many workers the pace needs that there is, with a margin."""
    if not scale.pace:
        return 0
    if scale.carried is None or now - scale.carried[1] >= FORGET:
        return 1
    return floor(scale.pace * FASTER / _capacity(scale.carried, scale, now)) + 1


def _capacity(carried: tuple[float, timedelta], scale: Scale, now: timedelta) -> float:
    """Return how many attempts in a second one worker is good for: as many as the last time that
    they were the limit, and after a while as many as ever. The next hop may have been slow then,
    which workers that are not busy do not correct."""
    each, at = carried
    when, has_failed = scale.trial or (now, False)
    if scale.best is None or now - at < TRY_AGAIN or (has_failed and now - when < TRY_FEWER):
        return each
    return max(each, scale.best[0])


def _with_pace(workers: Workers, scale: Scale, load: QueueLoad) -> Scale:
    last = scale.counted
    if load.attempted is None:
        return scale
    if last is None or last.attempted is None or last.at >= load.at:
        return replace(scale, counted=load)
    pace = (load.attempted - last.attempted) / (load.at - last.at).total_seconds()
    pace, before = max(0.0, pace), scale.pace
    scale = replace(scale, counted=load, pace=pace)
    if _is_busy(workers, scale, min(last.due, load.due), load.at):
        trial = scale.trial
        if trial is not None and load.at - trial[0] < TRY_AGAIN:
            trial = (trial[0], True)
        scale = replace(scale, carried=(pace / scale.size, load.at), trial=trial)
    if not scale.size or last.at - scale.at < SETTLE:
        return scale
    best, of_each = scale.best, min(pace, before) / scale.size
    if best is None or of_each >= best[0] or load.at - best[1] >= FORGET:
        scale = replace(scale, best=(of_each, load.at))
    return scale


def _is_busy(workers: Workers, scale: Scale, due: int, now: timedelta) -> bool:
    """True if all workers had mail since the last count, and they are the limit themselves."""
    rules = workers.autoscaling
    assert rules is not None
    if not scale.pace or not scale.size or now - scale.at < SETTLE:
        return False
    of_each = min(workers.concurrency, rules.mails_per_worker)
    is_limited = scale.limit is not None or scale.pace <= (scale.before or 0.0) * FASTER
    return due >= of_each * scale.size and not is_limited


def _with_fewer(scale: Scale, wanted: int, now: timedelta, after: timedelta) -> Scale:
    since, most = scale.fewer or (now, wanted)
    most = max(most, wanted)
    scale = replace(scale, fewer=(since, most), before=None, limit=None)
    if now - max(since, scale.at) < after:
        return replace(scale, reason=FEWER_LATER)
    if scale.recent(now) > MAX_CHANGES // 2:
        return replace(scale, reason=TOO_OFTEN)
    if scale.carried is not None and _capacity(scale.carried, scale, now) > scale.carried[0]:
        scale, most = replace(scale, trial=(now, False)), max(most, scale.size // 2)
    return _changed(scale, most, now, FEWER)


def _with_more(scale: Scale, wanted: int, most: int, now: timedelta, why: str) -> Scale:
    recent = scale.recent(now)
    if scale.size:  # mail without any worker does not wait
        if now - scale.at < SETTLE:
            return replace(scale, reason=MORE_LATER)
        if scale.before is not None:
            limit = scale.pace if scale.pace <= scale.before * FASTER else None
            scale = replace(scale, before=None, limit=limit)
        is_limited = scale.limit is not None and scale.pace <= scale.limit * FASTER
        if is_limited and now - scale.at < TRY_AGAIN:
            return replace(scale, reason=NO_FASTER)
        if recent >= MAX_CHANGES:
            return replace(scale, reason=TOO_OFTEN)
    is_last = recent >= MAX_CHANGES - 1
    judged = scale.size + -(-scale.size // STEP)
    size = most if is_last else min(max(wanted, judged), most)
    return _changed(replace(scale, before=scale.pace), size, now, why)


def _changed(scale: Scale, size: int, now: timedelta, why: str) -> Scale:
    kept = tuple(each for each in scale.changes if now - each < PERIOD)
    scale = replace(scale, size=size, at=now, reason=why, changes=(*kept, now))
    return replace(scale, fewer=None, limit=None, has_worked=scale.has_worked and size > 0)


def within_bounds(workers: Workers, scale: Scale, now: timedelta) -> Scale:
    """Return the scale by the bounds of the spec, which hold at once."""
    rules = workers.autoscaling
    assert rules is not None
    bounded = min(max(scale.size, rules.min_replicas), rules.max_replicas)
    return scale if bounded == scale.size else _changed(scale, bounded, now, BOUNDS)


class Decided(NamedTuple):
    """The number of workers that a MailQueue with autoscaling gets, and why."""

    size: int
    reason: str


@dataclass(slots=True)
class _Known:
    scale: Scale
    announced: int
    plan: ViewPlan | None = None


class Autoscalers:
    """The scales of MailQueues as this process decided them, by their uids."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, _Known] = {}

    def decided(
        self, queue: Queue, present: int | None, *, is_ready: bool, by_another: bool
    ) -> Decided | None:
        """Return how many workers a MailQueue gets; None: what its spec has. `present`: those that
        its Deployment has; `is_ready`: one of them is; `by_another`: another autoscaler decides."""
        workers, now = queue.spec.workers, self._clock.elapsed()
        if workers is None or workers.autoscaling is None or queue.spec.paused:
            self.forget(queue.uid)
            return None
        begin = workers.replicas if present is None else present
        known = self._known.setdefault(queue.uid, _Known(Scale(begin, now), begin))
        if by_another:
            known.scale, known.announced = Scale(begin, now, BY_AUTOSCALER), begin
        else:
            if known.scale.reason == BY_AUTOSCALER:  # its number stays until the next count
                known.scale = replace(known.scale, reason=NOT_COUNTED)
            known.scale = within_bounds(workers, known.scale, now)
        if is_ready and known.scale.size:
            known.scale = replace(known.scale, has_worked=True)
        return Decided(known.scale.size, known.scale.reason)

    def keep(self, plan: ViewPlan) -> None:
        """Keep where the mail of a MailQueue is asked for."""
        if (known := self._known.get(plan.queue.uid)) is not None:
            known.plan = plan

    def observe(
        self, plan: ViewPlan, sizes: Sizes, browse_start: datetime | None, attempted: int
    ) -> None:
        """Decide by a count, where a MailQueue has autoscaling that decides. No row that waits is
        older than `browse_start`."""
        spec, kept = plan.queue.spec, sizes.size or sizes.dead_letters
        is_maintained = not kept or (spec.intake is not None and spec.intake.replicas > 0)
        rest = None if is_maintained else plan.keyspace.cassandra.row_lifetime / REST
        since, now = sizes.oldest_due, self._clock.now()
        oldest = None if since is None else now - since
        age = timedelta() if browse_start is None else now - browse_start
        elapsed = self._clock.elapsed()
        load = QueueLoad(elapsed, sizes.due, attempted, oldest, rest, sizes.at_least, age)
        self._decide(plan.queue.uid, load)

    def wake(self, uid: str, ready: int) -> None:
        """Decide by the messages that wait at the broker of a MailQueue without workers."""
        self._decide(uid, QueueLoad(self._clock.elapsed(), ready))

    def _decide(self, uid: str, load: QueueLoad) -> None:
        known = self._known.get(uid)
        if known is None or known.plan is None or known.scale.reason == BY_AUTOSCALER:
            return
        workers = known.plan.queue.spec.workers
        if workers is not None and workers.autoscaling is not None:
            known.scale = next_scale(workers, known.scale, load)

    def has_changed(self, uid: str, seen: Decided | None) -> bool:
        """True if the decision is another than a reconcile saw."""
        known = self._known.get(uid)
        return known is not None and (known.scale.size, known.scale.reason) != seen

    def announcement(self, uid: str) -> str | None:
        """Return what to say about a change, once."""
        known = self._known.get(uid)
        if known is None or known.announced == known.scale.size:
            return None
        before, known.announced = known.announced, known.scale.size
        why = CHANGED.get(known.scale.reason, known.scale.reason)
        return f"from {before} to {known.scale.size} workers: {why}"

    def at_zero(self) -> Iterator[ViewPlan]:
        """Yield the plans of the MailQueues that have no worker until mail is due."""
        for known in self._known.values():
            is_asleep = known.scale.size == 0 and known.scale.reason != BY_AUTOSCALER
            if known.plan is not None and is_asleep:
                yield known.plan

    def forget(self, uid: str) -> None:
        """Forget a MailQueue. Idempotent."""
        self._known.pop(uid, None)


PROBE = timedelta(seconds=3)
"""Time between two questions to the broker about a MailQueue without workers."""

PROBE_TIMEOUT = timedelta(seconds=4)
"""Time that a broker has to answer about one MailQueue."""

MAX_FAILED_PROBES = 2
"""A broker that fails for so many MailQueues in a row is asked about no other one until the next
time: its connection is gone. The queue of a single one may be missing."""


class Wakening:
    """Asks the brokers of MailQueues without workers for messages, which Cassandra is not asked
    about any sooner. `woken` gets each MailQueue that has some."""

    def __init__(
        self, autoscalers: Autoscalers, clock: Clock, woken: Callable[[Key], None]
    ) -> None:
        self._autoscalers = autoscalers
        self._clock = clock
        self._woken = woken
        self._failed: dict[str, timedelta] = {}
        """Uids of the MailQueues for which a broker failed, and when it did so last."""
        self._asking: set[int] = set()
        """Brokers that are being asked."""

    async def run(self) -> None:
        """Ask until cancelled. A broker that is still being asked holds up no other one."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._clock.sleep(PROBE)
                plans = list(self._autoscalers.at_zero())
                there = {plan.queue.uid for plan in plans}
                self._failed = {uid: at for uid, at in self._failed.items() if uid in there}
                asked: dict[int, list[ViewPlan]] = defaultdict(list)
                for plan in plans:
                    asked[id(plan.place.servers)].append(plan)
                for broker in asked.keys() - self._asking:
                    self._asking.add(broker)
                    group.create_task(self._ask_in_turn(broker, asked[broker]))

    async def _ask_in_turn(self, broker: int, plans: Sequence[ViewPlan]) -> None:
        try:
            await self._ask_all(plans)
        finally:
            self._asking.discard(broker)

    async def _ask_all(self, plans: Sequence[ViewPlan]) -> None:
        """Ask one broker, last about those MailQueues for which it failed last."""
        in_a_row, never = 0, timedelta.min
        for plan in sorted(plans, key=lambda each: self._failed.get(each.queue.uid, never)):
            in_a_row = 0 if await self._ask(plan) else in_a_row + 1
            if in_a_row == MAX_FAILED_PROBES:
                return

    async def _ask(self, plan: ViewPlan) -> bool:
        """Ask about one MailQueue; return True if the broker answered."""
        uid, key = plan.queue.uid, plan.queue.key
        try:
            async with asyncio.timeout(PROBE_TIMEOUT.total_seconds()):
                ready = await plan.place.broker().ready()
            if ready:
                self._autoscalers.wake(uid, ready)
                self._woken(key)
        except (PostroadError, TimeoutError):
            pass  # a condition of the QueueCluster reports it
        except Exception:  # which must not end all reconciles
            if uid not in self._failed:
                log_unexpected("a broker was not asked for messages", resource=str(key))
        else:
            self._failed.pop(uid, None)
            return True
        self._failed[uid] = self._clock.elapsed()
        return False


LOOK = timedelta(seconds=15)
"""Interval at which an autoscaler that decides is looked for: no watch brings them."""

PATIENCE = timedelta(seconds=30)
"""Time for which the replicas stay as an autoscaler left them: one that is replaced comes back, and
pods that it made would be gone meanwhile."""


async def keeps_replicas(api: Kubernetes, absences: Absences, present: Object | None) -> bool:
    """True if an autoscaler has the replicas of a Deployment, or had them just before it went.
    Raises: KubernetesError."""
    if present is None:
        return False
    uid = present["metadata"]["uid"]
    has_autoscaler = await is_autoscaled(api, present)
    if has_autoscaler or not hash_in(present, AUTOSCALED):
        absences.end(uid)
        return has_autoscaler
    return not absences.lasts(uid, PATIENCE)


async def is_autoscaled(api: Kubernetes, scaled: Object) -> bool:
    """True if another process scaled an object that has an autoscaler. Raises: KubernetesError."""
    metadata = scaled["metadata"]
    if not any(each.get("subresource") == "scale" for each in metadata.get("managedFields") or []):
        return False
    for kind in AUTOSCALERS:
        if await api.serves(kind):
            found = await api.list(kind, metadata["namespace"])
            if any(targets(each, scaled["kind"], metadata["name"]) for each in found):
                return True
    return False


def targets(autoscaler: Mapping[str, Any], kind: str, name: str) -> bool:
    """True if an autoscaler scales this object of its namespace."""
    target = autoscaler["spec"].get("scaleTargetRef") or {}
    return (target.get("kind") or DEPLOYMENT.name, target.get("name")) == (kind, name)
