"""Programs that tests call and that no server needs: built once, like the servers' own."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stack import golang, schemas
from stack.cache import Entry
from stack.errors import MissingRequirement
from stack.progress import Progress

HELM = "v3.22.0"
KUBECONFORM = ("github.com/yannh/kubeconform/cmd/kubeconform", "v0.8.0")


def helm_version() -> str:
    """Return the version of Helm that is used: the one that POSTROAD_STACK_HELM names, if any."""
    return os.environ.get("POSTROAD_STACK_HELM", HELM)


def helm() -> Entry:
    """Return the cache entry of Helm."""
    version = helm_version()
    package = f"helm.sh/helm/{version.partition('.')[0]}/cmd/helm"
    return golang.installed("helm", package, version, "3 minutes of CPU, once")


def kubeconform() -> Entry:
    """Return the cache entry of kubeconform."""
    return golang.installed("kubeconform", *KUBECONFORM, "half a minute of CPU, once")


TOOLS: Mapping[str, Callable[[], Sequence[Entry]]] = {
    "helm": lambda: (helm(),),
    "kubeconform": lambda: (kubeconform(), schemas.entry(), schemas.of_the_prometheus_operator()),
}
"""What each of them needs from the cache; the first is the program."""


def prepare(name: str, progress: Progress) -> None:
    """Build a tool unless it is there. Raises: StepFailed, MissingRequirement."""
    for entry in (*golang.toolchain(), *TOOLS[name]()):
        entry.ensure(progress)


def is_prepared(name: str) -> bool:
    """Return whether a tool is there."""
    try:
        return all(entry.path.is_dir() for entry in TOOLS[name]())
    except MissingRequirement:
        return False


def program(name: str) -> Path:
    """Return the path of a tool's program."""
    return TOOLS[name]()[0].path / name
