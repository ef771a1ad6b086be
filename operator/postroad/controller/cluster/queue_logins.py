"""Keeps the users of MailQueues at RabbitMQ, and the Secret with the one that pods use.

Every step is decided from facts that are read anew, so that the next reconcile goes on where one
was broken off. Source: ADR 0042.

The Secret with a MailQueue's user at RabbitMQ: what it tells, and its manifest."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from pydantic import SecretStr

from postroad.controller.cluster.clusters import Clusters
from postroad.controller.cluster.plans import BrokerPlan, Holder
from postroad.controller.kubernetes.api import ROTATE, SECRET, USER_SINCE, log_action, log_repair
from postroad.controller.pods.manifests import QUEUE, belongs_to, is_owned, owned_child
from postroad.controller.spec.queue_resource import Queue
from postroad.controller.status.conditions import timestamp
from postroad.domain.queues.broker_users import (
    CurrentUser,
    QueueUser,
    RotationPace,
    UserFacts,
    UserStep,
    next_user_step,
)
from postroad.domain.values.instants import format_duration
from postroad.errors import NameTaken
from postroad.logins import LOGIN
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kubernetes, Object
from postroad.ports.servers import QueueUsers


@dataclass(frozen=True, slots=True)
class UserSecret:
    current: CurrentUser
    password: SecretStr

    @classmethod
    def of(cls, found: Mapping[str, Any] | None, first: QueueUser) -> UserSecret | None:
        """Read the Secret of a queue; None where there is none, and where it does not have one of
        the queue's two users, with a password and an instant. `first`: one of them."""
        if found is None:
            return None
        data = found.get("data") or {}
        annotations = found["metadata"].get("annotations") or {}
        try:
            name, password = (_decoded(data.get(each)) for each in LOGIN)
            since = datetime.fromisoformat(annotations[USER_SINCE])
        except (KeyError, ValueError):
            return None
        user = QueueUser.parse(name)
        if user is None or user not in (first, first.other):
            return None
        if not password or since.tzinfo is None:
            return None
        current = CurrentUser(user, since, annotations.get(ROTATE, ""))
        return cls(current, SecretStr(password))

    def manifest(self, queue: Queue) -> Object:
        """Return the Secret, which the MailQueue owns."""
        login = (str(self.current.user), self.password.get_secret_value())
        data = {
            key: base64.b64encode(value.encode()).decode()
            for key, value in zip(LOGIN, login, strict=True)
        }
        _, wanted = owned_child(queue, SECRET, queue.login_secret, QUEUE, {"data": data})
        annotations = {USER_SINCE: timestamp(self.current.since), ROTATE: self.current.rotated}
        return {**wanted, "metadata": {**wanted["metadata"], "annotations": annotations}}


def _decoded(value: str | None) -> str:
    """Return a text of a Secret. Raises: ValueError."""
    try:
        return base64.b64decode(value or "", validate=True).decode()
    except binascii.Error as error:
        raise ValueError("not base64") from error


MAX_STEPS = 4
"""In one reconcile: no more follow each other at one instant."""

PASSWORD_BYTES = 32

TOLERATED = timedelta(minutes=5)
"""Time that the clock of another operator may have been ahead."""


@dataclass(frozen=True, slots=True)
class UserChanges:
    """Changes to the users of a queue, each as a sentence for an Event: what another process had
    changed or deleted; which user follows which."""

    repairs: list[str] = field(default_factory=list)
    switches: list[str] = field(default_factory=list)


