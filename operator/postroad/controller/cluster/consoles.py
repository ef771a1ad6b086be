"""Makes the consoles of QueueClusters, deletes those that are no longer declared, and keeps who may
ask the API server for reviews."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pydantic import ValidationError

from postroad.controller.cluster.clusters import Cluster
from postroad.controller.kubernetes.api import (
    CLUSTER_ROLE_BINDING,
    CONSOLE,
    DEPLOYMENT,
    QUEUE_CLUSTER,
    log_action,
)
from postroad.controller.kubernetes.drift import ApplyResponses
from postroad.controller.pods.applying import (
    Found,
    all_taken,
    apply_children,
    delete_unwanted,
    find_labelled,
)
from postroad.controller.pods.console_pods import (
    KINDS,
    Shown,
    account_of,
    child_name,
    console_children,
    labels,
)
from postroad.controller.pods.manifests import Child, belongs
from postroad.controller.pods.readiness import deployment_facts, shortage
from postroad.controller.reads import key_of
from postroad.controller.spec.cluster import class_of_cluster, spec_of
from postroad.controller.spec.queue_resource import PodContext, Queue
from postroad.controller.status import conditions as condition
from postroad.controller.status.conditions import Report, attempt, bad, good
from postroad.errors import InvalidQueueName, KubernetesRefused, NameTaken
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kubernetes, Object

NEEDS = "spec.console needs consoles=true of the operator's chart, or manifests/consoles.yaml"


class Consoles:
    """The consoles of an operator's QueueClusters. `role`: the name of the ClusterRoleBinding that
    lets them ask for reviews."""

    def __init__(
        self,
        api: Kubernetes,
        clock: Clock,
        role: str,
        operator_class: str,
        image: str,
        pull_secrets: tuple[str, ...] = (),
        namespaces: Sequence[str] = (),
    ) -> None:
        self._api, self._answers = api, ApplyResponses(clock)
        self._role, self._class = role, operator_class
        self._image, self._pull_secrets = image, pull_secrets
        self._namespaces = tuple(namespaces)

    async def keep(self, found: Object, cluster: Cluster, users: Sequence[Object]) -> Report:
        """Make the console of a QueueCluster as declared, or delete it. `users`: the MailQueues
        that it serves. Raises: KubernetesUnavailable, KubernetesConflict."""
        metadata, spec = found["metadata"], cluster.spec.console
        is_own = partial(belongs, uid=metadata["uid"], tags=labels(metadata["name"]))
        label = f"{CONSOLE}={metadata['name']}"
        there = await find_labelled(self._api, metadata["namespace"], label, is_own, KINDS)
        if spec is None and not there:
            return Report(fields={"console": None})
        now, wanted = Found(), list[Child]()
        async with attempt(condition.CONSOLE_READY) as attempted:
            context = PodContext(
                cluster.spec,
                self._image,
                cluster.credentials.tls_versions,
                pull_secrets=self._pull_secrets,
            )
            if spec is not None:
                wanted = console_children(found, spec, context, _queues(users))
            applied = apply_children(self._api, wanted, there, (), self._answers, is_own)
            now = {each.place: each.object async for each in applied}
            await delete_unwanted(self._api, there, now)
            await self.bind()
        if spec is None and attempted.finding.is_good:
            return Report(fields={"console": None})
        if (failed := attempted.finding).reason == NameTaken.__name__:
            taken = await all_taken(self._api, key_of(found), is_own, wanted, there)
            failed = replace(failed, **taken)
        if not failed.is_good:
            return Report([failed])
        deployment = now[DEPLOYMENT.name, child_name(metadata["name"])]
        facts = deployment_facts(deployment, 1)
        facts.pop("replicas")
        missing = shortage(deployment, 1, "console pods")
        finding = good(condition.CONSOLE_READY, "the console is ready")
        if missing is not None:
            reason = condition.PODS_NOT_READY
            finding = bad(condition.CONSOLE_READY, reason, missing, retryable=True)
        return Report([finding], {"console": facts})

    async def bind(self) -> None:
        """Let the ServiceAccounts of all consoles ask for reviews, and no others. Subjects of
        namespaces that this operator does not watch stay. Raises: KubernetesError."""
        try:
            found = await self._api.get(CLUSTER_ROLE_BINDING, None, self._role)
        except KubernetesRefused as error:
            raise KubernetesRefused(str(error), hint=NEEDS) from error
        if found is None:
            raise KubernetesRefused(f"there is no ClusterRoleBinding {self._role}", hint=NEEDS)
        before = found.get("subjects") or []
        watched = self._namespaces
        others = [each for each in before if watched and each.get("namespace") not in watched]
        wanted = [*others, *await self._accounts()]
        if wanted != before:
            version = found["metadata"]["resourceVersion"]
            change = {"metadata": {"resourceVersion": version}, "subjects": wanted}
            await self._api.patch(CLUSTER_ROLE_BINDING, None, self._role, change)
            log_action("changed who may ask for reviews", accounts=len(wanted))

    async def unbind(self) -> bool:
        """Take the right to reviews from ServiceAccounts whose QueueCluster is gone: who makes one
        of that name later would have it. Return False where the API server refuses that. Raises:
        KubernetesUnavailable, KubernetesConflict."""
        try:
            await self.bind()
        except KubernetesRefused:  # most often none was ever given
            return False
        return True

    async def _accounts(self) -> list[dict[str, str]]:
        # All of them: a subject goes once no QueueCluster names it, which none of them knows alone.
        places = self._namespaces or (None,)
        found = [each for at in places for each in await self._api.list(QUEUE_CLUSTER, at)]
        named = set()
        for each in found:
            metadata = each["metadata"]
            is_ours = class_of_cluster(each) == self._class
            if "console" not in each["spec"] or "deletionTimestamp" in metadata or not is_ours:
                continue
            try:
                spec = spec_of(each).console
            except ValidationError:
                continue
            if spec is not None:
                named.add((metadata["namespace"], account_of(spec, metadata["name"])))
        return [
            {"kind": "ServiceAccount", "name": name, "namespace": namespace}
            for namespace, name in sorted(named)
        ]


def _queues(users: Sequence[Object]) -> list[tuple[Queue, Shown]]:
    """Return the MailQueues whose specs are valid, and that stay, with their conditions."""
    found = []
    for each in users:
        if "deletionTimestamp" in each["metadata"]:
            continue
        try:
            found.append((Queue.of(each), _shown(each)))
        except (ValidationError, InvalidQueueName):
            continue
    return found


def _shown(queue: Object) -> Shown:
    """Return `Ready` of a MailQueue, and its conditions that are not good."""
    found = []
    for each in (queue.get("status") or {}).get("conditions") or ():
        name, is_true = each["type"], each["status"] == "True"
        is_good = is_true != (name in ("Paused", "Stalled"))
        if name == "Ready" or not (is_good or name == "Reconciling"):
            found.append((name, each["status"], each["reason"]))
    return found
