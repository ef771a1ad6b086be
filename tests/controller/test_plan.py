"""`kubectl mailqueue plan` before an apply, with a real kubectl and the operator's own status."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import stack
from postroad.ports.kubernetes import Object
from stack.control_plane import ControlPlane
from support.resources import mail_queue, view
from support.running_operator import Running

pytestmark = pytest.mark.needs("kubernetes")


@pytest.fixture(scope="session")
def kubectl() -> Path:
    """The kubectl of the API server alone."""
    server = stack.Stack(environment={}).server("apiserver")
    assert isinstance(server, ControlPlane)
    return Path(server.kubectl.command()[0])


async def plan(
    kubectl: Path, kubeconfig: Path, *queues: Object, context: str | None = None
) -> tuple[int | None, list[dict[str, Any]], str]:
    """Run it as kubectl runs its plugins; return its exit code, lines and complaints."""
    path = os.pathsep.join([str(kubectl.parent), os.environ["PATH"]])
    plugin = Path(sys.executable).with_name("kubectl-mailqueue")
    choice = ["--context", context] if context else []
    command = [str(plugin), "plan", "-f", "-", "--json", "--kubeconfig", str(kubeconfig), *choice]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PATH": path, "POSTROAD_CASSANDRA_CONTACT_POINTS": ""},
    )
    out, complaints = await process.communicate("\n---\n".join(map(json.dumps, queues)).encode())
    return process.returncode, [json.loads(line) for line in out.splitlines()], complaints.decode()


async def test_what_the_operator_accepted_decides(
    operator: Running, kubectl: Path, kubeconfig: Path
) -> None:
    await operator.apply_cluster()
    await operator.apply(mail_queue(operator.namespace, view=view("1h", 3)))
    await operator.until_ready()
    before = await operator.status()

    code, allowed, _ = await plan(
        kubectl,
        kubeconfig,
        mail_queue(operator.namespace, view=view("30m", 4)),
        mail_queue(operator.namespace, name="new", view=view("7m", 1)),
    )
    refused_code, refused, _ = await plan(
        kubectl, kubeconfig, mail_queue(operator.namespace, view=view("25m", 2))
    )

    assert (code, [each["outcome"] for each in allowed]) == (0, ["changed", "created"])
    assert (refused_code, [each["outcome"] for each in refused]) == (1, ["refused"])
    assert refused[0]["allowed"] == {"sliceWindow": ["20m", "30m"], "bucketCount": ["3"]}
    assert (await operator.status())["history"] == before["history"]


async def test_a_cluster_that_cannot_be_asked_is_no_answer(
    kubectl: Path, kubeconfig: Path, namespace: str
) -> None:
    code, lines, complaint = await plan(
        kubectl, kubeconfig, mail_queue(namespace), context="nowhere"
    )

    assert (code, lines) == (75, [])
    assert "nowhere" in complaint
