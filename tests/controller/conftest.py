"""A real API server, the CRDs in it, a namespace for each test, and the operator over memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

import stack
from postroad.adapters.kubernetes.access import load_access
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.api import FIELD_MANAGER, MAIL_QUEUE, NAMESPACE, QUEUE_CLUSTER
from stack.control_plane import ControlPlane
from stack.server import State
from support.crds import install_crds
from support.running_operator import Running

NO_FINALIZERS = {"metadata": {"finalizers": None}}


@pytest.fixture(scope="session")
def kubeconfig() -> Iterator[Path]:
    """The administrator's access to an API server alone: no pod ever runs there, and no other
    operator than the test's own. One that ran before is left running."""
    running = stack.Stack(environment={})
    server = running.server("apiserver")
    assert isinstance(server, ControlPlane)
    ran_before = server.state() is State.RUNNING
    running.up([server.name])
    yield server.kubeconfig
    if not ran_before:
        running.down([server.name])


@pytest.fixture
async def api(kubeconfig: Path) -> AsyncIterator[ApiServer]:
    """The API server, as its administrator, with the CRDs installed."""
    server = ApiServer(load_access(kubeconfig), FIELD_MANAGER)
    await install_crds(server)
    yield server
    await server.close()


@pytest.fixture
async def namespace(api: ApiServer) -> AsyncIterator[str]:
    """A namespace of the test's own."""
    async with new_namespace(api) as name:
        yield name


@pytest.fixture
async def operator_namespace(api: ApiServer) -> AsyncIterator[str]:
    """A namespace for the operator's Lease, where another than the queues' is needed."""
    async with new_namespace(api) as name:
        yield name


@asynccontextmanager
async def new_namespace(api: ApiServer) -> AsyncIterator[str]:
    """Make a namespace, yield its name, and remove it."""
    name = f"test-{uuid4().hex[:8]}"
    created = await api.create(
        NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    )
    yield name
    for kind in (MAIL_QUEUE, QUEUE_CLUSTER):
        for left in await api.list(kind, name):  # the operator that would let them go has ended
            await api.patch(kind, name, left["metadata"]["name"], NO_FINALIZERS)
    await api.delete(NAMESPACE, created)


@pytest.fixture
async def operator(api: ApiServer, namespace: str) -> AsyncIterator[Running]:
    """The operator, watching this test's namespace, over servers in memory."""
    running = Running(api, namespace)
    await running.start()
    yield running
    await running.stop()
