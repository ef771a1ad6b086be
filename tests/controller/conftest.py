"""A real API server, the CRDs in it, a namespace for each test, and the operator over memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

import stack
from postroad.controller.api import NAMESPACE
from postroad.controller.api_server import ApiServer, load_configuration
from stack.control_plane import ControlPlane
from support.crds import install_crds
from support.running_operator import Running


@pytest.fixture(scope="session")
def kubeconfig() -> Path:
    """The administrator's access to an API server alone: no pod ever runs there, and no other
    operator than the test's own."""
    running = stack.Stack(environment={})
    running.up(["apiserver"])
    server = running.server("apiserver")
    assert isinstance(server, ControlPlane)
    return server.kubeconfig


@pytest.fixture
async def api(kubeconfig: Path) -> AsyncIterator[ApiServer]:
    """The API server, as its administrator, with the CRDs installed."""
    server = ApiServer(load_configuration(kubeconfig))
    await install_crds(server)
    yield server
    server.close()


@pytest.fixture
async def namespace(api: ApiServer) -> AsyncIterator[str]:
    """A namespace of the test's own."""
    name = f"test-{uuid4().hex[:8]}"
    created = await api.create(
        NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    )
    yield name
    await api.delete(NAMESPACE, created)


@pytest.fixture
async def operator(api: ApiServer, namespace: str) -> AsyncIterator[Running]:
    """The operator, watching this test's namespace, over servers in memory."""
    running = Running(api, namespace)
    await running.start()
    yield running
    await running.stop()
