"""Makes the children of a MailQueue, and finds out how its pods are.

What all pods share goes first; then intake and workers, each for itself, so that what is refused of
one neither stops the other nor deletes what runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from postroad.controller import conditions as condition
from postroad.controller.api import DEPLOYMENT
from postroad.controller.apply_children import (
    Found,
    apply_children,
    delete_unwanted,
    find_children,
    scaled_elsewhere,
)
from postroad.controller.attempts import attempt
from postroad.controller.children import INTAKE, QUEUE, WORKER, selector, wanted_children
from postroad.controller.clusters import Cluster
from postroad.controller.conditions import Finding, good, unknown
from postroad.controller.credentials import check_certificate, read_credentials
from postroad.controller.queue_resource import PodContext, Queue
from postroad.controller.queue_servers import ReconcileState
from postroad.controller.spec import Intake, Workers
from postroad.controller.status import deployment_facts
from postroad.controller.workloads import workload_finding
from postroad.ports.kubernetes import Kubernetes, Object

Workload = tuple[str, str, str, Workers | Intake | None]
"""Condition, plural name of its pods for messages, component, and its part of the spec."""


class QueueChildren:
    """Makes the children of MailQueues. `image` is what workers and intake run."""

    def __init__(self, api: Kubernetes, image: str) -> None:
        self._api = api
        self._image = image

    async def make(self, cluster: Cluster, state: ReconcileState) -> list[Finding]:
        """Apply the children once the queue has a configuration, because workers before would only
        fail; after that also while a server is away."""
        queue = state.queue
        wanted: list[Workload] = [(condition.WORKERS_READY, "workers", WORKER, queue.spec.workers)]
        if queue.spec.intake:
            wanted.append((condition.INTAKE_READY, "intake pods", INTAKE, queue.spec.intake))
        if not state.configured:
            message = "pods are created once the queue has a configuration"
            return [unknown(each, condition.PENDING, message) for each, *_ in wanted]
        now: Found = {}
        failed = await self._apply(cluster, queue, now)
        if QUEUE in failed:
            return [replace(failed[QUEUE], condition=each) for each, *_ in wanted]
        findings = [failed.get(each[2]) or _workload(state, now, *each) for each in wanted]
        certificate = await attempt(condition.INTAKE_READY, lambda: self._check_certificate(queue))
        if not certificate.is_good:  # the reason why pods are not ready, which they cannot report
            findings[-1] = certificate
        return findings

    async def _apply(self, cluster: Cluster, queue: Queue, now: Found) -> dict[str, Finding]:
        """Apply the children, and put them into `now` as they are then. Return findings about the
        components that could not be applied; about all (`QUEUE`) when nothing could."""
        found: Found = {}
        context: list[PodContext] = []

        async def read() -> Finding:
            context.append(await self._context(cluster, queue))
            found.update(await find_children(self._api, queue))
            return await apply(QUEUE)

        async def apply(component: str) -> Finding:
            wanted = wanted_children(
                queue, context[0], (component,), scaled_elsewhere=scaled_elsewhere(found)
            )
            now.update(await apply_children(self._api, queue, wanted, found))
            return good(component, "applied")

        async def delete() -> Finding:
            await delete_unwanted(self._api, found, now, except_of=failed.keys())
            return good(QUEUE, "deleted")

        shared = await attempt(QUEUE, read)
        if not shared.is_good:
            return {QUEUE: shared}
        attempts = {
            WORKER: await attempt(condition.WORKERS_READY, lambda: apply(WORKER)),
            INTAKE: await attempt(condition.INTAKE_READY, lambda: apply(INTAKE)),
        }
        failed = {component: each for component, each in attempts.items() if not each.is_good}
        deleted = await attempt(QUEUE, delete)
        return failed if deleted.is_good else {QUEUE: deleted}

    async def _context(self, cluster: Cluster, queue: Queue) -> PodContext:
        credentials = cluster.credentials
        if cluster.namespace != queue.name.namespace:
            credentials = await read_credentials(self._api, queue.name.namespace, cluster.spec)
        return PodContext(
            cluster=cluster.spec,
            image=self._image,
            authorities=credentials.authorities,
            secret_versions=credentials.versions,
            cassandra_tls=bool(credentials.cassandra.authorities),
        )

    async def _check_certificate(self, queue: Queue) -> Finding:
        if queue.spec.intake and queue.spec.intake.tls:
            name = queue.spec.intake.tls.secret_ref.name
            await check_certificate(self._api, queue.name.namespace, name)
        return good(condition.INTAKE_READY, "the certificate can be used")


def _workload(
    state: ReconcileState,
    now: Mapping[tuple[str, str], Object],
    which: str,
    what: str,
    component: str,
    spec: Workers | Intake | None,
) -> Finding:
    field = "workers" if component == WORKER else "intake"
    if spec is None:
        state.report.fields[field] = None
        return good(which, f"no {what} declared", "NoneDeclared")
    deployment = now[DEPLOYMENT.name, f"{state.queue.name.name}-{component}"]
    facts: dict[str, Any] = dict(deployment_facts(deployment, spec.replicas))
    if component == WORKER:
        facts["selector"] = selector(state.queue, component)
    else:
        facts.pop("replicas")
    state.report.fields[field] = facts
    return workload_finding(which, what, deployment, spec.replicas)
