"""`kubectl mailqueue plan|adopt`: what applying manifests of MailQueues would do to the
configurations of their views, and an adoption of what a resource's status remembers. They read the
resource with `kubectl` itself, so that its contexts and credentials are the user's.

A field that a manifest leaves out keeps its stored value, unless the same applier named it before:
then it is removed, and the API server fills in the default. So the defaults of this release are no
guide to what an apply changes. The rules are those of kubectl's three-way merge
(https://kubernetes.io/docs/tasks/manage-kubernetes-objects/declarative-config/)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import click
import yaml

from postroad.administration.configuration import ConfigurationOf, outcome_of
from postroad.cli.kubectl import configuration
from postroad.cli.kubectl.plugin import Kubectl, Resource, with_kubectl
from postroad.cli.options import json_option
from postroad.controller.kubernetes.api import API_VERSION, LAST_APPLIED, MAIL_QUEUE
from postroad.domain.configuration.consistency import readable
from postroad.domain.configuration.documents import configuration_from
from postroad.domain.configuration.history import ConfigurationEvent
from postroad.domain.queues.names import QueueName
from postroad.errors import InvalidInput, KubernetesRefused, KubernetesUnavailable


def mail_queues(manifests: tuple[BinaryIO, ...]) -> Iterator[Resource]:
    """Yield the MailQueues of manifests, those in Lists too. Raises: InvalidInput."""
    for file in manifests:
        try:
            documents = [each for each in yaml.safe_load_all(file) if isinstance(each, dict)]
        except yaml.YAMLError as error:
            raise InvalidInput(f"{file.name} is not YAML: {error}") from error
        for document in documents:
            items = document.get("items") if document.get("kind") == "List" else [document]
            for item in items if isinstance(items, list) else ():
                found = _mapping(item)
                if (found.get("apiVersion"), found.get("kind")) == (API_VERSION, MAIL_QUEUE.name):
                    yield item


def queue_of(resource: Resource, kubectl: Kubectl) -> QueueName:
    """Return the name of a resource's queue. Raises: InvalidInput."""
    metadata = _mapping(resource.get("metadata"))
    name, namespace = metadata.get("name"), metadata.get("namespace")
    if not isinstance(name, str) or not isinstance(namespace, str | None):
        raise InvalidInput("a MailQueue in the manifests has no name, or one that is no text")
    return QueueName(namespace or kubectl.default_namespace(), name)


def specification_after(manifest: Resource, stored: Resource | None) -> Mapping[str, Any]:
    """Return `spec` as it is after an apply of a manifest, before the API server's defaults."""
    wanted = _mapping(manifest.get("spec"))
    if stored is None:
        return wanted
    return _merged(_mapping(stored.get("spec")), _last_applied(stored), wanted)


def _merged(
    stored: Mapping[str, Any], last: Mapping[str, Any], wanted: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the stored fields, less those that only the last apply named, with this one's."""
    result = {name: value for name, value in stored.items() if name in wanted or name not in last}
    for name, value in wanted.items():
        before = result.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            result[name] = _merged(before, _mapping(last.get(name)), value)
        elif value is not None:
            result[name] = value
        elif name not in last or last[name] is not None:
            # A null removes the stored value when it is first applied; repeated, it does nothing.
            result.pop(name, None)
    return result


def _last_applied(stored: Resource) -> Mapping[str, Any]:
    """Return the specification that was applied last; nothing when `kubectl apply` made none of
    it. Server-side appliers, as Flux is one, are recorded as owners of fields instead."""
    metadata = _mapping(stored.get("metadata"))
    text = _mapping(metadata.get("annotations")).get(LAST_APPLIED)
    if text is not None:
        try:
            return _mapping(_mapping(json.loads(text)).get("spec"))
        except ValueError:
            return {}
    owned: dict[str, Any] = {}
    for entry in metadata.get("managedFields") or ():
        if entry.get("operation") == "Apply" and not entry.get("subresource"):
            _add(owned, _mapping(_mapping(entry.get("fieldsV1")).get("f:spec")))
    return owned


def _add(owned: dict[str, Any], fields: Mapping[str, Any]) -> None:
    """Add the fields of one owner; those of a mapping are written with `f:` in front."""
    for name, inner in fields.items():
        if name.startswith("f:"):
            _add(owned.setdefault(name.removeprefix("f:"), {}), _mapping(inner))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


@click.command("adopt")
@with_kubectl
@click.argument("name")
@configuration.reason_option
@configuration.wanting
@json_option
def adopt_resource(
    kubectl: Kubectl, name: str, reason: str, given: configuration.Given, as_json: bool
) -> None:
    """Record how the queue NAME is configured whose history was lost, restored or forked.

    Brings back to Cassandra (POSTROAD_CASSANDRA_*) what the resource's status remembers."""
    namespace = kubectl.default_namespace()
    entries = configuration.entries_of(kubectl.require(name, namespace))
    configuration.record_adoption(
        str(QueueName(namespace, name)), given, reason, entries, as_json=as_json
    )


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
    for CI in GitOps repositories; with 75 when that cannot be found out now."""
    accepted = []
    for resource in mail_queues(manifests):
        queue = queue_of(resource, kubectl)
        stored = _stored(kubectl, queue, is_needed=not from_view)
        wanted = configuration_from(specification_after(resource, stored).get("view") or {})
        events = _recorded(queue) if from_view else _remembered(stored, queue)
        outcome = outcome_of(str(queue), events, wanted)
        accepted.append(configuration.say_outcome(outcome, as_json=as_json))
    if not accepted:
        raise click.UsageError("there is no MailQueue in the manifests")
    if not all(accepted):
        sys.exit(configuration.REFUSED)


def _stored(kubectl: Kubectl, queue: QueueName, *, is_needed: bool) -> Resource | None:
    """Return the cluster's resource. Raises: KubernetesUnavailable, KubernetesRefused if needed."""
    try:
        return kubectl.find(queue.name, queue.namespace)
    except (KubernetesUnavailable, KubernetesRefused):
        if is_needed:
            raise
        configuration.note(
            f"{queue}: not read from the cluster; what is left out counts as its default"
        )
        return None


def _remembered(stored: Resource | None, queue: QueueName) -> tuple[ConfigurationEvent, ...]:
    """Return what the resource's status remembers; nothing for a queue that is new."""
    entries = configuration.entries_of(stored or {})
    if not entries and os.environ.get("POSTROAD_CASSANDRA_CONTACT_POINTS"):
        return _recorded(queue)
    if not entries:
        configuration.note(
            f"{queue}: no status yet; data that wait in Cassandra may decide otherwise"
        )
    return readable(entries)


def _recorded(queue: QueueName) -> tuple[ConfigurationEvent, ...]:
    async def load(opened: ConfigurationOf) -> tuple[ConfigurationEvent, ...]:
        return (await opened.history.load()).events

    return configuration.with_history(str(queue), load)
