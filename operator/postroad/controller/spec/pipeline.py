"""`spec.pipeline` of a MailQueue: the jobs of the data pipeline, and what they run with."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from postroad.controller.spec.parts import Anything, Model, Schedule, holds
from postroad.controller.spec.placement import Pod
from postroad.delivery_settings.lake_catalog import LakeCatalog
from postroad.delivery_settings.patterns import Duration
from postroad.delivery_settings.secret_references import SecretReference

JOBS = ("archive", "traffic", "destinations", "advise", "ages", "audit", "forget")
"""Jobs that can be scheduled: fields of `spec.pipeline`."""

OF_THE_SERVERS = {"ages": ("ages", "--spark"), "audit": ("audit", "--deep")}
"""The command of each job that does not read the lake; of the others: `postroad pipeline JOB`."""

DAY = timedelta(days=1)
MAX_AGE = timedelta(days=9999)

ADDRESS_KEY = "key"
"""Key of the Secret with the key of hashed addresses."""


class JobSpec(Model):
    """When a job runs."""

    schedule: Schedule
    """Cron expression in UTC, as in a CronJob."""

    @property
    def options(self) -> tuple[str, ...]:
        """The options of the job's command."""
        return ()


class WritingSpec(JobSpec):
    """When a job runs that writes the lake."""

    @property
    def options(self) -> tuple[str, ...]:
        """One that follows a killed run waits until its claim lapses."""
        return ("--wait", "15m")


class AuditSpec(JobSpec):
    """When an audit runs, and whether it repairs."""

    repair: bool = False
    """True if it deletes orphans, makes dead letters of mail without bytes, and gives mail new
    messages where some are lost. Without, nothing is written."""

    @property
    def options(self) -> tuple[str, ...]:
        return ("--repair",) if self.repair else ()


class ForgetSpec(WritingSpec):
    """When the lake forgets what is old, and how old that is."""

    older_than: Annotated[
        Duration, holds(lambda age: DAY <= age <= MAX_AGE, "olderThan must be from 24h to 239976h")
    ]
    """Age such as 9600h, which is 400 days: what was queued so long ago is deleted, with all former
    states. At least 24h; a part of a day counts as a whole one."""

    @property
    def options(self) -> tuple[str, ...]:
        return (*super().options, "--older-than", f"{-(-self.older_than // DAY)}d")


class AddressesSpec(Model):
    """Form in the lake of addresses. Their domains are plain."""

    keep: Literal["Hashed", "Plain", "None"] = "Hashed"
    """Hashed: keyed hashes, for which keyRef names the key. Plain: the addresses. None: nothing of
    them."""

    key_ref: SecretReference | None = None
    """Secret with the key of the hashes in `key`, 16 characters or more. With another key, the same
    address has another hash. Required with Hashed."""


class ExecutorsSpec(Model):
    """Pods that share the work of a job. Without any, a job does all in its own pod."""

    instances: Annotated[int, Field(ge=0, le=100)] = 0
    """Number of executors each run has."""

    cores: Annotated[int, Field(ge=1, le=64)] = 1
    """Tasks that an executor carries out at the same time. Its pod requests half a CPU for each."""

    memory: Annotated[str, Field(min_length=3, max_length=8, pattern="^[1-9][0-9]*(Mi|Gi)$")] = (
        "1Gi"
    )
    """Memory of an executor's Java, such as 1Gi or 1536Mi. Its pod has two fifths more, for what
    lies beside it."""


class Pipeline(Model):
    """Jobs of the data pipeline, which run on Spark: what each of them does is in the document
    lake.md. A run is a pod of its own, none beside another run of the same job, with two retries
    while a server is away."""

    archive: WritingSpec | None = None
    """Copies what ended to the lake in the queue's bucket; cleanup waits for it. Every hour is a
    good schedule: `7 * * * *`. Absent: not run."""

    traffic: JobSpec | None = None
    """Writes to its log who sent how much where in the last day, one JSON object a line, by hour,
    domains and site. Absent: not run."""

    destinations: JobSpec | None = None
    """Writes to its log how each destination answered in the last day. Its findings are
    destinations that are out of line with the 7 days before. Absent: not run."""

    advise: JobSpec | None = None
    """Writes to its log which view settings suit the mail of the lake. Its findings are settings
    that it would change. Absent: not run."""

    ages: JobSpec | None = None
    """Writes to its log how many mails wait, by domain and age. Absent: not run."""

    audit: AuditSpec | None = None
    """Looks for what is wrong between objects, dead letters, rows, marks and messages. Absent: not
    run."""

    forget: ForgetSpec | None = None
    """Deletes from the lake what is old. Absent: not run."""

    addresses: AddressesSpec = AddressesSpec()
    """Form in the lake of addresses. Their domains are plain."""

    catalog: LakeCatalog | None = None
    """Catalog that names the tables of the lake, for other programs too. Absent: the folder of the
    lake in the queue's bucket. A lake does not move with it: the tables of the new one are empty,
    and those of the former stay."""

    image: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^\S+$")] | None = None
    """The image of the jobs: the target `pipeline` of the Dockerfile. Absent: the one that the
    operator names."""

    executors: ExecutorsSpec = ExecutorsSpec()
    """Pods that share the work of a job. Without any, a job does all in its own pod."""

    pod: Pod | None = None
    """Placement of pods and what they run with. What it leaves out, the operator decides;
    `template` changes what comes of both."""

    template: Anything = Field(default={})
    """A partial PodTemplateSpec that is merged into the pods of the jobs, over `pod`. The container
    is called `pipeline`. Executors have all but the resources too."""

    @property
    def scheduled(self) -> Mapping[str, JobSpec]:
        """The jobs that run."""
        jobs = {name: getattr(self, name) for name in JOBS}
        return {name: job for name, job in jobs.items() if job is not None}

    @property
    def catalog_secret(self) -> SecretReference | None:
        """The Secret with the login at the catalog."""
        login = None if self.catalog is None else self.catalog.login
        return None if login is None else login.secret_ref
