"""`kubectl mailqueue plan|adopt`: what applying MailQueues would do to the configurations of their
views, and an adoption of what a resource's status remembers.

They read the resource with `kubectl` itself, so that its contexts and credentials are the user's.
"""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

import click

from postroad.bootstrap.configuration_histories import ConfigurationOf
from postroad.cli.kubectl import configuration_output as output
from postroad.cli.kubectl.configuration import (
    REFUSED,
    Given,
    entries_of,
    reason_option,
    record_adoption,
    wanting,
    with_history,
)
from postroad.cli.kubectl.manifests import mail_queues, queue_of, specification_after
from postroad.cli.kubectl.plugin import Kubectl, Resource, with_kubectl
from postroad.cli.options import json_option
from postroad.domain.configuration.consistency import readable
from postroad.domain.configuration.documents import configuration_from
from postroad.domain.configuration.history import ConfigurationEvent
from postroad.domain.queues.names import QueueName
from postroad.errors import KubernetesRefused, KubernetesUnavailable


@click.command("adopt")
@with_kubectl
@click.argument("name")
@reason_option
@wanting
@json_option
def adopt_resource(kubectl: Kubectl, name: str, reason: str, given: Given, as_json: bool) -> None:
    """Record how the queue NAME is configured whose history was lost, restored or forked.

    Brings back to Cassandra (POSTROAD_CASSANDRA_*) what the resource's status remembers.
    """
    namespace = kubectl.default_namespace()
    entries = entries_of(kubectl.require(name, namespace))
    record_adoption(str(QueueName(namespace, name)), given, reason, entries, as_json=as_json)


@click.command()
@with_kubectl
@click.option(
    "-f",
    "--filename",
    "manifests",
    type=click.File("rb"),
    multiple=True,
    required=True,
    help="Manifests as for kubectl apply; - for standard input. Other kinds are ignored.",
)
@click.option(
    "--from-view",
    is_flag=True,
    help="Decide by the history in Cassandra (POSTROAD_CASSANDRA_*) instead of the status.",
)
@json_option
def plan(kubectl: Kubectl, manifests: tuple[BinaryIO, ...], from_view: bool, as_json: bool) -> None:
    """Show what applying MailQueues would do to their view configurations.

    Nothing is changed. A field that a manifest leaves out keeps its stored value, as it does with
    kubectl apply, unless the last apply named it. Exits with 1 when one of them would be refused,
    for CI in GitOps repositories; with 75 when that cannot be found out now.
    """
    accepted = []
    for resource in mail_queues(manifests):
        queue = queue_of(resource, kubectl)
        stored = _stored(kubectl, queue, is_needed=not from_view)
        wanted = configuration_from(specification_after(resource, stored).get("view") or {})
        events = _recorded(queue) if from_view else _remembered(stored, queue)
        outcome = output.outcome_of(str(queue), events, wanted)
        accepted.append(output.say_outcome(outcome, as_json=as_json))
    if not accepted:
        raise click.UsageError("there is no MailQueue in the manifests")
    if not all(accepted):
        sys.exit(REFUSED)


def _stored(kubectl: Kubectl, queue: QueueName, *, is_needed: bool) -> Resource | None:
    """Return the resource as the cluster has it. Raises: KubernetesUnavailable, KubernetesRefused
    when it is needed."""
    try:
        return kubectl.find(queue.name, queue.namespace)
    except (KubernetesUnavailable, KubernetesRefused):
        if is_needed:
            raise
        output.note(f"{queue}: not read from the cluster; what is left out counts as its default")
        return None


def _remembered(stored: Resource | None, queue: QueueName) -> tuple[ConfigurationEvent, ...]:
    """Return what the resource's status remembers; nothing for a queue that is new."""
    entries = entries_of(stored or {})
    if not entries and os.environ.get("POSTROAD_CASSANDRA_CONTACT_POINTS"):
        return _recorded(queue)
    if not entries:
        output.note(f"{queue}: no status yet; data that wait in Cassandra may decide otherwise")
    return readable(entries)


def _recorded(queue: QueueName) -> tuple[ConfigurationEvent, ...]:
    async def load(opened: ConfigurationOf) -> tuple[ConfigurationEvent, ...]:
        return (await opened.history.load()).events

    return with_history(str(queue), load)
