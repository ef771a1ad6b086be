"""What tests and demos do with a running cluster of any kind.

Pods reach servers of this machine through a forwarder. It listens on the cluster's gateway, which
is the machine's address on the network that it shares with the cluster. A Service without a
selector gives this address a name.
"""

import abc
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from stack import folders, kube, ports, processes
from stack.errors import StackError
from stack.forwarder import Forward, read_forwards, write_forwards
from stack.server import ManagedServer

MANAGER = "postroad-stack"


class Cluster(ManagedServer):
    """A Kubernetes cluster of this stack."""

    name = "kubernetes"
    port_names = ()

    @property
    @abc.abstractmethod
    def gateway(self) -> str:
        """The machine's address on the cluster's network."""

    @abc.abstractmethod
    def load_image(self, archive: Path) -> None:
        """Give the cluster the images of an archive, unless the cluster has the images of this very
        file.

        Raises:
            StepFailed: the cluster refused it.
        """

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, for callers on this machine."""
        return self.directory / "kubeconfig"

    @property
    def kubectl(self) -> kube.Kubectl:
        """Run kubectl against the cluster: `kubectl("get", "pods")` returns what it prints."""
        return kube.Kubectl(self.kubeconfig)

    def environment(self) -> dict[str, str]:
        """Return where its kubeconfig is."""
        return {"KUBECONFIG": str(self.kubeconfig)}

    def secrets(self) -> dict[str, str]:
        """Return the users' tokens."""
        return kube.new_secrets()

    def start_forwarder(self) -> None:
        """Let pods reach what is published, from now on."""
        processes.start(
            self.directory,
            [*script("forwarder"), self._forwards_path, self.gateway],
            self.directory / "forwarder.log",
        )

    def publish(self, namespace: str, name: str, host_port: int, service_port: int) -> None:
        """Let pods of a namespace reach a port of our loopback as `name:service_port`."""
        self.publish_ports(namespace, name, {service_port: host_port})

    def publish_ports(self, namespace: str, name: str, ports: Mapping[int, int]) -> None:
        """Publish several ports (service port to host port) under one name; idempotent."""
        self._forward({port: Forward(port) for port in ports.values()})
        self._ensure_namespace(namespace)
        documents = {"apiVersion": "v1", "kind": "List"}
        items = service_documents(namespace, name, ports, self.gateway)
        self.kubectl("apply", "-f", "-", stdin=json.dumps({**documents, "items": items}))

    def _ensure_namespace(self, namespace: str) -> None:
        try:
            self.kubectl("create", "namespace", namespace)
        except subprocess.CalledProcessError as error:
            if "AlreadyExists" not in error.stderr:
                raise StackError(f"namespace {namespace}: {error.stderr}") from error

    def cut(self, host_ports: Iterable[int]) -> None:
        """Cut pods off from ports of the machine: reset connections, refuse new ones."""
        self._forward({port: Forward(port, cut=True) for port in host_ports})

    def mend(self, host_ports: Iterable[int]) -> None:
        """Let pods reach these ports again."""
        self._forward({port: Forward(port) for port in host_ports})

    @property
    def _forwards_path(self) -> Path:
        return self.directory / "forwards.json"

    def _forward(self, changes: Mapping[int, Forward]) -> None:
        forwards = {**read_forwards(self._forwards_path), **changes}
        write_forwards(self._forwards_path, forwards)

        def is_done() -> bool:
            return all(
                ports.answers(port, self.gateway) != wanted.cut for port, wanted in changes.items()
            )

        self.wait_until(is_done, timeout_seconds=10)


def service_documents(
    namespace: str, name: str, ports: Mapping[int, int], address: str
) -> list[dict[str, object]]:
    """Return a Service without a selector and where it leads."""
    labels = {"app.kubernetes.io/managed-by": MANAGER}
    named = [(f"port-{port}", port, target) for port, target in ports.items()]
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"ports": [{"name": label, "port": port} for label, port, _ in named]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": {**labels, "kubernetes.io/service-name": name},
            },
            "addressType": "IPv4",
            "ports": [{"name": label, "port": target} for label, _, target in named],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        },
    ]


def script(name: str) -> list[str | Path]:
    """Return the command that runs a file of this package by itself, in a small process."""
    return [sys.executable, "-P", "-u", folders.SOURCES / f"{name}.py"]
