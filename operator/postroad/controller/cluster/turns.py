"""Turns of QueueClusters: decides whether one asks its servers or checks all, tells the MailQueues
of it what changed, and ends what this process has of one that is gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from postroad.controller import reads
from postroad.controller.cluster.clusters import ClusterFacts, Clusters, secrets_of
from postroad.controller.cluster.consoles import Consoles
from postroad.controller.cluster.health import ClusterHealth
from postroad.controller.credentials import Connections
from postroad.controller.kubernetes.api import Key
from postroad.controller.pods.upgrades import Upgrades
from postroad.controller.spec.cluster import pace_of
from postroad.controller.spec.queue_resource import adopted_by
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Object


@dataclass(frozen=True, slots=True)
class LastCheck:
    """The last check of all about a QueueCluster: when it was, and what it saw. `upgrade`: whether
    MailQueues wait for the replacement of their pods, whether pods are being replaced, and whether
    that is not known of some.
    `adopted`: the claim that it may take over. `children`: its console."""

    at: timedelta
    generation: int
    users: frozenset[reads.User]
    upgrade: tuple[bool, ...]
    adopted: str = ""
    children: frozenset[reads.ChildVersion] = frozenset()

    def is_current(self, now: LastCheck, interval: timedelta) -> bool:
        """True if it is enough to ask the servers whether they answer: a check of all would see the
        same. `now`: with what is known at this moment."""
        return replace(now, at=self.at) == self and now.at - self.at < interval


@dataclass(slots=True)
class _Left:
    """A QueueCluster that is gone, and whose connections are open. `has_rights`: its console may
    have kept them."""

    uid: str
    has_rights: bool = True


class ClusterTurns:
    """The turns of an operator's QueueClusters. `brief`, `full`: from one to the next, and from one
    check of all to the next; `woken` gets the MailQueues for which something changed."""

    def __init__(
        self,
        health: ClusterHealth,
        clusters: Clusters,
        consoles: Consoles,
        upgrades: Upgrades,
        connections: Connections,
        indexes: reads.Indexes,
        remembered: reads.RememberedReads,
        absences: reads.Absences,
        clock: Clock,
        brief: timedelta,
        full: timedelta,
        woken: Callable[[Key], None],
    ) -> None:
        self._health = health
        self._clusters = clusters
        self._consoles = consoles
        self._upgrades = upgrades
        self._connections = connections
        self._indexes = indexes
        self._reads = remembered
        self._absences = absences
        self._clock = clock
        self._brief, self._full = brief, full
        self._woken = woken
        self._checked: dict[str, LastCheck] = {}
        self._left: dict[Key, _Left] = {}

    async def take(self, key: Key, found: Object) -> timedelta | None:
        """Take the turn of a QueueCluster; return after how long it has the next, None: never.
        Raises: KubernetesError."""
        metadata = found["metadata"]
        kept = await self._health.keep(found)
        if kept is None:
            return self._full
        found = kept
        if "deletionTimestamp" in metadata:
            return await self._health.end(found)
        for each in await self._upgrades.proceed(key, pace_of(found).at_once):
            self._woken(each)
        uid, users, at = metadata["uid"], self._indexes.users_of(key), self._clock.elapsed()
        progress, adopted = self._upgrades.progress(key), adopted_by(found)
        upgrade = bool(progress.waiting), bool(progress.rolling), bool(progress.unknown)
        children = self._indexes.children_of(key)
        now = LastCheck(at, metadata["generation"], users, upgrade, adopted, children)
        last = self._checked.get(uid)
        if last is not None and last.is_current(now, self._full):
            if not await self._health.notices_a_change(found):
                return self._brief
            await self._learn_facts(found)  # a full check of a server that is away takes its time
        had_tables = self._clusters.has_tables(found)
        await self._health.reconcile(found)
        await self._learn_facts(found)
        if self._clusters.has_tables(found) and not had_tables:
            for user in users:  # which found none, and would come again in seconds
                self._woken(user.key)
        self._checked[uid] = now
        return self._brief

    async def _learn_facts(self, cluster: Object) -> None:
        """Record the facts about a QueueCluster, and reconcile the MailQueues that depend on one
        that changed."""
        metadata = cluster["metadata"]
        uid, known = metadata["uid"], self._clusters.facts
        queues = await self._clusters.users.referring(metadata["namespace"], metadata["name"])
        secrets = await secrets_of(self._reads, cluster, queues, known.of(uid))
        before = {each: known.version(uid, each) for each in namespaces_of(queues)}
        answers = self._health.answers.get(uid, {})
        conflict = self._clusters.claims.conflict_of(uid)
        connection = self._connections.fingerprint(uid)
        known.record(uid, ClusterFacts(answers, connection, secrets, conflict))
        for each in queues:
            namespace = each["metadata"]["namespace"]
            if known.version(uid, namespace) != before[namespace]:
                self._woken(reads.key_of(each))

    def check_again(self, uid: str) -> None:
        """Let the next turn of a QueueCluster check all. Idempotent."""
        self._checked.pop(uid, None)

    # Those that are gone

    def note_there(self, key: Key) -> None:
        """End what is left of the QueueCluster that had this name before. Idempotent."""
        if left := self._left.pop(key, None):
            self._clusters.forget(left.uid)

    def note_gone(self, key: Key, uid: str) -> None:
        """Keep the connections of a QueueCluster that is gone until `leave` ends them."""
        self._left[key] = _Left(uid)

    def forget(self, uid: str) -> None:
        """Forget the checks of a QueueCluster. Idempotent."""
        self._health.answers.pop(uid, None)
        self.check_again(uid)

    async def leave(self, key: Key) -> timedelta | None:
        """Take the rights of the console of a QueueCluster that is gone; if it is for good, close
        the connections, and release its keyspace. Return when to look again, None: it is done.
        Raises: KubernetesUnavailable, KubernetesConflict."""
        gone = self._left.get(key)
        if gone is None:
            return None
        if gone.has_rights:
            gone.has_rights = not await self._consoles.unbind()
        if not self._absences.lasts(key):
            return self._full
        await self._clusters.release(gone.uid, key.namespace, key.name)
        self._absences.end(key)
        self._clusters.forget(self._left.pop(key).uid)
        return None


def namespaces_of(queues: Sequence[Object]) -> set[str]:
    """Return the namespaces of MailQueues."""
    return {each["metadata"]["namespace"] for each in queues}
