"""A release of the chart in a real cluster, beside the operator of the other tests."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from stack import tools
from support.chart import HelmFailed, helm
from support.kubectl import KubectlFailed, Manifest
from support.sandbox import Sandbox

HELM_SECONDS = 180


def taking_over() -> list[str]:
    """Return the options by which Helm takes over what kubectl applied: Helm 4 applies server-side,
    where another field manager is a conflict."""
    is_helm_4 = tools.helm_version().startswith("v4.")
    return ["--take-ownership", *(["--force-conflicts"] if is_helm_4 else [])]


@dataclass
class ChartRelease:
    """A release of the chart as the first operator of a class that no other test has."""

    sandbox: Sandbox
    name: str = field(default_factory=lambda: f"chart-{secrets.token_hex(3)}")

    @property
    def namespace(self) -> str:
        """The namespace of the operator; it has the name of the class and of the release."""
        return self.name

    @property
    def operator(self) -> str:
        """The name of the operator's objects."""
        return f"postroad-operator-{self.name}"

    def helm(self, command: str, *arguments: str | Path) -> str:
        """Run a command about the release. Raises: HelmFailed."""
        _, _, kubeconfig = self.sandbox.kubectl_command()
        return helm(
            *(command, self.name, *arguments, "--namespace", self.namespace),
            *("--kubeconfig", kubeconfig, "--timeout", f"{HELM_SECONDS}s"),
            timeout=HELM_SECONDS + 30,
        )

    def put(self, command: str, chart: Path, **values: object) -> None:
        """Install or upgrade, and wait until the operators are ready. Other releases keep the roles
        of users; the CRDs were made by kubectl."""
        repository, _, tag = self.sandbox.installation.image.rpartition(":")
        chosen: Mapping[str, object] = {
            "image": {"repository": repository, "tag": tag},
            "class": self.name,
            "aggregatedRoles": {"create": False},
            **values,
        }
        self.helm(
            command, chart, "--wait", *taking_over(),
            *(f"--set-json={name}={json.dumps(value)}" for name, value in chosen.items()),
        )  # fmt: skip

    def deployment(self) -> Manifest:
        return self.sandbox.kubectl.get("deployment", self.operator, self.namespace)

    def queue_cluster(self) -> Manifest:
        """Return a QueueCluster `ours` of the release's class, beside the sandbox's own."""
        place = self.sandbox.namespace, f"{self.sandbox.keyspace}_ours"
        cluster = self.sandbox.installation.queue_cluster(*place, name="ours")
        cluster["spec"]["operatorClass"] = self.name
        return cluster

    def left(self) -> list[str]:
        """Return the objects of the release that are there, by kind and name, those of its
        namespace and those of none; pods that are going away too."""
        kinds = (
            "deployment,replicaset,pod,service,serviceaccount,poddisruptionbudget,role,"
            "rolebinding,clusterrole,clusterrolebinding"
        )
        chosen = ("-l", f"app.kubernetes.io/name=postroad-{self.name}")
        names = self.sandbox.kubectl("get", kinds, *chosen, "-n", self.namespace, "-o", "name")
        return names.split()

    def remove(self) -> None:
        """Remove what a test left: the queues while an operator can erase them, then all else."""
        kubectl, place = self.sandbox.kubectl, self.sandbox.namespace
        with suppress(KubectlFailed):
            kubectl("delete", "mq", "--all", "-n", place, "--timeout=90s", timeout=100)
        with suppress(HelmFailed):
            self.helm("uninstall", "--ignore-not-found", "--wait")
        kubectl("delete", "namespace", self.namespace, "--timeout=90s", timeout=100)


@contextmanager
def new_release(sandbox: Sandbox) -> Iterator[ChartRelease]:
    """Make the namespace of a release, which enforces the restricted standard; remove what there is
    of the release at the end."""
    made = ChartRelease(sandbox)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": made.namespace, "labels": labels}
    sandbox.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    try:
        yield made
    finally:
        made.remove()
