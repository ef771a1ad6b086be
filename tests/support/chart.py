"""The chart as Helm renders it. `python -m support.chart` writes what is made of it: the files of
`manifests/` that install the operator, and the chart's copy of the CRDs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from stack import kube, tools
from stack.progress import Progress
from support.kubectl import Manifest, documents_in
from support.repository import ROOT

CHART = ROOT / "charts" / "postroad"
CRDS = ROOT / "crds"
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
"""Sets of values that the chart is tried with."""

MONITORING = {
    "serviceMonitor": "ServiceMonitor",
    "podMonitor": "PodMonitor",
    "prometheusRule": "PrometheusRule",
    "dashboards": "ConfigMap",
}
"""Kinds of the objects for monitoring, none by default, by the value that makes each."""

NAMESPACE = "postroad-system"
HEADER = f"""\
# The postroad operator. Apply the CRDs first: kubectl apply --server-side -f crds/
# Rendered from charts/postroad by `make manifests`.
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
  labels:
    app.kubernetes.io/name: postroad
    pod-security.kubernetes.io/enforce: restricted
"""


class HelmFailed(Exception):
    """Helm failed; the message is its output."""


def helm(*arguments: str | Path, timeout: float = 60) -> str:
    """Run Helm and return what it printed. Raises: HelmFailed with what it complained."""
    done = subprocess.run(
        [tools.program("helm"), *arguments], capture_output=True, text=True, timeout=timeout
    )
    if done.returncode:
        raise HelmFailed(done.stderr.strip() or done.stdout.strip())
    return done.stdout


def template(*options: str | Path, chart: Path = CHART) -> str:
    """Return what Helm would install as the release `postroad`. Raises: HelmFailed."""
    version = kube.kubernetes_version()
    return helm(
        *("template", "postroad", chart, "--namespace", NAMESPACE, "--kube-version", version),
        *options,
    )


def rendered(*options: str | Path) -> list[Manifest]:
    """Return the objects that Helm would install. Raises: HelmFailed."""
    return [each for each in documents_in(template(*options)) if each]


def installed_by_kubectl() -> dict[Path, str]:
    """Return the files of `manifests/` that are rendered, with their texts."""
    image = ("--no-hooks", "--set", "image.repository=postroad")
    install = template(*image, "--set", "crds.install=false")
    users = template(
        *image, "--set", "rabbitmqUsers=true", "--show-only", "templates/rabbitmq-users.yaml"
    )
    executors = template(
        *image,
        *("--set", "pipelineExecutors=true"),
        *("--show-only", "templates/pipeline-executors.yaml"),
    )
    consoles = template(*image, "--set", "consoles=true", "--show-only", "templates/consoles.yaml")
    folder = ROOT / "manifests"
    return {
        folder / "consoles.yaml": _without_sources(consoles).removeprefix("---\n"),
        folder / "install.yaml": HEADER + _without_sources(install),
        folder / "executors.yaml": _without_sources(executors).removeprefix("---\n"),
        folder / "users.yaml": _without_sources(users).removeprefix("---\n"),
    }


def _without_sources(text: str) -> str:
    """Leave the comments out by which Helm names the template of each object."""
    return re.sub(r"^# Source\b.*\n", "", text, flags=re.MULTILINE)


def copied_crds() -> dict[Path, str]:
    """Return the files of the chart that are copies of the CRDs, with their texts."""
    folder = CHART / "files" / "crds"
    return {folder / each.name: each.read_text() for each in sorted(CRDS.glob("*.yaml"))}


def main() -> int:
    """Write all of these files; returns the exit code."""
    progress = Progress()
    tools.prepare("helm", progress)
    progress.close()
    for path, text in (copied_crds() | installed_by_kubectl()).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
