"""A Kubernetes API server in memory that is reached over HTTP, for clients that are HTTP."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from postroad.adapters.kubernetes.api_server import ACCESS_REVIEW, APPLY
from postroad.controller.kubernetes.api import (
    CHILDREN,
    EVENT,
    JOB,
    LEASE,
    NAMESPACE,
    POD,
    SECRET,
)
from postroad.controller.reads import OWN
from postroad.errors import KubernetesConflict, KubernetesError, KubernetesUnavailable
from postroad.ports.kubernetes import Kind, Object
from support.deployments import control_deployments
from support.memory.kubernetes.client import MemoryKubernetes
from support.memory.kubernetes.world import KubernetesWorld

KINDS = (*OWN, *CHILDREN, EVENT, JOB, LEASE, NAMESPACE, POD, SECRET)
PATH = re.compile(
    r"(?P<prefix>/apis?/(?:v1|[^/]+/v[^/]+))(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?P<status>/status)?"
)


class HttpKubernetes:
    """Answers over HTTP from a world; `requests` has method and path of each."""

    def __init__(self, world: KubernetesWorld) -> None:
        self.world = world
        self.requests: list[str] = []
        self.authorizations: set[str | None] = set()
        self.answers: list[web.Response] = []
        """Answered first, one a request."""

        self.silent: set[str] = set()
        """Paths that get no answer as long as they are here."""

        self.forbidden: set[str | None] = set()
        """Plurals of kinds, or namespaces, to which the client has no right."""

        self._watches: list[web.BaseRequest] = []

    async def break_watches(self) -> None:
        """Break the connections of all watches."""
        for each in self._watches:
            if each.transport is not None:
                each.transport.close()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        self.authorizations.add(request.headers.get("Authorization"))
        while request.path in self.silent:
            await asyncio.sleep(0.01)
        if self.answers:
            return self.answers.pop(0)
        if request.path in ("/api", "/apis") or request.path in {each.prefix for each in KINDS}:
            return web.json_response(discovered(request.path))
        if request.path.startswith("/openapi/"):
            return web.json_response({"components": {"schemas": {}}})
        matched = PATH.fullmatch(request.path)
        assert matched, request.path
        given = json.loads(await request.text() or "{}")
        if matched["plural"] == ACCESS_REVIEW.plural:
            asked = given["spec"]["resourceAttributes"]
            place = {asked["resource"], asked.get("namespace")}
            return web.json_response({"status": {"allowed": self.forbidden.isdisjoint(place)}})
        if not self.forbidden.isdisjoint((matched["plural"], matched["namespace"])):
            return web.json_response({"message": f"{matched['plural']} is forbidden"}, status=403)
        kind = kind_at(matched)
        if "watch" in request.query:
            return await self._watched(request, kind, matched["namespace"])
        memory = MemoryKubernetes(self.world, request.query.get("fieldManager", "unknown"))
        try:
            found = await answer_of(memory, request, kind, matched, given)
        except KubernetesError as error:
            return refused(error)
        if found is None:
            return web.json_response({"message": f"{request.path} not found"}, status=404)
        return web.json_response(found)

    async def _watched(
        self, request: web.BaseRequest, kind: Kind, namespace: str | None
    ) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        query = request.query
        events = self.world.watch(
            kind, namespace, query.get("labelSelector", ""), query.get("resourceVersion")
        )
        self._watches.append(request)
        try:
            async for each in events:
                line = json.dumps({"type": each.happened, "object": each.object})
                await response.write(line.encode() + b"\n")
        except ConnectionResetError:
            pass  # the client ended its watch while an event was under way
        finally:
            self._watches.remove(request)
        return response


def discovered(path: str) -> Object:
    """Return the answer of the API server about its groups and kinds."""
    if path == "/api":
        return {"versions": ["v1"]}
    if path == "/apis":
        groups = {each.group: each.api_version for each in KINDS if each.group}
        return {
            "groups": [
                {
                    "name": name,
                    "versions": [{"groupVersion": version, "version": version.split("/")[1]}],
                    "preferredVersion": {
                        "groupVersion": version,
                        "version": version.split("/")[1],
                    },
                }
                for name, version in groups.items()
            ]
        }
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    return {
        "resources": [
            {
                "name": each.plural,
                "singularName": each.name.lower(),
                "kind": each.name,
                "namespaced": each is not NAMESPACE,
                "verbs": verbs,
            }
            for each in KINDS
            if each.prefix == path
        ]
    }


def kind_at(matched: re.Match[str]) -> Kind:
    """Return the kind of a path."""
    known = {(each.prefix, each.plural): each for each in KINDS}
    return known[matched["prefix"], matched["plural"]]


async def answer_of(
    client: MemoryKubernetes,
    request: web.BaseRequest,
    kind: Kind,
    matched: re.Match[str],
    given: Object,
) -> Object | None:
    """Do what a request asks, and return its result; None: there is no such object."""
    namespace, name = matched["namespace"], matched["name"]
    if request.method == "GET" and name is None:
        items = await client.list(kind, namespace, request.query.get("labelSelector", ""))
        version = str(client.world.version)
        begin = int(request.query.get("continue") or 0)
        end = begin + int(request.query.get("limit") or len(items))
        more = str(end) if end < len(items) else ""
        items = items[begin:end]
        metadata_only = "PartialObjectMetadataList" in request.headers.get("Accept", "")
        return {
            "kind": f"{kind.name}List",
            "apiVersion": kind.api_version,
            "metadata": {"resourceVersion": version, "continue": more},
            "items": None if metadata_only and not items else items,  # as API servers do
        }
    if request.method == "GET":
        return await client.get(kind, namespace, name)
    if request.method == "POST":
        return await client.create(kind, given)
    if request.method == "PUT":
        assert matched["status"]
        return await client.replace_status(kind, given)
    if request.method == "DELETE":
        return await deleted(client, kind, namespace, name, given)
    if request.content_type == APPLY:
        return await client.apply(kind, given, force=request.query.get("force") == "true")
    return await client.patch(kind, namespace, name, given)


async def deleted(
    client: MemoryKubernetes, kind: Kind, namespace: str | None, name: str, options: Object
) -> Object | None:
    found = await client.get(kind, namespace, name)
    if found is not None:
        uid = options.get("preconditions", {}).get("uid", found["metadata"]["uid"])
        await client.delete(kind, {"metadata": {**found["metadata"], "uid": uid}})
    return found


def refused(error: KubernetesError) -> web.Response:
    """Return the answer that makes this error."""
    status = 403
    if isinstance(error, KubernetesConflict):
        status = 409
    elif isinstance(error, KubernetesUnavailable):
        status = 503
    return web.json_response({"kind": "Status", "message": str(error)}, status=status)


@asynccontextmanager
async def api_over_http(
    world: KubernetesWorld, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, HttpKubernetes]]:
    """Serve a world on a port of this machine; yield its URL, and what answers there."""
    served = HttpKubernetes(world)
    runner = web.ServerRunner(web.Server(served.handle), shutdown_timeout=0.01)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    deployments = asyncio.create_task(control_deployments(world))
    try:
        port = runner.addresses[0][1]
        yield f"https://localhost:{port}" if tls else f"http://127.0.0.1:{port}", served
    finally:
        deployments.cancel()
        await runner.cleanup()
