"""The version of a release, in both forms that it has: SemVer for the chart, PEP 440 for Python.

Source: Semantic Versioning 2.0.0; PEP 440; Helm, Charts and Versioning."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import yaml

from release.errors import ReleaseRefused

_NUMBER = r"(0|[1-9]\d*)"
_VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-(alpha|beta|rc)\.{_NUMBER})?")
_SHORT = {"alpha": "a", "beta": "b", "rc": "rc"}


@dataclass(frozen=True)
class Version:
    """A version as SemVer has it, and what Python makes of it."""

    semantic: str
    python: str


def parse(text: str) -> Version:
    """Read a version that is one by SemVer and has a form by PEP 440. Raises: ReleaseRefused.

    >>> parse("1.2.3"), parse("1.2.3-rc.1").python
    (Version(semantic='1.2.3', python='1.2.3'), '1.2.3rc1')
    """
    found = _VERSION.fullmatch(text)
    if found is None:
        raise ReleaseRefused(
            f"{text or 'no version'}: name a version as 1.2.3 or 1.2.3-rc.1 (alpha, beta, rc):"
            " make release VERSION=1.2.3"
        )
    *numbers, stage, count = found.groups()
    suffix = f"{_SHORT[stage]}{count}" if stage else ""
    return Version(text, ".".join(numbers) + suffix)


def check(version: Version, source: Path) -> None:
    """Compare a version with those that stand in the source. Raises: ReleaseRefused for files that
    have another one."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((source / "charts/postroad/Chart.yaml").read_text())
    found = {
        "pyproject.toml: version": (project, version.python),
        "charts/postroad/Chart.yaml: version": (chart["version"], version.semantic),
        "charts/postroad/Chart.yaml: appVersion": (chart["appVersion"], version.semantic),
    }
    wrong = [f"  {place} is {has}, not {is_}" for place, (has, is_) in found.items() if has != is_]
    image = f"image: postroad:{version.semantic}\n"
    if image not in (source / "manifests/install.yaml").read_text():
        wrong.append(f"  manifests/install.yaml does not name {image.strip()}: run make manifests")
    if wrong:
        lines = "\n".join(wrong)
        raise ReleaseRefused(f"the source has another version; set and commit it first:\n{lines}")
