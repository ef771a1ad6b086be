"""The Kubernetes API server, as far as the operator needs it: objects are plain JSON mappings.

Calls run in a bounded pool of threads (the official client blocks). Only its configuration and its
connection pool are used: its model classes would check what the API server checks anyway, and know
nothing of our kinds.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import urllib3
from kubernetes import client, config

from postroad.controller.api import EVENT, FIELD_MANAGER, Kind
from postroad.errors import KubernetesConflict, KubernetesRefused, KubernetesUnavailable

Object = dict[str, Any]
"""A Kubernetes object as JSON has it."""

THREADS = 8
"""Calls at the same time; more would only queue in the API server."""

TIMEOUT_SECONDS = 15.0
"""For one call; a call that takes longer is repeated by the next reconcile."""

PATIENCE_SECONDS = 5.0
"""How long a call waits in all for a server that asks to be asked later."""

JSON, MERGE, APPLY = (
    "application/json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
)


def load_configuration(kubeconfig: Path | None = None) -> client.Configuration:
    """Return where the API server is: by the file given, else as a pod by the pod's own account,
    else by KUBECONFIG or ~/.kube/config.

    Raises: KubernetesRefused when there is neither.
    """
    found = client.Configuration()
    try:
        if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call]
        else:
            file = str(kubeconfig) if kubeconfig else None
            config.load_kube_config(file, client_configuration=found)  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        raise KubernetesRefused(
            f"no Kubernetes API server is configured: {error}",
            hint="set KUBECONFIG, or run as a pod with a service account",
        ) from error
    return found


MALFORMED = ("unable to convert", "failed to create typed patch object")
"""How server-side apply answers a malformed quantity or an unknown field, with 500: it would say so
for ever."""


class ApiServer:
    """Every method may raise KubernetesUnavailable and KubernetesRefused."""

    def __init__(self, configuration: client.Configuration, threads: int = THREADS) -> None:
        configuration.connection_pool_maxsize = threads
        self._configuration = configuration
        self._pool = client.rest.RESTClientObject(configuration).pool_manager
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="kubernetes")

    @property
    def configuration(self) -> client.Configuration:
        """Where the API server is, and as whom we come."""
        return self._configuration

    def authorization(self) -> str | None:
        """Return the Authorization header as it is now: tokens of pods are renewed."""
        return self._headers(JSON).get("authorization")

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        """Return an object, or None when there is none."""
        return await self._call("GET", _path(kind, namespace, name), missing_ok=True)

    async def list(
        self, kind: Kind, namespace: str | None = None, labels: str = ""
    ) -> Sequence[Object]:
        """Return the objects of a kind, in one namespace or in all."""
        query = {"labelSelector": labels} if labels else {}
        found = await self._call("GET", _path(kind, namespace), query=query)
        told = {"apiVersion": kind.api_version, "kind": kind.name}  # lists leave it out
        return [{**told, **each} for each in found["items"]] if found else []

    async def serves(self, *kinds: Kind) -> bool:
        """Return whether all these kinds are installed."""
        for kind in kinds:
            found = await self._call("GET", kind.prefix, missing_ok=True)
            served = {each["name"] for each in found["resources"]} if found else set()
            if kind.plural not in served:
                return False
        return True

    async def apply(self, kind: Kind, wanted: Object) -> Object:
        """Apply an object server-side. Idempotent; fields of other managers stay as they are,
        fields that we applied before and no longer want are removed."""
        metadata = wanted["metadata"]
        applied = await self._call(
            "PATCH",
            _path(kind, metadata.get("namespace"), metadata["name"]),
            query={"fieldManager": FIELD_MANAGER, "force": "true"},
            body=wanted,
            content_type=APPLY,
        )
        assert applied is not None
        return applied

    async def create(self, kind: Kind, wanted: Object) -> Object:
        """Create an object. Raises: KubernetesConflict when it exists."""
        created = await self._call(
            "POST", _path(kind, wanted["metadata"].get("namespace")), body=wanted
        )
        assert created is not None
        return created

    async def patch(
        self, kind: Kind, namespace: str, name: str, change: Mapping[str, Any]
    ) -> Object | None:
        """Merge a change; None when the object is gone. With `metadata.resourceVersion` in the
        change it is made only to that version (else KubernetesConflict)."""
        return await self._call(
            "PATCH",
            _path(kind, namespace, name),
            query={"fieldManager": FIELD_MANAGER},
            body=change,
            content_type=MERGE,
            missing_ok=True,
        )

    async def replace_status(self, kind: Kind, changed: Object) -> Object | None:
        """Write an object's status, if it still has the resourceVersion that `changed` has.
        None when it is gone. Raises: KubernetesConflict."""
        metadata = changed["metadata"]
        return await self._call(
            "PUT",
            f"{_path(kind, metadata['namespace'], metadata['name'])}/status",
            query={"fieldManager": FIELD_MANAGER},
            body=changed,
            missing_ok=True,
        )

    async def delete(self, kind: Kind, found: Object) -> None:
        """Delete exactly this object (not another of its name), its dependants in the background.
        A missing one is fine. Raises: KubernetesConflict when another has its name."""
        metadata = found["metadata"]
        await self._call(
            "DELETE",
            _path(kind, metadata.get("namespace"), metadata["name"]),
            body={
                "kind": "DeleteOptions",
                "apiVersion": "v1",
                "propagationPolicy": "Background",
                "preconditions": {"uid": metadata["uid"]},
            },
            missing_ok=True,
        )

    async def post_event(self, event: Object) -> None:
        """Create an Event."""
        await self.create(EVENT, event)

    def close(self) -> None:
        """Release the threads and connections. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._pool.clear()

    async def _call(self, method: str, path: str, **options: Any) -> Object | None:
        """Make a request. A server that is starting or busy says when to come again, and has done
        nothing (429): it is asked again, whatever the method. Every other failure is the next
        reconcile's."""
        loop = asyncio.get_running_loop()
        waited = 0.0
        while True:
            try:
                return await loop.run_in_executor(
                    self._threads, lambda: self._request(method, path, **options)
                )
            except _AskedToComeLater as asked:
                waited += asked.seconds
                if waited > PATIENCE_SECONDS:
                    raise KubernetesUnavailable(str(asked)) from None
                await asyncio.sleep(asked.seconds)

    def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        missing_ok: bool = False,
    ) -> Object | None:
        url = f"{self._configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            response = self._pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body),
                headers=self._headers(content_type),
                timeout=TIMEOUT_SECONDS,
                retries=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise KubernetesUnavailable(
                f"the Kubernetes API server does not answer: {error}"
            ) from error
        if response.status == 404 and missing_ok:
            return None
        if response.status == 429:
            seconds = response.headers.get("Retry-After", "")
            text = _text_of(f"{method} {path}", response.status, response.data)
            raise _AskedToComeLater(text, float(seconds) if seconds.isdecimal() else 1.0)
        if response.status >= 300:
            raise _refusal(f"{method} {path}", response.status, response.data)
        answer: Object = json.loads(response.data)
        return answer

    def _headers(self, content_type: str) -> dict[str, str]:
        headers = {"Accept": JSON, "Content-Type": content_type, "User-Agent": "postroad"}
        settings: Mapping[str, Any] = self._configuration.auth_settings()
        for setting in settings.values():
            if setting and setting["in"] == "header" and setting["value"]:
                headers[setting["key"]] = setting["value"]
        return headers


def _path(kind: Kind, namespace: str | None, name: str | None = None) -> str:
    scope = f"/namespaces/{quote(namespace)}" if namespace is not None else ""
    return f"{kind.prefix}{scope}/{kind.plural}" + (f"/{quote(name)}" if name is not None else "")


class _AskedToComeLater(Exception):
    """The server did nothing and wants to be asked again."""

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(text)
        self.seconds = max(seconds, 0.1)


def _text_of(what: str, status: int, data: bytes) -> str:
    try:
        message = json.loads(data).get("message", "")
    except ValueError:
        message = data[:200].decode(errors="replace")
    return f"{what}: {status} {message}"


def _refusal(
    what: str, status: int, data: bytes
) -> KubernetesConflict | KubernetesRefused | KubernetesUnavailable:
    text = _text_of(what, status, data)
    if status == 409:
        return KubernetesConflict(text)
    if any(each in text for each in MALFORMED):
        return KubernetesRefused(text)
    if status >= 500:
        return KubernetesUnavailable(text)
    return KubernetesRefused(text)
