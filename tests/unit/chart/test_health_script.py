"""Argo CD's script of health, by a plain interpreter, over the resources that were recorded in each
state; Argo CD's own evaluator runs it in `make test-gitops`."""

from __future__ import annotations

import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from gitops.health import SCRIPTS, lua

pytestmark = pytest.mark.needs("lua5.4")

CASES = {
    Path(each["inputPath"]).stem: (
        yaml.safe_load((SCRIPTS / each["inputPath"]).read_text()),
        each["healthStatus"],
    )
    for each in yaml.safe_load((SCRIPTS / "health_test.yaml").read_text())["tests"]
}


def health(found: dict[str, Any]) -> dict[str, str]:
    """Return what the script says of a resource."""
    script = f"obj = {lua(found)}\nhealth = dofile({lua(str(SCRIPTS / 'health.lua'))})\n"
    show = 'print(health.status .. "\\t" .. health.message)'
    done = subprocess.run(
        ["lua5.4", "-"], input=script + show, capture_output=True, text=True, check=True
    )
    status, _, message = done.stdout.rstrip("\n").partition("\t")
    return {"status": status, "message": message}


@pytest.mark.parametrize("state", CASES)
def test_a_recorded_state_has_the_health_that_argo_cd_gave_it(state: str) -> None:
    found, wanted = CASES[state]

    assert health(found) == wanted


def test_a_changed_spec_is_progressing_until_the_operator_has_looked_at_it() -> None:
    found = deepcopy(CASES["queue_ready"][0])
    assert health(found)["status"] == "Healthy"
    found["metadata"]["generation"] += 1

    assert health(found)["status"] == "Progressing"


def test_a_resource_without_a_status_is_progressing() -> None:
    found = deepcopy(CASES["queue_ready"][0])
    del found["status"]

    assert health(found)["status"] == "Progressing"
