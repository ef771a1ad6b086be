"""`kubectl mailqueue migrate james NAME QUEUE`: `postroad migrate james` as a Job in the queue's
image, which has his property files from a Secret, and needs no terminal that stays open."""

from __future__ import annotations

import secrets

import click

from postroad.cli.kubectl.plugin import Kubectl, Resource, with_kubectl
from postroad.cli.kubectl.remote import CONTAINER, debug_pod
from postroad.controller.pods.pods import job_spec
from postroad.domain.queues.names import QueueName

FOLDER = "/etc/james"

RETRIES = 6
"""Further pods of a Job whose run met a server that was away."""

SECONDS_KEPT = 7 * 24 * 3600
"""Time for which an ended Job stays, with its list of what was not moved."""


@click.group()
def migrate() -> None:
    """Move the mail of another system's queue into a MailQueue."""


@migrate.command()
@with_kubectl
@click.argument("name")
@click.argument("queue")
@click.option("--secret", required=True, help="The Secret with James' property files.")
@click.option("--dry-run", is_flag=True, help="Count mails and octets by slice.")
@click.option("--leave", is_flag=True, help="Copy, and change nothing at James.")
@click.option("--hidden", is_flag=True, help="Rows too that James never delivers.")
@click.option(
    "--image",
    help="The image of the pod. Without: that of the queue's Deployments, or of the MailQueue.",
)
def james(
    kubectl: Kubectl,
    name: str,
    queue: str,
    secret: str,
    image: str | None,
    **flags: bool,
) -> None:
    """Move what waits in the James queue QUEUE into the MailQueue NAME, by a Job.

    The Job can be repeated at any moment, also while James runs: each mail ends at one side. It
    fails when mails stay, which its log lists with the reason."""
    target = QueueName(kubectl.default_namespace(), name)
    found = kubectl.require(target.name, target.namespace)
    pod = debug_pod(kubectl, found, target, image)
    options = (f"--{each.replace('_', '-')}" for each, is_set in flags.items() if is_set)
    words = ["postroad", "migrate", "james", queue, "--conf", FOLDER, *options]
    made = job_of(pod, target, secret, [*words, "--queue", f"distributed://{target}"])
    kubectl.create(made, target.namespace)
    job = made["metadata"]["name"]
    click.echo(f"Job {job} begins: kubectl logs --namespace {target.namespace} -f job/{job}")


def job_of(pod: Resource, queue: QueueName, secret: str, command: list[str]) -> Resource:
    """Return the Job that runs a command in such a pod, with a Secret as files."""
    spec = {key: value for key, value in pod["spec"].items() if key != "activeDeadlineSeconds"}
    (container,) = spec["containers"]
    mount = {"name": "james", "mountPath": FOLDER, "readOnly": True}
    mounts = [*container.get("volumeMounts", ()), mount]
    volume = {"name": "james", "secret": {"secretName": secret}}
    spec["volumes"] = [*spec.get("volumes", ()), volume]
    spec["containers"] = [{**container, "command": command, "volumeMounts": mounts}]
    labels = pod["metadata"]["labels"]
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"{queue.name}-migrate-{secrets.token_hex(2)}",
            "namespace": queue.namespace,
            "labels": labels,
        },
        "spec": {
            **job_spec(template, [CONTAINER], retries=RETRIES),
            "ttlSecondsAfterFinished": SECONDS_KEPT,
        },
    }
