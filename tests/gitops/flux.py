"""Flux beside a real cluster: its two controllers as processes of this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gitops import programs
from gitops.git_repository import Repository
from stack import ports
from support.kubectl import Kubectl, Manifest, eventually, manifests

SYSTEM = "flux-system"
SECONDS = 240
"""How long a reconcile may take: a queue's pods are started in it."""


@dataclass(frozen=True)
class Flux:
    """The controllers, and what a user of Flux declares."""

    kubectl: Kubectl

    def follow(self, repository: Repository, namespace: str) -> None:
        """Declare a GitRepository `mail` that is read each second."""
        self.kubectl.apply(
            {
                "apiVersion": "source.toolkit.fluxcd.io/v1",
                "kind": "GitRepository",
                "metadata": {"name": "mail", "namespace": namespace},
                "spec": {"url": repository.url, "ref": {"branch": "main"}, "interval": "1s"},
            },
        )

    def carry_out(self, name: str, namespace: str, **spec: object) -> None:
        """Declare a Kustomization of a folder of that name."""
        self.kubectl.apply(
            {
                "apiVersion": "kustomize.toolkit.fluxcd.io/v1",
                "kind": "Kustomization",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {
                    "sourceRef": {"kind": "GitRepository", "name": "mail"},
                    "path": f"./{name}",
                    "interval": "1m",
                    "retryInterval": "2s",
                    "timeout": "3m",
                    "prune": True,
                    "wait": True,
                    **spec,
                },
            }
        )

    def carried_out(self, name: str, namespace: str, revision: str) -> None:
        """Wait until a Kustomization is Ready at a revision."""

        def ready() -> bool:
            found = self.kubectl.get("kustomization", name, namespace).get("status", {})
            assert found.get("lastAppliedRevision") == revision, found.get("conditions")
            condition = self._ready(found)
            assert condition.get("status") == "True", condition
            return True

        eventually(ready, within_seconds=SECONDS)

    def refused(self, name: str, namespace: str, revision: str) -> str:
        """Wait until a Kustomization fails at a revision; return its message."""

        def failed() -> str:
            found = self.kubectl.get("kustomization", name, namespace).get("status", {})
            assert found.get("lastAttemptedRevision") == revision, found
            condition = self._ready(found)
            assert condition.get("status") == "False", condition
            return str(condition["message"])

        return str(eventually(failed, within_seconds=SECONDS))

    @staticmethod
    def _ready(status: Manifest) -> Manifest:
        return next((c for c in status.get("conditions", []) if c["type"] == "Ready"), {})


@contextmanager
def running(kubectl: Kubectl, kubeconfig: Path, folder: Path) -> Iterator[Flux]:
    """Install Flux' definitions and run its controllers until the end of the block."""
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    for folder_of_crds in programs.definitions():
        kubectl.apply(*manifests(folder_of_crds))
    address = f"127.0.0.1:{ports.choose(str(folder), ['artifacts'])['artifacts']}"
    storage = folder / "artifacts"
    storage.mkdir(parents=True)
    more = {
        "source-controller": [
            *(f"--storage-path={storage}", f"--storage-addr={address}"),
            *(f"--storage-adv-addr={address}", "--requeue-dependency=1s"),
        ],
        "kustomize-controller": ["--requeue-dependency=1s", "--concurrent=20"],
    }
    with ExitStack() as ending:
        for name, options in more.items():
            ending.enter_context(_process(name, options, kubeconfig, folder))
        yield Flux(kubectl)


@contextmanager
def _process(name: str, options: list[str], kubeconfig: Path, folder: Path) -> Iterator[None]:
    off = ["--metrics-addr=0", "--health-addr=0", "--enable-leader-election=false"]
    environment = os.environ | {"KUBECONFIG": str(kubeconfig), "RUNTIME_NAMESPACE": SYSTEM}
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [programs.controller(name), *off, *options],
            stdout=log,
            stderr=log,
            env=environment,
            cwd=folder,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)
