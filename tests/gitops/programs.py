"""Programs beside the operator, built by Go: Flux' source- and kustomize-controller, a program of a
page around kstatus and Argo CD's evaluator of health, and metrics-server."""

from __future__ import annotations

import shutil
from pathlib import Path

from stack import cache, golang
from stack.cache import Entry

CONTROLLERS = {
    "source-controller": ("github.com/fluxcd/source-controller", "v1.9.3"),
    "kustomize-controller": ("github.com/fluxcd/kustomize-controller", "v1.9.6"),
}
"""Versions that the stack's Go builds from published modules."""

DEFINITIONS = {
    **{name: (*module, "config/crd/bases/*.yaml") for name, module in CONTROLLERS.items()},
    # Its definitions alone: a HelmRelease is checked against them, and none is carried out.
    "helm-controller": ("github.com/fluxcd/helm-controller", "v1.4.0", "config/crd/bases/*.yaml"),
    # A later module is downloaded by a later Go only.
    "argo-cd": ("github.com/argoproj/argo-cd/v3", "v3.5.1", "manifests/crds/application-crd.yaml"),
}
METRICS_SERVER = ("sigs.k8s.io/metrics-server/cmd/metrics-server", "v0.8.0")
VERDICTS, TOOLCHAIN = Path(__file__).with_name("verdicts"), "go1.27.4"
"""A Go module of our own, with its requirements and their hashes, and what Argo CD is built by."""


def controller(name: str) -> Path:
    """Return the program of one of Flux' controllers."""
    module, version = CONTROLLERS[name]
    built = golang.installed_from_inside(
        name, module, ".", version, "5 minutes of CPU, once", nested=[f"{module}/api"]
    )
    return golang.made(built) / name


def metrics_server() -> Path:
    """Return metrics-server's program."""
    name = "metrics-server"
    return golang.made(golang.installed(name, *METRICS_SERVER, "5 minutes of CPU, once")) / name


def definitions() -> list[Path]:
    """Return the folders of CustomResourceDefinitions, Flux' and Argo CD's."""
    folders = []
    for name, (module, version, path) in DEFINITIONS.items():

        def copied(source: Path, folder: Path, path: str = path) -> None:
            for each in source.glob(path):
                shutil.copy(each, folder)

        folders.append(golang.made(golang.made_from(f"{name}-crds", module, version, "1", copied)))
    return folders


def verdicts() -> Path:
    """Return a program that prints kstatus and Argo CD's health of objects (`verdicts/main.go`)."""

    def make(folder: Path, log: Path) -> None:
        command = ["build", "-trimpath", "-o", str(folder)]
        golang.build("verdicts", command, folder, log, VERDICTS, TOOLCHAIN)

    key = cache.key_of(VERDICTS, TOOLCHAIN)
    return (
        golang.made(Entry("verdicts", key, "kstatus, Argo CD: build (minutes of CPU)", make))
        / "verdicts"
    )
