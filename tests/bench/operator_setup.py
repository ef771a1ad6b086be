"""Servers and an API server of the bench's own, in one folder, with what the operator is given."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.results import FOLDER
from postroad.adapters.kubernetes.api_requests import load_access
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import NAMESPACE, QUEUE_CLUSTER, SECRET
from postroad.ports.kubernetes import Kind, Object
from stack import processes
from stack.clusters import Cluster
from stack.control_plane import ControlPlane
from stack.local import Stack
from stack.progress import Progress
from support.crds import install_crds
from support.named_servers import named_cluster, named_secrets

WORK = FOLDER / "operator"
"""Kept afterwards: the operators' logs."""

CLUSTER = WORK / "cluster"
"""The nodes of a case that needs several."""

THREE = ("rabbitmq", "cassandra", "s3")
CLUSTER_SECONDS = 120.0
"""How long a new QueueCluster may take: its tables are created."""


@dataclass
class Site:
    """A namespace of an API server, and servers by their POSTROAD_* variables. `folder`: of logs
    and files; `stack`: None where none of the servers is this site's to signal."""

    api: ApiServer
    kubeconfig: Path
    namespace: str
    variables: Mapping[str, str]
    folder: Path
    stack: Stack | None = None

    @property
    def programs(self) -> Path:
        """The mark of the programs that are started here, by which they are found and ended."""
        return self.folder / "programs"

    def memory_mb(self, server: str) -> float:
        """Return the resident memory of a server's processes."""
        assert self.stack is not None
        found = self.stack.server(server).memory_bytes
        assert found is not None, f"{server} does not run"
        return found / 1e6

    async def apply_cluster(
        self,
        name: str = "main",
        variables: Mapping[str, str] | None = None,
        *,
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        """Apply a QueueCluster whose rows have one copy. `secrets`: as `named_cluster` has it."""
        wanted = named_cluster(
            variables or self.variables, self.namespace, name, copies=1, secrets=secrets
        )
        await self.api.create(QUEUE_CLUSTER, wanted)

    async def apply_secrets(self) -> None:
        """Apply the Secrets of the servers."""
        for each in named_secrets(self.variables, self.namespace):
            await self.api.create(SECRET, each)

    async def until_ready(self, kind: Kind, name: str, seconds: float = CLUSTER_SECONDS) -> None:
        """Wait until a resource is ready. Raises: AssertionError with its status."""
        found: Object = {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not is_ready(found):
                    await asyncio.sleep(0.2)
                    found = await self.api.get(kind, self.namespace, name) or {}
        assert is_ready(found), f"{kind.name} {name}: {found.get('status')}"


def is_ready(found: Object) -> bool:
    """Whether the status is about the present spec, and Ready is True."""
    status = found.get("status") or {}
    if not found or status.get("observedGeneration") != found["metadata"].get("generation"):
        return False
    return ready_condition(found).get("status") == "True"


def ready_condition(found: Object) -> Object:
    """Return the condition Ready, empty where there is none yet."""
    listed = (found.get("status") or {}).get("conditions") or []
    return next((each for each in listed if each["type"] == "Ready"), {})


@asynccontextmanager
async def fresh_site(*servers: str) -> AsyncIterator[Site]:
    """Start an API server with the CRDs, and servers; yield a namespace with their Secrets. All of
    it is removed at the end, and what an earlier run left at the beginning."""
    running = stack_in("stack")
    await asyncio.to_thread(_remove, running)
    try:
        await asyncio.to_thread(running.up, ("apiserver", *servers))
        async with _namespace(running) as (api, kubeconfig, namespace):
            variables = running.environment(servers) if servers else {}
            site = Site(api, kubeconfig, namespace, variables, WORK, running)
            if set(THREE) <= {*servers}:
                await site.apply_secrets()
            yield site
    finally:
        await asyncio.to_thread(_remove, running)


@asynccontextmanager
async def _namespace(running: Stack) -> AsyncIterator[tuple[ApiServer, Path, str]]:
    server = running.server("apiserver")
    assert isinstance(server, ControlPlane)
    api = ApiServer(load_access(server.kubeconfig), "bench")
    try:
        await install_crds(api)
        name = f"bench-{secrets.token_hex(3)}"
        await api.create(
            NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        )
        yield api, server.kubeconfig, name
    finally:
        await api.close()


def stack_in(folder: str) -> Stack:
    """Return a stack of the bench's own."""
    return Stack(WORK / folder, environment={}, progress=Progress(quiet=True))


def clear() -> None:
    """Remove what earlier runs left: servers, programs, logs."""
    _remove(stack_in("stack"))
    stack_in("other").down()
    if CLUSTER.exists():
        Cluster(CLUSTER).down()
    shutil.rmtree(WORK)


def _remove(running: Stack) -> None:
    WORK.mkdir(parents=True, exist_ok=True)
    processes.kill_members(WORK / "programs")
    running.down()
