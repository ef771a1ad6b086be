"""`kubectl mailqueue console [NAME]`: the console of a QueueCluster in the browser of this machine,
through a forwarded port, with the rights of the user or of a ServiceAccount."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import webbrowser

import click

from postroad.cli.kubectl.plugin import Kubectl, Resource, with_kubectl
from postroad.controller.kubernetes.api import GROUP, QUEUE_CLUSTER, console_audience
from postroad.controller.pods.console_pods import child_name
from postroad.controller.spec.queue_resource import cluster_of
from postroad.errors import ClusterNotFound, InvalidInput, KubernetesRefused, KubernetesUnavailable

CLUSTERS = f"{QUEUE_CLUSTER.plural}.{GROUP}"
TIMEOUT_SECONDS = 30.0
MAX_ANSWER = 64 * 1024


@click.command()
@click.argument("name", required=False)
@click.option(
    "--service-account",
    metavar="NAME",
    help="A ServiceAccount of the namespace, whose rights count, in place of the user's token.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Of loopback (default: any)."
)
@click.option("--no-browser", is_flag=True, help="Print the link alone.")
@with_kubectl
def console(
    kubectl: Kubectl, name: str | None, service_account: str | None, port: int, no_browser: bool
) -> None:
    """Open the console of a QueueCluster, at the MailQueue NAME, until Ctrl-C.

    Without NAME: of the only QueueCluster of the namespace that has one."""
    namespace = kubectl.default_namespace()
    found = _cluster(kubectl, name, namespace)
    at, cluster = found["metadata"]["namespace"], found["metadata"]["name"]
    audience = console_audience(at, cluster)
    token = (
        kubectl.token_of(service_account, namespace, audience)
        if service_account
        else kubectl.own_token()
    )
    with kubectl.forwarded(child_name(cluster), port, at) as (local, forwarding):
        address = f"http://127.0.0.1:{local}"
        to = f"&to=/queues/{namespace}/{name}" if name else ""
        link = f"{address}{_link(address, token)}{to}"
        click.echo(f"console of QueueCluster {at}/{cluster} at {address}, until Ctrl-C")
        if no_browser or not webbrowser.open(link):
            click.echo(f"open {link}")
        forwarding.communicate()  # read, else the forwarding would wait for its output


def _cluster(kubectl: Kubectl, name: str | None, namespace: str) -> Resource:
    """Return the QueueCluster whose console is meant. Raises: InvalidInput, ClusterNotFound."""
    if name is not None:
        place = cluster_of(kubectl.require(name, namespace))
        found = kubectl.get(CLUSTERS, place.name, place.namespace)
        if found is None:
            raise ClusterNotFound(f"there is no QueueCluster {place.namespace}/{place.name}")
        if "console" not in found["spec"]:
            raise InvalidInput(
                f"QueueCluster {place.namespace}/{place.name} has no console",
                hint="set its spec.console",
            )
        return found
    having = [each for each in kubectl.all(CLUSTERS, namespace) if "console" in each["spec"]]
    if len(having) != 1:
        raise InvalidInput(
            f"namespace {namespace} has {len(having)} QueueClusters with a console",
            hint="name a MailQueue, or a namespace with one (-n)",
        )
    return having[0]


def _link(address: str, token: str) -> str:
    """Exchange a token for a link that is good once. Raises: KubernetesRefused where the console
    does not take it, KubernetesUnavailable."""
    request = urllib.request.Request(  # noqa: S310 - of loopback
        f"{address}/session", method="POST", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310
            link: str = json.loads(answer.read(MAX_ANSWER))["link"]
        if not str(link).startswith("/?token="):  # as `@evil.example`, after the address
            raise KubernetesRefused("the link of the console leads elsewhere")
        return link
    except urllib.error.HTTPError as error:
        text = json.loads(error.read(MAX_ANSWER) or b"{}").get("detail", error.reason)
        raise KubernetesRefused(f"the console answers {error.code}: {text}") from error
    except (OSError, ValueError, KeyError) as error:
        raise KubernetesUnavailable(f"the console does not answer: {error}") from error
