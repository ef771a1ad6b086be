"""The API of pods' resources that a metrics-server offers, with numbers that a test chooses: the
HPA controller of a real Kubernetes follows them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import SERVICE
from postroad.ports.kubernetes import Kind, Object
from support.certificates import Certificates

API_SERVICE = Kind("apiregistration.k8s.io/v1", "APIService", "apiservices")
GROUP, VERSION = "metrics.k8s.io", "v1beta1"
PREFIX = f"/apis/{GROUP}/{VERSION}"
NAME = "metrics"
POD_METRICS = {"name": "pods", "namespaced": True, "kind": "PodMetrics", "verbs": ["get", "list"]}
RESOURCES = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": f"{GROUP}/{VERSION}",
    "resources": [POD_METRICS | {"singularName": ""}],
}


@dataclass
class PodMetrics:
    """What the API says: each of these pods takes so much memory."""

    memory: str = "1Mi"
    pods: Sequence[Object] = field(default_factory=list)

    def answer(self, path: str) -> Object | None:
        """Return the answer to a request; None: there is no such path."""
        place = urlsplit(path)
        if place.path.rstrip("/") == PREFIX:
            return RESOURCES
        namespaced = place.path.startswith(f"{PREFIX}/namespaces/") and place.path.endswith("/pods")
        if not namespaced:
            return None
        (selector,) = parse_qs(place.query)["labelSelector"]
        wanted = {*selector.split(",")}
        labels = [{f"{k}={v}" for k, v in each["metadata"]["labels"].items()} for each in self.pods]
        found = [pod for pod, own in zip(self.pods, labels, strict=True) if wanted <= own]
        items = [self._metrics(each) for each in found]
        return {"kind": "PodMetricsList", "apiVersion": f"{GROUP}/{VERSION}", "items": items}

    def _metrics(self, pod: Object) -> Object:
        containers = [each["name"] for each in pod["spec"]["containers"]]
        usage = {"cpu": "1m", "memory": self.memory}
        return {
            "metadata": {name: pod["metadata"][name] for name in ("name", "namespace")},
            "timestamp": pod["metadata"]["creationTimestamp"],
            "window": "15s",
            "containers": [{"name": name, "usage": usage} for name in containers],
        }


@asynccontextmanager
async def pod_metrics(api: ApiServer, namespace: str, folder: Path) -> AsyncIterator[PodMetrics]:
    """Offer the API to an API server of this machine until the end of the block."""
    metrics = PodMetrics()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = metrics.answer(self.path)
            body = json.dumps(found or {}).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Write nothing of each request."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = Certificates.copied(folder).server_context()
    server.socket = context.wrap_socket(server.socket, server_side=True)
    Thread(target=server.serve_forever, daemon=True).start()
    place, port = {"name": NAME, "namespace": namespace}, server.server_address[1]
    by_name = {"type": "ExternalName", "externalName": "localhost"}
    spec = {"group": GROUP, "version": VERSION, "service": place | {"port": port}}
    priority = {"groupPriorityMinimum": 100, "versionPriority": 100, "insecureSkipTLSVerify": True}
    offered = {
        "apiVersion": API_SERVICE.api_version,
        "kind": API_SERVICE.name,
        "metadata": {"name": f"{VERSION}.{GROUP}"},
        "spec": spec | priority,
    }
    try:
        await api.create(
            SERVICE, {"apiVersion": "v1", "kind": "Service", "metadata": place, "spec": by_name}
        )
        made = await api.create(API_SERVICE, offered)
        try:
            yield metrics
        finally:
            # One that does not answer would keep every namespace from being deleted.
            await api.delete(API_SERVICE, made)
    finally:
        server.shutdown()
        server.server_close()
