"""Paces the replacement of pods that a newer operator causes.

What a user changes, replaces the pods of that MailQueue at once. A newer operator would replace
those of all MailQueues together: so each waits until it is granted one of the `upgrades.atOnce`
places of its QueueCluster. The mark at its Deployments shows the grant to the next operator.
Source: ADR 0043."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from postroad.controller.kubernetes.api import INSTANCE, POD, UPGRADED, WORKLOADS, Key
from postroad.controller.kubernetes.drift import hash_in
from postroad.controller.reads import Indexes, place_for
from postroad.controller.status.conditions import UP_TO_DATE, Finding, Truth, advice, good
from postroad.errors import KubernetesError
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kubernetes, Object

NAMED = 5
"""MailQueues that a message names."""

PROGRESS_DEADLINE = timedelta(minutes=10)
"""Time that an upgrade keeps its place without being over; a Deployment's is as long by default."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Number of MailQueues of a QueueCluster that wait for the replacement of their pods, which
    ones have a place, which of these have new pods that do not get ready, which ones lost their
    place, with the reasons, and of which it is not known whether their pods are to be replaced."""

    waiting: int
    rolling: Sequence[Key]
    failing: Sequence[Key] = ()
    lapsed: Mapping[Key, str] = field(default_factory=dict)
    unknown: Sequence[Key] = ()

    @property
    def is_over(self) -> bool:
        """True if no MailQueue has pods that are to be replaced, or are being replaced."""
        return not (self.waiting or self.rolling)

    def finding(self, at_once: int) -> Finding:
        """Return the condition of the QueueCluster."""
        parts = []
        if self.waiting and not at_once:
            why = "spec.upgrades.atOnce is 0, or spec.paused is true"
            parts = [f"{self.waiting} MailQueues keep their pods: {why}"]
        elif self.waiting:
            wait = f"{self.waiting} MailQueues wait for the replacement of their pods"
            parts = [f"{wait}, at most {at_once} at once"]
        if replaced := [each for each in self.rolling if each not in self.failing]:
            parts.append(f"being replaced are those of {named(replaced)}")
        if self.failing:
            parts.append(f"new pods do not get ready: {named(self.failing)}")
        if self.lapsed:
            short = {each: f" ({why})" for each, why in self.lapsed.items()}
            held = "pods cannot be replaced, which blocks no others"
            parts.append(f"{held}: {named(short, short)}")
        if not parts and self.unknown:
            message = f"not compared with this operator's are the pods of {named(self.unknown)}"
            return Finding(UP_TO_DATE, Truth.UNKNOWN, "NotAllKnown", message, advisory=True)
        if not parts:
            return good(UP_TO_DATE, "no MailQueue has pods that this operator is to replace")
        reason = "UpgradeBlocked" if self.failing or self.lapsed else "UpgradeRolls"
        if self.waiting:
            reason = "UpgradeWaits"
        if self.waiting and not at_once:
            reason = "UpgradesHeld"
        elif self.failing and len(self.failing) >= at_once:
            reason = "UpgradeStopped"
        return advice(UP_TO_DATE, reason, "; ".join(parts))


def named(queues: Iterable[Key], notes: Mapping[Key, str] | None = None) -> str:
    """Return MailQueues as a message names them, not all of many."""
    listed = [f"{each.namespace}/{each.name}{(notes or {}).get(each, '')}" for each in queues]
    return ", ".join(sorted(listed)[:NAMED]) + (", …" if len(listed) > NAMED else "") or "none"


class Upgrades:
    """MailQueues that may replace their pods, because a newer operator wants others. A place ends
    with the upgrade. After `PROGRESS_DEADLINE` it lapses where the pods cannot be made, so that a
    shortage at one MailQueue blocks no others; new pods that are there and do not get ready keep
    it, so that a faulty image stops."""

    def __init__(self, api: Kubernetes, indexes: Indexes, clock: Clock) -> None:
        self._api = api
        self._indexes = indexes
        self._clock = clock
        self._waiting: dict[Key, Key] = {}
        self._granted: dict[Key, Key] = {}
        self._lapsed: dict[Key, tuple[Key, str]] = {}
        """QueueClusters by MailQueue; of those that lost their places, with the reason."""
        self._since: dict[Key, timedelta] = {}
        self._failing: set[Key] = set()
        self._compared: set[Key] = set()

    def note(self, queue: Key, *, compared: bool) -> None:
        """Record whether this process knows if the pods of a MailQueue are to be replaced."""
        (self._compared.add if compared else self._compared.discard)(queue)

    def wait(self, cluster: Key, queue: Key) -> None:
        """Let a MailQueue wait until it may replace its pods. One that a former release left with
        pods that are not replaced keeps its place meanwhile, and one whose place lapsed has none.
        """
        self._waiting.pop(queue, None)
        self._granted.pop(queue, None)
        self._waiting[queue] = cluster

    def is_granted(self, queue: Key) -> bool:
        """True if a MailQueue may replace its pods."""
        return queue in self._granted

    def end(self, queue: Key) -> None:
        """Forget a MailQueue whose pods are replaced, or are not to be. Idempotent."""
        self._waiting.pop(queue, None)
        self._give_up(queue)

    def _give_up(self, queue: Key) -> None:
        for each in (self._granted, self._lapsed, self._since):
            each.pop(queue, None)
        self._failing.discard(queue)

    async def proceed(self, cluster: Key, at_once: int) -> Sequence[Key]:
        """Let places lapse, and as many MailQueues begin as there is room for; return them. They
        are granted it until they end, because the indexes show what they do only later. Those that
        have a place from a former release are the first: this one may mend them."""
        now = self._clock.elapsed()
        for each in self._rolling(cluster):
            if now - self._since.setdefault(each, now) >= PROGRESS_DEADLINE:
                await self._judge(cluster, each, now)
        waiting = self._waiting_at(cluster)
        rolling = self._rolling(cluster) if waiting else set()
        waiting.sort(key=lambda each: (each not in rolling, each in self._lapsed))
        begun = waiting[: max(0, at_once - len(rolling.difference(waiting)))]
        for each in begun:
            self._give_up(each)
            self._granted[each], self._since[each] = self._waiting.pop(each), now
        return begun

    def progress(self, cluster: Key) -> Progress:
        """Return how far the MailQueues of a QueueCluster are."""
        rolling = self._rolling(cluster)
        return Progress(
            len(self._waiting_at(cluster)),
            sorted(rolling),
            sorted(rolling & self._failing),
            {each: why for each, (of, why) in self._lapsed.items() if of == cluster},
            sorted(self._unknown(cluster)),
        )

    def _unknown(self, cluster: Key) -> Iterator[Key]:
        """Yield the MailQueues with pods that this process has not compared."""
        for user in self._indexes.users_of(cluster):
            if user.key not in self._compared and any(True for _ in self._deployments(user.key)):
                yield user.key

    def _waiting_at(self, cluster: Key) -> list[Key]:
        return [each for each, of in self._waiting.items() if of == cluster]

    def _rolling(self, cluster: Key) -> set[Key]:
        users = (user.key for user in self._indexes.users_of(cluster))
        marked = {each for each in users if any(map(is_upgrading, self._deployments(each)))}
        granted = {each for each, of in self._granted.items() if of == cluster}
        return (marked | granted) - self._lapsed.keys()

    def _deployments(self, queue: Key) -> Iterable[Object]:
        places = (place_for(each.name, queue) for each in WORKLOADS)
        return itertools.chain.from_iterable(map(self._indexes.at, places))

    async def _judge(self, cluster: Key, queue: Key, now: timedelta) -> None:
        """Let the place of a MailQueue lapse, unless its new pods are there and do not get ready:
        then it is judged again after one more deadline."""
        rolling = [each for each in self._deployments(queue) if is_upgrading(each)]
        short = [why for each in rolling if (why := shortage_of(each)) is not None]
        if rolling and not short:
            labels = f"app.kubernetes.io/name=postroad,{INSTANCE}={queue.name}"
            with suppress(KubernetesError):  # judged again later
                short = unscheduled(await self._api.list(POD, queue.namespace, labels))
        why = "its Deployments could not be changed" if not rolling else "; ".join(short)
        if why:
            self._give_up(queue)
            self._lapsed[queue] = cluster, why
        else:
            self._failing.add(queue)
            self._since[queue] = now


def is_rolling(deployment: Mapping[str, Any]) -> bool:
    """True if a Deployment has pods of an older template. Those of the newest that are missing, or
    not ready for a reason of their own, block no other MailQueue."""
    status = deployment.get("status") or {}
    left = (status.get("replicas") or 0) > (status.get("updatedReplicas") or 0)
    return bool(left) or not is_observed(deployment)


def is_observed(deployment: Mapping[str, Any]) -> bool:
    """True if the status of a Deployment is about its newest template."""
    observed = (deployment.get("status") or {}).get("observedGeneration", -1)
    return bool(observed >= deployment["metadata"]["generation"])


def is_upgrading(deployment: Mapping[str, Any]) -> bool:
    """True if a Deployment rolls because of a newer operator, and not of a user."""
    return hash_in(deployment, UPGRADED) is not None and is_rolling(deployment)


def shortage_of(deployment: Mapping[str, Any]) -> str | None:
    """Return why a Deployment that rolls has no pods of the newest template; None where it has some
    beside older ones that are ready, so that the newest template is to blame."""
    status = deployment.get("status") or {}
    if not is_observed(deployment):
        return "no controller of Deployments has seen the change"
    if status.get("updatedReplicas") and status.get("readyReplicas"):
        return None
    told = (
        each.get("message")
        for each in status.get("conditions") or []
        if (each["type"], each["status"]) == ("ReplicaFailure", "True")
    )
    return next(filter(None, told), "no new pod could be made, or no former one was ready")


def unscheduled(pods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return why pods that are not ready got no node; nothing where one of them has a node."""
    found = []
    for each in pods:
        conditions = (each.get("status") or {}).get("conditions") or []
        states = {each["type"]: each for each in conditions}
        if states.get("Ready", {}).get("status") == "True":
            continue
        scheduled = states.get("PodScheduled", {"status": "True"})
        if scheduled["status"] != "False":
            return []
        found.append(f"pod {each['metadata']['name']}: {scheduled.get('message')}")
    return found[:1]
