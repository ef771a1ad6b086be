"""`kubectl mailqueue browse|show|… NAME`: the day-2 commands, run in a pod of the queue.

A pod of the queue has its servers, credentials and certificates; an administrator needs none of
them, only the right to `exec` there. Where no pod runs, one is made for the command: it has what
that needs of a worker's pod, sleeps meanwhile, and ends by itself after an hour."""

import copy
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedReader
from typing import Any

import click

from postroad.cli.kubectl.plugin import Kubectl, Resource, with_kubectl
from postroad.cli.tables import is_terminal
from postroad.controller.kubernetes.api import GROUP, INSTANCE, QUEUE_CLUSTER
from postroad.controller.pods.manifests import INTAKE, WORKER, labels
from postroad.controller.pods.pods import command_container, command_pod, pod_template
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.queue_resource import PodContext, Queue, cluster_of_pods
from postroad.domain.queues.names import QueueName
from postroad.errors import ClusterNotFound, InvalidInput, PostroadError

COMPONENTS = (WORKER, INTAKE)
"""The containers of the queue's pods, each of which has what a command needs."""

CONTAINER = "postroad"
MAX_SECONDS = 3600
"""After this time the pod ends by itself."""


def labelled(queue: QueueName) -> tuple[str, str]:
    """Return the option that selects the queue's pods and Deployments."""
    return "--selector", f"app.kubernetes.io/name=postroad,{INSTANCE}={queue.name}"


def debug_pod(
    kubectl: Kubectl, resource: Resource, queue: QueueName, image: str | None
) -> Resource:
    """Return the pod, from the template of one of the queue's Deployments, or of the StatefulSet of
    an intake with an outbox; for a queue without them as a worker's. `image`: in place of theirs.
    Raises: InvalidInput where no image is known, ClusterNotFound, KubernetesUnavailable,
    KubernetesRefused."""
    kinds = ("deployments", "statefulsets")
    found = (
        each for kind in kinds for each in kubectl.all(kind, queue.namespace, *labelled(queue))
    )
    workload = next(found, None)
    if workload is not None:
        spec = workload["spec"]["template"]["spec"]
    elif own := image or resource["spec"].get("image"):
        spec = _spec(kubectl, resource, own)
    else:
        raise InvalidInput(
            f"{queue} has no Deployment whose image a pod could have",
            hint="name the image of postroad: --image registry.example.org/postroad:TAG",
        )
    (container,) = (each for each in spec["containers"] if each["name"] in COMPONENTS)
    volumes = {each["name"] for each in spec.get("volumes", ())}
    # Without the mount of an outbox, whose volume belongs to one pod.
    mounts = [each for each in container.get("volumeMounts", ()) if each["name"] in volumes]
    container = {**container, "volumeMounts": mounts}
    if image is not None:
        container["image"] = image
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{queue.name}-cli-{secrets.token_hex(2)}",
            "namespace": queue.namespace,
            "labels": {
                "app.kubernetes.io/name": "postroad",
                INSTANCE: queue.name,
                "app.kubernetes.io/component": "command",
            },
        },
        "spec": {
            **command_pod(spec),
            "activeDeadlineSeconds": MAX_SECONDS,
            "containers": [
                {
                    **command_container(container),
                    "name": CONTAINER,
                    "command": ["sleep", str(MAX_SECONDS)],
                }
            ],
        },
    }


def _spec(kubectl: Kubectl, resource: Resource, image: str) -> dict[str, Any]:
    """Return the spec of a worker's pod."""
    queue = Queue.of(resource)
    name, namespace = queue.spec.cluster_ref.name, queue.cluster_namespace
    cluster = kubectl.get(f"{QUEUE_CLUSTER.plural}.{GROUP}", name, namespace)
    if cluster is None:
        raise ClusterNotFound(f"there is no QueueCluster {namespace}/{name}")
    servers = QueueClusterSpec.model_validate(cluster["spec"])
    context = PodContext(cluster_of_pods(servers, queue), image)
    template = pod_template(queue, context, WORKER, labels(queue, WORKER), {})
    spec: dict[str, Any] = template["spec"]
    return spec


NOT_PASSED_ON = frozenset({"url", "is_by_spark", "master"})
"""Options of a command that a pod of the queue cannot obey, or that name the queue: it has no
Spark."""

START_SECONDS = 120
"""For a pod that is made for a command: the image may have to be pulled."""


class AsGiven(click.ParamType[str]):
    """A value that another type accepts, kept as it was written."""

    def __init__(self, inner: click.ParamType[Any]) -> None:
        self.name = inner.name
        self._inner = inner

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        self._inner.convert(value, param, ctx)
        return str(value)


