"""`kubectl mailqueue plan|adopt`: a resource's configuration before it is applied, or after loss.

The resource is read with `kubectl` itself, so that its contexts and credentials are the user's.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import BinaryIO

import click

from postroad.bootstrap.configuration_histories import open_history
from postroad.cli import plan_output
from postroad.cli.configuration import REFUSED, adopt_into, adopted, wanting
from postroad.cli.kubectl import Kubectl, Resource, with_kubectl
from postroad.cli.last_applied import specification_after
from postroad.cli.queue_options import json_option
from postroad.controller.api import API_VERSION, MAIL_QUEUE
from postroad.domain.configuration.consistency import readable
from postroad.domain.configuration.documents import configuration_from
from postroad.domain.configuration.history import ConfigurationEvent
from postroad.domain.names import QueueName
from postroad.errors import InvalidInput, KubernetesRefused, KubernetesUnavailable, NotInstalled


@click.command()
@with_kubectl
@click.option(
    "-f",
    "--filename",
    "manifests",
    type=click.File("rb"),
    multiple=True,
    required=True,
    help="Manifests as for kubectl apply; - for standard input. What is no MailQueue is passed by.",
)
@click.option(
    "--from-view",
    is_flag=True,
    help="Decide by the history in Cassandra (POSTROAD_CASSANDRA_*) instead of the status.",
)
@json_option
def plan(kubectl: Kubectl, manifests: tuple[BinaryIO, ...], from_view: bool, as_json: bool) -> None:
    """Say what applying MailQueues would do to their view configurations.

    Nothing is changed. A field that a manifest leaves out keeps its stored value, as it does with
    kubectl apply, unless the last apply named it. Exits with 1 when one of them would be refused,
    for CI in GitOps repositories; with 75 when that cannot be found out now.
    """
    accepted = []
    for resource in mail_queues(manifests):
        queue = queue_of(resource, kubectl)
        stored = _stored(kubectl, queue, is_needed=not from_view)
        view = specification_after(resource, stored).get("view") or {}
        wanted = configuration_from(view)
        history = _mirror(queue) if from_view else _status(stored, queue)
        outcome = plan_output.outcome_of(str(queue), history, wanted)
        accepted.append(plan_output.say_outcome(outcome, as_json=as_json))
    if not accepted:
        raise click.UsageError("there is no MailQueue in the manifests")
    if not all(accepted):
        sys.exit(REFUSED)


@click.command()
@with_kubectl
@click.argument("name")
@click.option("--reason", required=True, help="What happened, for the history.")
@wanting
@json_option
def adopt(
    kubectl: Kubectl,
    name: str,
    reason: str,
    slice_window: timedelta | None,
    bucket_count: int | None,
    update_browse_start_pace: int | None,
    as_json: bool,
) -> None:
    """Record how the queue NAME is configured whose history was lost, restored or forked.

    Brings back to Cassandra (POSTROAD_CASSANDRA_*) what the resource's status remembers.
    """
    namespace = kubectl.default_namespace()
    resource = kubectl.require(name, namespace)
    wanted = adopted(slice_window, bucket_count, update_browse_start_pace)
    status = (resource.get("status") or {}).get("history") or []

    async def record() -> None:
        async with open_history(str(QueueName(namespace, name))) as opened:
            await adopt_into(opened, wanted, reason, status, as_json=as_json)

    asyncio.run(record())


def mail_queues(manifests: tuple[BinaryIO, ...]) -> Iterator[Resource]:
    """Yield the MailQueues of manifests, those in Lists too. Raises: InvalidInput; NotInstalled
    where there is nothing to read YAML with."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise NotInstalled("manifests cannot be read without PyYAML") from error
    for file in manifests:
        try:
            documents = [each for each in yaml.safe_load_all(file) if isinstance(each, dict)]
        except yaml.YAMLError as error:
            raise InvalidInput(f"{file.name} is not YAML: {error}") from error
        for document in documents:
            items = document.get("items") if document.get("kind") == "List" else [document]
            for item in items or ():
                if (item.get("apiVersion"), item.get("kind")) == (API_VERSION, MAIL_QUEUE.name):
                    yield item


def queue_of(resource: Resource, kubectl: Kubectl) -> QueueName:
    """Return the name of a resource's queue. Raises: InvalidInput."""
    metadata = resource.get("metadata") or {}
    namespace = metadata.get("namespace") or kubectl.default_namespace()
    if not metadata.get("name"):
        raise InvalidInput("a MailQueue in the manifests has no name")
    return QueueName(namespace, metadata["name"])


def _stored(kubectl: Kubectl, queue: QueueName, *, is_needed: bool) -> Resource | None:
    """Return the resource as the cluster has it. Raises: KubernetesUnavailable, KubernetesRefused
    when it is needed."""
    try:
        return kubectl.find(queue.name, queue.namespace)
    except (KubernetesUnavailable, KubernetesRefused):
        if is_needed:
            raise
        plan_output.note(
            f"{queue}: not read from the cluster; what is left out counts as its default"
        )
        return None


def _status(stored: Resource | None, queue: QueueName) -> tuple[ConfigurationEvent, ...]:
    """Return what the resource's status remembers; nothing for a queue that is new."""
    history = ((stored or {}).get("status") or {}).get("history") or ()
    if not history and os.environ.get("POSTROAD_CASSANDRA_CONTACT_POINTS"):
        return _mirror(queue)
    if not history:
        plan_output.note(
            f"{queue}: no status yet; data that wait in Cassandra may decide otherwise"
        )
    return readable(history)


def _mirror(queue: QueueName) -> tuple[ConfigurationEvent, ...]:
    async def load() -> tuple[ConfigurationEvent, ...]:
        async with open_history(str(queue)) as opened:
            return (await opened.history.load()).events

    return asyncio.run(load())
