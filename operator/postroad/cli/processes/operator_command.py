"""`postroad operator`: reconciles QueueClusters, MailQueues and MailQueueTasks."""

import asyncio
import re
from importlib.metadata import version

import click

from postroad.cli.processes.event_loop import MANY_KEPT, run_long
from postroad.controller.cluster.clusters import MAX_WATCHED
from postroad.controller.run.workqueue import TASKS
from postroad.telemetry import logs

TOO_NEW = "a later release has run here, and this one does not know all of what it left:"


def _checked_class(_: click.Context, __: click.Parameter, value: str) -> str:
    """Refuse a name that no QueueCluster and no Lease can have."""
    if len(value) > 63 or re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", value) is None:
        raise click.BadParameter("at most 63 lower-case letters, digits and hyphens")
    return value


def _checked_namespaces(
    _: click.Context, __: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    """Refuse more namespaces than the status of a QueueCluster has room for."""
    if len(set(value)) > MAX_WATCHED:
        raise click.BadParameter(
            f"at most {MAX_WATCHED} namespaces; without this option, the operator watches all"
        )
    return value


@click.command()
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    callback=_checked_namespaces,
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
    "--pipeline-image",
    envvar="POSTROAD_OPERATOR_PIPELINE_IMAGE",
    default="",
    help="Image of the jobs of spec.pipeline, the target `pipeline` of the Dockerfile. Default: "
    "none, but what a MailQueue names.",
)
@click.option(
    "--pull-secret",
    "pull_secrets",
    multiple=True,
    envvar="POSTROAD_OPERATOR_PULL_SECRETS",
    help="Secret of a MailQueue's namespace by which its pods pull their images (repeatable; the "
    "variable takes several, separated by spaces).",
)
@click.option(
    "--class",
    "operator_class",
    callback=_checked_class,
    envvar="POSTROAD_OPERATOR_CLASS",
    default="default",
    show_default=True,
    help="Reconcile only QueueClusters with this spec.operatorClass, and their MailQueues.",
)
@click.option(
    "--lease-namespace",
    envvar="POSTROAD_OPERATOR_LEASE_NAMESPACE",
    default="postroad-system",
    show_default=True,
    help="Namespace of the Lease by which one of several operators leads, and of the list of what "
    "deletions left behind. The same for all operators of a cluster.",
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
@click.option(
    "--log-level",
    type=click.Choice(("DEBUG", "INFO", "WARNING", "ERROR")),
    envvar="POSTROAD_LOG_LEVEL",
    default="INFO",
    show_default=True,
)
@click.option(
    "--check",
    is_flag=True,
    help="Name what resources have that this release does not know, and end; exit code 1 if there "
    "is anything. Before a way back to this release.",
)
def operator(
    namespaces: tuple[str, ...],
    image: str,
    pipeline_image: str,
    pull_secrets: tuple[str, ...],
    operator_class: str,
    lease_namespace: str,
    tasks: int,
    ambient_credentials: bool,
    health_host: str,
    health_port: int,
    log_level: str,
    check: bool,
) -> None:
    """Reconcile QueueClusters, MailQueues and MailQueueTasks, until SIGTERM.

    Needs no storage of its own: Cassandra has the configuration histories, and each resource's
    status what was found. Of several, one leads, and the others stand by."""
    from postroad.controller.run import program
    from postroad.controller.run.options import Options

    logs.configure(log_level)
    if check:
        if unknown := asyncio.run(program.unknown_to_this_release(namespaces)):
            raise click.ClickException("\n".join((TOO_NEW, *unknown)))
        return
    options = Options(
        image=image,
        pipeline_image=pipeline_image,
        pull_secrets=pull_secrets,
        namespaces=namespaces,
        operator_class=operator_class,
        lease_namespace=lease_namespace,
        tasks=tasks,
        ambient_credentials=ambient_credentials,
    )
    run_long(program.serve(options, health_host, health_port), MANY_KEPT)
