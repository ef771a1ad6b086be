"""`postroad operator`: reconciles QueueClusters and MailQueues."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from importlib.metadata import version

import click

from postroad.controller.workqueue import TASKS
from postroad.errors import NotInstalled
from postroad.telemetry import logs


@click.command()
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    envvar="POSTROAD_OPERATOR_NAMESPACES",
    help="Watch only this namespace (repeatable; the variable takes several, separated by spaces). "
    "Default: all.",
)
@click.option(
    "--image",
    envvar="POSTROAD_OPERATOR_IMAGE",
    default=lambda: f"postroad:{version('postroad')}",
    show_default="postroad:<this version>",
    help="Image of workers and intakes.",
)
@click.option(
    "--deletion-timeout",
    type=click.IntRange(min=1),
    envvar="POSTROAD_OPERATOR_DELETION_TIMEOUT",
    default=120,
    show_default=True,
    help="Seconds after which a deletion ends although a server is away.",
)
@click.option(
    "--tasks",
    type=click.IntRange(1, 100),
    envvar="POSTROAD_OPERATOR_TASKS",
    default=TASKS,
    show_default=True,
    help="Resources reconciled at the same time; MailQueues of one QueueCluster: a quarter of it.",
)
@click.option(
    "--ambient-credentials",
    is_flag=True,
    envvar="POSTROAD_OPERATOR_AMBIENT_CREDENTIALS",
    help="Let QueueClusters without s3.secretRef use the cloud credentials of the operator's pod: "
    "every user who may create a QueueCluster then acts with these.",
)
@click.option(
    "--health-host",
    envvar="POSTROAD_HEALTH_HOST",
    default="127.0.0.1",
    show_default=True,
    help="Address for /healthz, /readyz and /metrics; *: all addresses.",
)
@click.option(
    "--health-port",
    type=click.IntRange(0, 65535),
    envvar="POSTROAD_HEALTH_PORT",
    default=8080,
    show_default=True,
    help="Port for /healthz, /readyz and /metrics.",
)
@click.option("--log-level", envvar="POSTROAD_LOG_LEVEL", default="INFO", show_default=True)
def operator(
    namespaces: tuple[str, ...],
    image: str,
    deletion_timeout: int,
    tasks: int,
    ambient_credentials: bool,
    health_host: str,
    health_port: int,
    log_level: str,
) -> None:
    """Reconcile QueueClusters and MailQueues, until SIGTERM.

    Needs no storage of its own: Cassandra has the configuration histories, and each resource's
    status what was found. Run one at a time.
    """
    try:
        from postroad.controller import program
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("kopf", "kubernetes", "yaml"):
            raise
        raise NotInstalled(f"the operator cannot run without {error.name}") from error

    logs.configure(log_level)
    program.quiet_logs()
    options = program.Options(
        image=image,
        namespaces=namespaces,
        tasks=tasks,
        deletion_timeout=timedelta(seconds=deletion_timeout),
        ambient_credentials=ambient_credentials,
    )
    asyncio.run(program.serve(options, health_host, health_port))
