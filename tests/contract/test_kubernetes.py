"""The contract of Kubernetes API servers, in memory: as it is, and by HTTP requests.

`tests/controller` has it over a real one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from contract.kubernetes_contract import KubernetesContract, Watching, watching_over
from postroad.adapters.kubernetes.access import ApiAccess
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.adapters.memory.clock import ManualClock
from postroad.adapters.memory.kubernetes.client import MemoryKubernetes
from postroad.adapters.memory.kubernetes.world import KubernetesWorld
from support.access_to_kubernetes import access_to
from support.api_over_http import KINDS, api_over_http

FIRST, SECOND = "postroad", "postroad-test"


class TestMemoryKubernetes(KubernetesContract):
    """Over memory."""

    @pytest.fixture
    def api(self) -> MemoryKubernetes:
        return MemoryKubernetes(KubernetesWorld(ManualClock(), KINDS), FIRST)

    @pytest.fixture
    def other(self, api: MemoryKubernetes) -> MemoryKubernetes:
        return MemoryKubernetes(api.world, SECOND)

    @pytest.fixture
    def namespace(self) -> str:
        return "mail"

    @pytest.fixture
    def watching(self, api: MemoryKubernetes) -> Watching:
        return api.world.watch


class TestApiServer(KubernetesContract):
    """The client of API servers, over one in memory."""

    @pytest.fixture
    async def access(self) -> AsyncIterator[ApiAccess]:
        async with api_over_http(KubernetesWorld(ManualClock(), KINDS)) as (url, _):
            yield access_to(url)

    @pytest.fixture
    async def api(self, access: ApiAccess) -> AsyncIterator[ApiServer]:
        server = ApiServer(access, FIRST)
        yield server
        await server.close()

    @pytest.fixture
    async def other(self, access: ApiAccess) -> AsyncIterator[ApiServer]:
        server = ApiServer(access, SECOND)
        yield server
        await server.close()

    @pytest.fixture
    def namespace(self) -> str:
        return "mail"

    @pytest.fixture
    def watching(self, api: ApiServer) -> Watching:
        return watching_over(api)
