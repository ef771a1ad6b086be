"""Every command of the runbooks, the how-tos and the tutorial for a cluster runs against one, and
prints something; those that stand in their sentences too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.repository import ROOT
from support.sandbox import Sandbox

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600, func_only=True),
]

SECTION = re.compile(r"^## (\w+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)$", re.MULTILINE)
IN_A_SENTENCE = re.compile(r"`(kubectl [^`\n]* -n mail\b[^`\n]*)`")

MAY_BE_EMPTY = (
    "kubectl get events ",
    "kubectl get mailqueuetasks ",
    "kubectl get jobs ",
    "kubectl get cronjobs ",
    "kubectl mailqueue sites ",
    "kubectl mailqueue dead-letters ",
    "kubectl mailqueue browse ",
    "kubectl mailqueue ages ",
    "kubectl get mailqueue outgoing -n mail -o jsonpath={.status.pipeline}",
    "kubectl exec deploy/outgoing-worker -n mail -- postroad maintain ",
    "printf ",
)
"""Beginnings of commands that list what a queue without trouble has none of, print nothing, or
write a file for the next."""

WITHOUT_METRICS = "kubectl top "
"""Needs a metrics server, which the local cluster has not."""

OF_AN_OUTBOX = "kubectl exec -n mail outgoing-intake-0 "
"""Needs an intake with an outbox, whose pod has a number (tests/e2e/test_outbox.py)."""


def commands() -> dict[str, list[str]]:
    """Return the commands of each alert's section."""
    pages = sorted((ROOT / "docs" / "operator").glob("runbooks-*.md"))
    return {
        alert: commands_of(text)
        for page in pages
        for alert, text in SECTION.findall(page.read_text())
    }


def commands_of(text: str) -> list[str]:
    """Return the commands of blocks, in their order, then those of sentences that are whole."""
    blocks = [line for block in BLOCK.findall(text) for line in COMMAND.findall(block)]
    return blocks + IN_A_SENTENCE.findall(BLOCK.sub("", text))


TASKS = [
    page
    for folder in ("tutorial", "how-to")
    for page in sorted((ROOT / "docs" / folder).glob("*.md"))
    if "$ kubectl " in page.read_text()
]
"""Pages whose commands run in their order, since each has its task."""


def test_each_command_of_the_runbooks_runs(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.apply(sandbox.mail_queue())
    sandbox.wait_ready()
    found = commands()
    assert len(found) >= 19
    assert all(found.values()), found

    assert (
        failed_of(sorted({line for lines in found.values() for line in lines}), sandbox, tmp_path)
        == {}
    )


def test_each_command_of_a_task_in_a_cluster_runs(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.apply(sandbox.mail_queue())
    sandbox.wait_ready()
    assert len(TASKS) >= 4

    for page in TASKS:
        assert failed_of(commands_of(page.read_text()), sandbox, tmp_path) == {}, page


def failed_of(lines: list[str], sandbox: Sandbox, folder: Path) -> dict[str, str]:
    """Run commands in a folder; return those that fail or print nothing, with what they printed."""
    kubectl, _, kubeconfig = sandbox.kubectl_command()
    programs = f"{Path(kubectl).parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"KUBECONFIG": kubeconfig, "PATH": programs}
    failed = {}
    for line in lines:
        words = ["sh", "-c", re.sub(r"-n mail\b", f"-n {sandbox.namespace}", line)]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=400, env=environment, cwd=folder
        )
        printed = done.stdout or line.startswith(MAY_BE_EMPTY)
        if line.startswith(WITHOUT_METRICS):
            printed = "Metrics API not available" in done.stderr
        elif line.startswith(OF_AN_OUTBOX):
            printed = 'pods "outgoing-intake-0" not found' in done.stderr
        elif done.returncode == 1 and "| grep " in line and not done.stderr:
            printed = "no line of a log is about this"
        elif done.returncode:
            printed = False
        if not printed:
            failed[line] = f"{done.returncode} {done.stdout}{done.stderr}"
    return failed
