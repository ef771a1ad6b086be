"""What the demo would do to a cluster of the user's, and whether it may: decided before anything
changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from support.installation import OPERATOR_NAMESPACE
from support.kubectl import Manifest

MARK = "postroad.dev/demo"
"""The label of namespaces that the demo made."""

CLUSTER_KINDS = {"Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}

Right = tuple[str, str, str]
"""A verb; a kind's resource, as `statefulsets.apps` or `pods/exec`; a namespace, empty of kinds of
the cluster."""


@dataclass(frozen=True)
class Found:
    """What is in the cluster before the demo."""

    context: str
    server: str
    namespaces: Mapping[str, Mapping[str, str]]
    """Of the demo's namespaces, the labels of those that exist."""

    has_crds: bool
    denied: Sequence[Right]
    """What the user has no right to."""


def resource(manifest: Manifest) -> str:
    """Return a kind as kubectl takes it for a resource.

    >>> resource({"apiVersion": "apps/v1", "kind": "StatefulSet"})
    'statefulsets.apps'
    >>> resource({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"})
    'networkpolicies.networking.k8s.io'
    >>> resource({"apiVersion": "v1", "kind": "Secret"})
    'secrets'
    """
    kind = manifest["kind"].lower()
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    group, slash, _ = manifest["apiVersion"].rpartition("/")
    return f"{plural}.{group}" if slash else plural


def rights(manifests: Iterable[Manifest], namespace: str) -> list[Right]:
    """Return what a user needs the right to, who applies these in a namespace and runs the demo."""
    found: dict[tuple[str, str], None] = {("mailqueues.postroad.dev", namespace): None}
    for each in manifests:
        place = each["metadata"].get("namespace", namespace)
        found[resource(each), "" if each["kind"] in CLUSTER_KINDS else place] = None
    inside = [("create", f"pods/{each}", namespace) for each in ("exec", "portforward")]
    # An apply of what is not there needs both verbs.
    return [(verb, *each) for each in found for verb in ("create", "patch")] + inside


def review(right: Right) -> Manifest:
    """Return the question to the API server whether its user has a right."""
    verb, kind, namespace = right
    name, _, group = kind.partition(".")
    name, _, subresource = name.partition("/")
    attributes = {"verb": verb, "group": group, "resource": name}
    if subresource:
        attributes["subresource"] = subresource
    if namespace:
        attributes["namespace"] = namespace
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }


def plan(found: Found, namespace: str, image: str, manifests: Sequence[Manifest]) -> str:
    """Return what the demo is going to do, for a person to read."""
    names = [(each["kind"], each["metadata"]["name"]) for each in manifests]
    crds = ", ".join(name for kind, name in names if kind == "CustomResourceDefinition")
    roles = ", ".join(f"{kind} {name}" for kind, name in names if kind.startswith("ClusterRole"))
    servers = ", ".join(name for kind, name in names if kind == "StatefulSet")
    return f"""\
The demo uses the cluster of the context {found.context} ({found.server}).
It creates there:
  in the cluster: {crds}; {roles}
  in the namespace {OPERATOR_NAMESPACE}: the operator, from the image {image}
  in the namespace {namespace}: {servers} and a mail sink for trying, whose data go with
    their pods; Secrets with drawn passwords; a QueueCluster, a MailQueue, and mail in it
It changes nothing else, and leaves all that for a closer look."""


def refusal(found: Found, namespace: str) -> str:
    """Return why the demo must not run in the cluster; empty where it may."""
    for name, labels in found.namespaces.items():
        if MARK not in labels:
            choice = ": choose another by NAMESPACE=" if name == namespace else ""
            return f"the namespace {name} is there, and no demo made it{choice}"
    if found.has_crds and OPERATOR_NAMESPACE not in found.namespaces:
        return (
            "the CRDs of postroad are there, and so is an operator of them, perhaps: the demo"
            " would change both. Use a cluster without postroad"
        )
    if found.denied:
        lines = [
            f"  {verb} {kind}{f' in {place}' if place else ''}"
            for verb, kind, place in found.denied
        ]
        return "you lack rights in this cluster. An administrator of it can run the demo:\n" + (
            "\n".join(lines)
        )
    return ""


def removal(context: str, namespace: str) -> list[str]:
    """Return the commands that remove what the demo made: queues first, while an operator can
    finish them."""
    kubectl = f"kubectl --context {context} delete"
    files = (
        "-f manifests/install.yaml -f manifests/executors.yaml -f manifests/consoles.yaml -f crds/"
    )
    return [
        f"{kubectl} mailqueue,queuecluster --all -n {namespace}",
        f"{kubectl} namespace {namespace} {OPERATOR_NAMESPACE}",
        f"{kubectl} {files} --ignore-not-found",
    ]
