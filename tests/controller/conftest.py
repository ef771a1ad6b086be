"""A real API server, the CRDs in it, a namespace for each test, and the operator over memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

import stack
from postroad.adapters.kubernetes.api_requests import load_access
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import FIELD_MANAGER
from stack.control_plane import ControlPlane
from stack.server import State
from support.crds import install_crds
from support.namespaces import new_namespace
from support.running_operator import Running


@pytest.fixture(scope="session")
def kubeconfig() -> Iterator[Path]:
    """The administrator's access to an API server alone: no pod ever runs there, and no other
    operator than the test's own, with the CRDs installed. One that ran before is left running."""
    running = stack.Stack(environment={})
    server = running.server("apiserver")
    assert isinstance(server, ControlPlane)
    ran_before = server.state() is State.RUNNING
    running.up([server.name])
    asyncio.run(_install_crds(server.kubeconfig))
    yield server.kubeconfig
    if not ran_before:
        running.down([server.name])


async def _install_crds(kubeconfig: Path) -> None:
    server = ApiServer(load_access(kubeconfig), FIELD_MANAGER)
    await install_crds(server)
    await server.close()


@pytest.fixture
async def api(kubeconfig: Path) -> AsyncIterator[ApiServer]:
    """The API server, as its administrator."""
    server = ApiServer(load_access(kubeconfig), FIELD_MANAGER)
    yield server
    await server.close()


@pytest.fixture
async def namespace(api: ApiServer) -> AsyncIterator[str]:
    """A namespace of the test's own."""
    async with new_namespace(api) as name:
        yield name


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lasting_api(kubeconfig: Path) -> AsyncIterator[ApiServer]:
    """The API server for fixtures of a module, in the event loop of these."""
    server = ApiServer(load_access(kubeconfig), FIELD_MANAGER)
    yield server
    await server.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lasting_namespace(lasting_api: ApiServer) -> AsyncIterator[str]:
    """A namespace for all tests of a module."""
    async with new_namespace(lasting_api) as name:
        yield name


@pytest.fixture
async def operator_namespace(api: ApiServer) -> AsyncIterator[str]:
    """A namespace for the operator's Lease, where another than the queues' is needed."""
    async with new_namespace(api) as name:
        yield name


@pytest.fixture
async def operator(api: ApiServer, namespace: str) -> AsyncIterator[Running]:
    """The operator, watching this test's namespace, over servers in memory."""
    running = Running(api, namespace)
    await running.start()
    yield running
    await running.stop()
