"""The contract of Kubernetes API servers, over a real one with its controllers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from contract.kubernetes_contract import KubernetesContract, Watching, watching_over
from postroad.adapters.kubernetes.api_server import ApiServer

pytestmark = pytest.mark.needs("kubernetes")


class TestRealApiServer(KubernetesContract):
    """The client of API servers, as the operator has it."""

    @pytest.fixture
    async def other(self, api: ApiServer) -> AsyncIterator[ApiServer]:
        server = ApiServer(api.access, "postroad-test")
        yield server
        await server.close()

    @pytest.fixture
    def watching(self, api: ApiServer) -> Watching:
        return watching_over(api)