def remote(local: click.Command, *above: str) -> click.Command:
    """Return a command of the same name and options for the queue of a resource, and of a group a
    group of such commands. `above`: the groups that the command is in."""
    if isinstance(local, click.Group):
        names = (*above, str(local.name))
        below = {name: remote(each, *names) for name, each in local.commands.items()}
        return click.Group(local.name, commands=below, help=local.help)
    passed_on = [_as_given(each) for each in local.params if each.name not in NOT_PASSED_ON]

    @with_kubectl
    @click.argument("resource", metavar="NAME")
    @click.option(
        "--image",
        help="The image of a pod that is made for the command where none of the queue's runs. "
        "Without: that of the queue's Deployments, or of the MailQueue.",
    )
    def run(kubectl: Kubectl, resource: str, image: str | None, **given: Any) -> None:
        queue = QueueName(kubectl.default_namespace(), resource)
        found = kubectl.require(queue.name, queue.namespace)
        if "is_hashed" in given and given["is_hashed"] is None:
            given["is_hashed"] = is_hashed(found)
        command = ["postroad", *above, str(local.name), "--queue", f"distributed://{queue}"]
        command += arguments(passed_on, given)
        if given.get("is_agreed") is False and is_terminal():
            click.confirm(f"{local.name} mails of {queue}?", abort=True)
        files = [each for each in given.values() if isinstance(each, BufferedReader)]
        with place(kubectl, found, queue, image) as (pod, container):
            code = kubectl.execute(pod, container, queue.namespace, command, *files)
        if code:
            sys.exit(code if code > 0 else 128 - code)  # a signal, as shells number it

    made = click.command(local.name, help=local.help)(run)
    made.params += passed_on
    return made


def _as_given(param: click.Parameter) -> click.Parameter:
    given = copy.copy(param)
    if isinstance(param.type, click.File):
        given.type = click.File("rb")  # of this machine: the command in the pod reads it from us
    elif not (isinstance(param, click.Option) and param.is_flag):
        given.type = AsGiven(param.type)
    return given


def is_hashed(resource: Resource) -> bool:
    """Return whether the suppression list of a MailQueue keeps hashes. Pods of workers alone have
    the file of delivery, in which the command looks for that."""
    found = (resource["spec"].get("delivery") or {}).get("suppression") or {}
    return bool(found.get("addresses") == "Hashed")


def arguments(params: Sequence[click.Parameter], given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the command line that gives these values, arguments that may be many last."""
    for param in sorted(params, key=lambda each: each.nargs == -1):
        value = given[str(param.name)]
        if isinstance(param, click.Argument):
            yield from ("--", *value) if param.nargs == -1 else (_word(value),)
        elif value is False and param.secondary_opts:
            yield param.secondary_opts[0]
        elif value is not None and value is not False:
            yield param.opts[0] if value is True else f"{param.opts[0]}={value}"


def _word(value: str | BufferedReader) -> str:
    return value if isinstance(value, str) else "-"


@contextmanager
def place(
    kubectl: Kubectl, resource: Resource, queue: QueueName, image: str | None
) -> Iterator[tuple[str, str]]:
    """Give the pod and the container to run a command in. Raises: KubernetesUnavailable,
    KubernetesRefused."""
    found = running(kubectl.all("pods", queue.namespace, *labelled(queue)))
    if found is not None:
        yield found
        return
    made = debug_pod(kubectl, resource, queue, image)
    pod = made["metadata"]["name"]
    click.echo(f"no pod of {queue} runs: pod {pod} is made for this command", err=True)
    try:  # a command that is interrupted may have made it already
        kubectl.create(made, queue.namespace)
        kubectl.wait_ready(pod, START_SECONDS, queue.namespace)
        yield pod, CONTAINER
    finally:
        _delete(kubectl, pod, queue.namespace)


def _delete(kubectl: Kubectl, pod: str, namespace: str) -> None:
    try:
        kubectl.delete(pod, namespace)
    except PostroadError as error:
        click.echo(f"pod {pod} was not deleted and ends by itself: {error}", err=True)


def running(pods: Sequence[Resource]) -> tuple[str, str] | None:
    """Return a pod and the container of ours that runs in it: a ready one, if there is any."""
    found = sorted(
        (not status.get("ready"), COMPONENTS.index(status["name"]), pod["metadata"]["name"])
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        for status in (pod.get("status") or {}).get("containerStatuses") or ()
        if status["name"] in COMPONENTS and "running" in (status.get("state") or {})
    )
    return (found[0][2], COMPONENTS[found[0][1]]) if found else None