class QueueLogins:
    """Makes, rotates and deletes the users of MailQueues whose QueueCluster asks for them. Every
    method raises: ServerError, KubernetesError."""

    def __init__(self, api: Kubernetes, clusters: Clusters, clock: Clock) -> None:
        self._api = api
        self._clusters = clusters
        self._clock = clock

    async def keep(self, plan: BrokerPlan) -> UserChanges:
        """Carry out the steps that are due. The queue in RabbitMQ has to be claimed before. Raises:
        NameTaken, where an object that is not the MailQueue's has the Secret's name."""
        changes, queue, pace = UserChanges(), plan.queue, plan.pace
        if pace is None:
            return changes
        first = QueueUser(queue.name, await self._clusters.claims.token(plan.place.holder))
        users = plan.place.servers.queue_users()
        for _ in range(MAX_STEPS):
            kept = await self._kept(queue, first)
            rights = await _rights(users, first)
            facts = UserFacts(first, kept.current if kept else None, rights, queue.rotate)
            decided = next_user_step(facts, pace, self._clock.now())
            if decided is None:
                break
            step, user = decided
            await self._carry_out(step, user, users, queue, kept)
            _report(changes, step, user, rights, pace)
        return changes

    async def delete(self, plan: BrokerPlan) -> None:
        """Delete both users of a queue whose pods have ended. Idempotent."""
        if plan.pace is None:
            return
        users = plan.place.servers.queue_users()
        first = QueueUser(plan.place.name, await self._clusters.claims.token(plan.place.holder))
        for each in (first, first.other):
            await users.delete(each)

    async def delete_unused(self, cluster: Holder, users: QueueUsers) -> None:
        """Delete the users of a QueueCluster's MailQueues that are gone, of the watched namespaces.
        A queue that is made meanwhile is among the MailQueues, because these are listed last."""
        watched, token = self._clusters.namespaces, await self._clusters.claims.token(cluster)
        unused = [
            each
            for each in await users.made_for(token)
            if not watched or each.queue.namespace in watched
        ]
        for certain in (False, True):
            there = await self._names(cluster, certain=certain) if unused else set()
            for each in unused:
                if str(each.queue) in there:
                    self._clusters.absences.end(each)
            unused = [each for each in unused if str(each.queue) not in there]
        for each in filter(self._clusters.absences.lasts, unused):
            self._clusters.absences.end(each)
            await users.delete(each)
            log_action("deleted a user", user=str(each))

    async def _names(self, cluster: Holder, *, certain: bool) -> set[str]:
        referring = await self._clusters.users.referring(
            cluster.namespace, cluster.name, certain=certain
        )
        found = (each["metadata"] for each in referring)
        return {f"{each['namespace']}.{each['name']}" for each in found}

    async def _kept(self, queue: Queue, first: QueueUser) -> UserSecret | None:
        """Read the Secret, which the MailQueue owns then."""
        found = await self._api.get(SECRET, queue.name.namespace, queue.login_secret)
        if found is not None and not belongs_to(found, queue):
            raise NameTaken(
                f"Secret {queue.login_secret} exists already, and this MailQueue does not own it",
                hint="delete or rename it; the API server removes that of an earlier MailQueue",
            )
        kept, now = UserSecret.of(found, first), self._clock.now()
        if kept is None or found is None:
            return None
        is_ours, is_ahead = is_owned(found, queue.uid), kept.current.since > now + TOLERATED
        if is_ahead:  # else neither user would be revoked until then
            kept = replace(kept, current=replace(kept.current, since=now))
        if is_ahead or not is_ours:
            await self._api.apply(SECRET, kept.manifest(queue))
        if not is_ours:
            log_action("took over a secret without an owner", secret=queue.login_secret)
        return kept

    async def _carry_out(
        self,
        step: UserStep,
        user: QueueUser,
        users: QueueUsers,
        queue: Queue,
        kept: UserSecret | None,
    ) -> None:
        match step:
            case UserStep.REVOKE:
                await users.delete(user)
            case UserStep.RESTORE:
                assert kept is not None
                await users.give(user, kept.password.get_secret_value())
            case UserStep.BEGIN | UserStep.SWITCH:
                password = secrets.token_urlsafe(PASSWORD_BYTES)
                await users.give(user, password)
                current = CurrentUser(user, self._clock.now(), queue.rotate)
                wanted = UserSecret(current, SecretStr(password)).manifest(queue)
                await self._api.apply(SECRET, wanted)


async def _rights(users: QueueUsers, first: QueueUser) -> dict[QueueUser, bool]:
    """Return the users of a queue that exist, and whether each has its rights."""
    found = {each: await users.has_rights(each) for each in (first, first.other)}
    return {each: has for each, has in found.items() if has is not None}


def _report(
    changes: UserChanges,
    step: UserStep,
    user: QueueUser,
    rights: Mapping[QueueUser, bool],
    pace: RotationPace,
) -> None:
    if step is UserStep.RESTORE:
        was = "changed" if user in rights else "deleted"
        log_repair("user", user=str(user), was=was)
        changes.repairs.append(f"user {user} of RabbitMQ was {was}; it is as declared again")
        return
    if step is UserStep.REVOKE:
        log_action("deleted a user", user=str(user))
        return
    log_action("made a user", user=str(user))
    if step is UserStep.SWITCH:
        overlap = format_duration(pace.overlap)
        note = f"pods get user {user} of RabbitMQ; {user.other} is deleted after {overlap}"
        changes.switches.append(note)
