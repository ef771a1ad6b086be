"""Typed settings, read once from the environment and validated at start.

Variables are named `POSTROAD_<SECTION>_<FIELD>`; the docstring under each field is its reference.
A section is a class of `queue_cluster`, `delivery`, `intake` or `pipeline`."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationError

from postroad.domain.smtp.next_hops import HOSTNAME_PATTERN
from postroad.errors import InvalidSettings
from postroad.settings.delivery import Reports, Retry, Worker, WorkerFunction, WorkerWebhook
from postroad.settings.documents import Section
from postroad.settings.intake import Intake
from postroad.settings.pipeline import Pipeline
from postroad.settings.queue_cluster import S3, BrokerSettings, Cassandra, RabbitMQ

__all__ = ["SECTIONS", "Settings", "from_environment"]

PREFIX = "POSTROAD_"


def _hostname(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(HOSTNAME_PATTERN, value):
        raise ValueError("write a full name (mx.example.org) or an address literal ([192.0.2.1])")
    return value


class Settings(Section):
    """All settings of a process."""

    rabbitmq: RabbitMQ = RabbitMQ()
    cassandra: Cassandra = Cassandra()
    s3: S3 = S3()
    broker: BrokerSettings = BrokerSettings()
    retry: Retry = Retry()
    worker: Worker = Worker()
    worker_webhook: WorkerWebhook = WorkerWebhook()
    worker_function: WorkerFunction = WorkerFunction()
    reports: Reports = Reports()
    intake: Intake = Intake()
    pipeline: Pipeline = Pipeline()

    hostname: Annotated[str, BeforeValidator(_hostname)] | None = None
    """The name of this process in SMTP: a fully qualified name or an address literal. None: the
    machine's own name."""

    health_host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """The address that answers probes and scrapes; `*`: all of both families."""

    health_port: Annotated[int, Field(ge=0, le=65535)] = 8080

    drain_seconds: Annotated[float, Field(ge=0)] = 25
    """Time that mails in flight may take after SIGTERM; less than a pod's grace period of 30 s."""

    ca_file: Path | None = None
    """Certificate authorities for every server that has none of its own, and for a next hop where
    TLS is required or implicit; None: the system's."""

    log_level: Annotated[str, Field(pattern=r"^(DEBUG|INFO|WARNING|ERROR)$")] = "INFO"


SECTIONS: Mapping[str, type[Section]] = {
    name: type(field.default)
    for name, field in Settings.model_fields.items()
    if isinstance(field.default, Section)
}


def from_environment(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings. Unknown POSTROAD_* variables are ignored. Raises: InvalidSettings with the
    variable's name, and never with a secret."""
    environment = os.environ if environment is None else environment
    values: dict[str, object] = {}
    for section, model in SECTIONS.items():
        found = {
            field: environment[name]
            for field in model.model_fields
            if (name := f"{PREFIX}{section}_{field}".upper()) in environment
        }
        values[section] = {field: value for field, value in found.items() if value != ""}
    for field in Settings.model_fields.keys() - SECTIONS.keys():
        if value := environment.get(f"{PREFIX}{field}".upper()):
            values[field] = value
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(
            f"{PREFIX}{'_'.join(str(part) for part in each['loc'][:2])}".upper()
            + f": {each['msg'].removeprefix('Value error, ')}"
            for each in error.errors(include_input=False, include_url=False)
        )
        raise InvalidSettings(problems) from None
