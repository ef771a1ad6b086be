"""metrics-server beside a real cluster, as a process of this machine that the API server asks."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gitops import programs
from stack import Stack, ports
from support.kubectl import Kubectl, eventually

GROUP, VERSION = "metrics.k8s.io", "v1beta1"
PLACE = {"namespace": "kube-system", "name": "metrics-server"}
SECONDS = 120
"""Until it has read the kubelet twice: CPU is a difference of two counts."""


@contextmanager
def running(running_stack: Stack, kubectl: Kubectl, folder: Path) -> Iterator[None]:
    """Offer the resources of pods and nodes until the end of the block."""
    kubeconfig = running_stack.kubernetes.kubeconfig
    port = ports.choose(str(folder), ["metrics"])["metrics"]
    options = [
        *(f"--kubeconfig={kubeconfig}", f"--authentication-kubeconfig={kubeconfig}"),
        *(f"--authorization-kubeconfig={kubeconfig}", f"--cert-dir={folder}"),
        *("--bind-address=127.0.0.1", f"--secure-port={port}", "--metric-resolution=15s"),
        # The kubelet signs its own certificate, and the node has no name in any DNS.
        *("--kubelet-insecure-tls", "--kubelet-preferred-address-types=InternalIP"),
    ]
    with (folder / "metrics-server.log").open("wb") as log:
        process = subprocess.Popen(
            [programs.metrics_server(), *options], stdout=log, stderr=log, cwd=folder
        )
    try:
        running_stack.kubernetes.publish(PLACE["namespace"], PLACE["name"], port, 443)
        kubectl.apply(
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": f"{VERSION}.{GROUP}"},
                "spec": {
                    "group": GROUP,
                    "version": VERSION,
                    "service": PLACE,
                    "insecureSkipTLSVerify": True,
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                },
            }
        )
        try:
            eventually(lambda: "node1" in kubectl("top", "node"), within_seconds=SECONDS)
            yield
        finally:
            # One that does not answer would keep every namespace from being deleted.
            kubectl("delete", "apiservice", f"{VERSION}.{GROUP}")
            kubectl("delete", "service,endpointslice", PLACE["name"], "-n", PLACE["namespace"])
    finally:
        process.terminate()
        process.wait(10)
