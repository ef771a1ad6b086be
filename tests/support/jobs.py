"""The controller of Jobs with the pods that it makes, for an API server in memory."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from postroad.controller.kubernetes.api import JOB, POD
from postroad.controller.pods.pods import JOB_OF_POD
from postroad.errors import KubernetesConflict
from postroad.ports.kubernetes import Object
from support.memory.kubernetes.client import MemoryKubernetes
from support.memory.kubernetes.world import KubernetesWorld, ObjectPlace


class JobPods:
    """Runs the pods of Jobs: each container leaves a message."""

    def __init__(self, world: KubernetesWorld) -> None:
        self.world = world
        self.api = MemoryKubernetes(world, "kube-controller-manager")

    def jobs(self) -> list[Object]:
        return [each for place, each in self.world.objects.items() if place.plural == "jobs"]

    async def scheduled(self, cron_job: Object, name: str) -> Object:
        """Make the Job of a run of a CronJob."""
        made = cron_job["spec"]["jobTemplate"]
        owner = {
            **{key: cron_job[key] for key in ("apiVersion", "kind")},
            **{key: cron_job["metadata"][key] for key in ("name", "uid")},
            "controller": True,
        }
        metadata = {"name": name, "namespace": cron_job["metadata"]["namespace"]}
        return await self.api.create(
            JOB,
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {**metadata, "ownerReferences": [owner], **made["metadata"]},
                "spec": made["spec"],
            },
        )

    async def begin(self, job: Object, **messages: str) -> None:
        """Make a pod of a Job, whose containers of these names have ended with these messages."""
        metadata, template = job["metadata"], job["spec"]["template"]
        number = sum(place.plural == "pods" for place in self.world.objects)
        labels = {**template["metadata"]["labels"], JOB_OF_POD: metadata["name"]}
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
        }
        pod = await self.api.create(
            POD,
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{metadata['name']}-{number}",
                    "namespace": metadata["namespace"],
                    "labels": labels,
                    "ownerReferences": [owner],
                },
                "spec": template["spec"],
            },
        )
        status: dict[str, Any] = {"phase": "Running"}
        for field, containers in (
            ("initContainerStatuses", template["spec"].get("initContainers", [])),
            ("containerStatuses", template["spec"]["containers"]),
        ):
            status[field] = [
                {
                    "name": each["name"],
                    "state": {"terminated": {"message": messages[each["name"]]}}
                    if each["name"] in messages
                    else {"running": {}},
                }
                for each in containers
            ]
        await self.api.replace_status(POD, {**pod, "status": status})
        await self._report(job, {"active": 1, "startTime": self._now()})

    async def end(self, job: Object, outcome: str = "Complete", message: str = "") -> None:
        """Let a Job have ended."""
        for place, pod in list(self.world.objects.items()):
            if place.plural == "pods":
                status = {**pod["status"], "phase": "Succeeded"}
                await self.api.replace_status(POD, {**pod, "status": status})
        condition = {"type": outcome, "status": "True", "lastTransitionTime": self._now()}
        ended = {"completionTime": self._now()} if outcome == "Complete" else {}
        conditions = [{**condition, "message": message}]
        await self._report(job, {"active": 0, "conditions": conditions, **ended})

    async def run(self, **messages: str) -> None:
        """Carry out every Job that is made, until cancelled."""
        while True:
            for job in self.jobs():
                if "status" not in job:
                    with suppress(KubernetesConflict):
                        await self.begin(job, **messages)
                        await self.end(job)
            await asyncio.sleep(1)

    async def _report(self, job: Object, change: dict[str, Any]) -> None:
        metadata = job["metadata"]
        found = self.world.objects[ObjectPlace("jobs", metadata["namespace"], metadata["name"])]
        status = {**(found.get("status") or {}), **change}
        await self.api.replace_status(JOB, {**found, "status": status})

    def _now(self) -> str:
        return self.world.moment()
