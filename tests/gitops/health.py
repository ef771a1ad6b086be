"""What kstatus and Argo CD say about the health of objects."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gitops import programs
from support.kubectl import Manifest
from support.repository import ROOT

CUSTOMIZATIONS = ROOT / "manifests" / "gitops" / "argo-cd" / "resource_customizations"
SCRIPTS = CUSTOMIZATIONS / "postroad.dev" / "_"
"""The script of health for every kind of the group, and the objects that it is tried with, in the
layout of Argo CD's own."""


def lua(value: Any) -> str:
    """Return JSON as an expression of Lua."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'[{lua(name)}] = {lua(each)}' for name, each in value.items())}}}"
    if isinstance(value, list):
        return f"{{{', '.join(map(lua, value))}}}"
    return "nil" if value is None else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Verdict:
    """What kstatus computes for an object, and the health that Argo CD gives it with a message."""

    kstatus: str
    health: str
    message: str


def verdicts(objects: Sequence[Manifest]) -> list[Verdict]:
    """Return the verdict about each object, Argo CD's by our script."""
    answered = subprocess.run(
        [programs.verdicts(), SCRIPTS / "health.lua"],
        input=json.dumps(objects),
        capture_output=True,
        text=True,
        check=True,
    )
    return [Verdict(*line.split("\t", 2)) for line in answered.stdout.splitlines()]
