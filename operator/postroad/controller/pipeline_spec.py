"""`spec.pipeline` of a MailQueue: the jobs of the data pipeline, and what they run with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from postroad.controller.spec_parts import Anything, LocalReference, Model, Schedule

JOBS = ("archive",)
"""Jobs that can be scheduled: commands of `postroad pipeline`, and fields of `spec.pipeline`."""

ADDRESS_KEY = "key"
"""Key of the Secret with the key of hashed addresses."""


class JobSpec(Model):
    """When a job runs."""

    schedule: Schedule
    """Cron expression in UTC, as in a CronJob."""


class AddressesSpec(Model):
    """What the lake has of addresses. Their domains are plain."""

    keep: Literal["hashed", "plain", "none"] = "hashed"
    """hashed: keyed hashes, for which keyRef names the key. plain: the addresses. none: nothing of
    them."""

    key_ref: LocalReference | None = None
    """Secret with the key of the hashes in `key`, 16 characters or more. With another key, the same
    address has another hash. Required with hashed."""


class ExecutorsSpec(Model):
    """Pods that share the work of a job. Without any, a job does all in its own pod."""

    instances: Annotated[int, Field(ge=0, le=100)] = 0
    """How many executors each run has."""

    cores: Annotated[int, Field(ge=1, le=64)] = 1
    """Tasks that an executor carries out at the same time, and CPUs that its pod requests."""

    memory: Annotated[str, Field(min_length=3, max_length=8, pattern="^[1-9][0-9]*(Mi|Gi)$")] = (
        "1Gi"
    )
    """Memory of an executor's Java, such as 1Gi or 1536Mi. Its pod has two fifths more, for what
    lies beside it."""


class Pipeline(Model):
    """Jobs of the data pipeline, which run on Spark: what each of them does is in the document
    lake.md. A run is a pod of its own, none beside another run of the same job, with two retries
    while a server is away."""

    archive: JobSpec | None = None
    """Copies what ended to the lake in the queue's bucket; cleanup waits for it. Every hour is a
    good schedule: `7 * * * *`. Absent: not run."""

    addresses: AddressesSpec = AddressesSpec()
    """What the lake has of addresses. Their domains are plain."""

    image: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^\S+$")] | None = None
    """The image of the jobs: the target `pipeline` of the Dockerfile. Absent: the one that the
    operator names."""

    executors: ExecutorsSpec = ExecutorsSpec()
    """Pods that share the work of a job. Without any, a job does all in its own pod."""

    template: Anything = Field(default={})
    """A partial PodTemplateSpec that is merged into the pods of the jobs: resources, node
    selectors, tolerations, … The container is called `pipeline`. Executors have their node
    selectors, tolerations and volumes too."""

    @property
    def scheduled(self) -> Mapping[str, str]:
        """The schedules of the jobs that run."""
        jobs = {name: getattr(self, name) for name in JOBS}
        return {name: job.schedule for name, job in jobs.items() if job is not None}
