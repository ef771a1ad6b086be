"""Programs that tests call and that no server needs: built once, like the servers' own."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stack import golang, schemas
from stack.cache import Entry
from stack.errors import MissingRequirement
from stack.progress import Progress

HELM = ("helm.sh/helm/v3/cmd/helm", "v3.22.0")
KUBECONFORM = ("github.com/yannh/kubeconform/cmd/kubeconform", "v0.8.0")


def helm() -> Entry:
    """Return the cache entry of Helm."""
    return golang.installed("helm", *HELM, "3 minutes of CPU, once")


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
