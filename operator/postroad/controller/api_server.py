"""The operator's client of the Kubernetes API server; objects are plain JSON mappings.

Calls run in a bounded pool of threads, because the official client blocks. Of that client only the
configuration and the connection pool are used: its model classes repeat the API server's checks,
and lack postroad's kinds.
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

from postroad.controller.api import ACCESS_REVIEW, EVENT, FIELD_MANAGER, Kind
from postroad.errors import KubernetesConflict, KubernetesRefused, KubernetesUnavailable

Object = dict[str, Any]
"""A Kubernetes object as decoded JSON."""

THREADS = 8
"""Concurrent calls; more would only queue in the API server."""

TIMEOUT_SECONDS = 15.0
"""For one call; the next reconcile repeats a call that takes longer."""

RETRY_SECONDS = 5.0
"""How long a call waits in all for a server that answers 429."""

JSON, MERGE, APPLY = (
    "application/json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
)


def load_configuration(kubeconfig: Path | None = None) -> client.Configuration:
    """Return the address and credentials of the API server: from the given file, else from the
    pod's service account, else from KUBECONFIG or ~/.kube/config.

    Raises: KubernetesRefused when none of them is there.
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
"""Server-side apply answers 500 with these texts to a malformed quantity or an unknown field. A
repetition gets the same answer, so they are refusals."""


class ApiServer:
    """Every method may raise KubernetesUnavailable and KubernetesRefused."""

    def __init__(self, configuration: client.Configuration, threads: int = THREADS) -> None:
        configuration.connection_pool_maxsize = threads
        self._configuration = configuration
        self._pool = client.rest.RESTClientObject(configuration).pool_manager
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="kubernetes")

    @property
    def configuration(self) -> client.Configuration:
        """Address of the API server, and the operator's credentials."""
        return self._configuration

    def authorization(self) -> str | None:
        """Return the current Authorization header, because the kubelet renews pods' tokens."""
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
        type_meta = {"apiVersion": kind.api_version, "kind": kind.name}  # absent in lists
        return [{**type_meta, **each} for each in found["items"]] if found else []

    async def serves(self, *kinds: Kind) -> bool:
        """Return whether all these kinds are installed."""
        for kind in kinds:
            found = await self._call("GET", kind.prefix, missing_ok=True)
            served = {each["name"] for each in found["resources"]} if found else set()
            if kind.plural not in served:
                return False
        return True

    async def may(self, verb: str, kind: Kind, namespace: str | None = None) -> bool:
        """Return whether the API server allows the operator a verb, in one namespace or in all."""
        group, _, _ = kind.api_version.rpartition("/")
        attributes = {"verb": verb, "group": group, "resource": kind.plural}
        if namespace is not None:
            attributes["namespace"] = namespace
        asked = {
            "apiVersion": ACCESS_REVIEW.api_version,
            "kind": ACCESS_REVIEW.name,
            "spec": {"resourceAttributes": attributes},
        }
        answer = await self._call("POST", _path(ACCESS_REVIEW, None), body=asked)
        assert answer is not None
        return bool(answer["status"]["allowed"])

    async def apply(self, kind: Kind, wanted: Object) -> Object:
        """Apply an object server-side. Idempotent; other managers' fields stay as they are; fields
        that the operator applied before and `wanted` lacks are removed."""
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
        """Merge a change; return None when the object is gone. With `metadata.resourceVersion` in
        the change, raise KubernetesConflict for an object of another version."""
        return await self._call(
            "PATCH",
            _path(kind, namespace, name),
            query={"fieldManager": FIELD_MANAGER},
            body=change,
            content_type=MERGE,
            missing_ok=True,
        )

    async def replace_status(self, kind: Kind, changed: Object) -> Object | None:
        """Write an object's status; return None when the object is gone. Raises: KubernetesConflict
        when its resourceVersion is no longer that of `changed`."""
        metadata = changed["metadata"]
        return await self._call(
            "PUT",
            f"{_path(kind, metadata['namespace'], metadata['name'])}/status",
            query={"fieldManager": FIELD_MANAGER},
            body=changed,
            missing_ok=True,
        )

    async def delete(self, kind: Kind, found: Object) -> None:
        """Delete this object, and in the background its dependants. A missing object is no error.
        Raises: KubernetesConflict when an object of another uid has its name."""
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
        """Make a request, and repeat it while the server answers 429, whatever the method: it has
        then done nothing. The next reconcile repeats other failures."""
        loop = asyncio.get_running_loop()
        waited = 0.0
        while True:
            try:
                return await loop.run_in_executor(
                    self._threads, lambda: self._request(method, path, **options)
                )
            except _TooManyRequests as busy:
                waited += busy.seconds
                if waited > RETRY_SECONDS:
                    raise KubernetesUnavailable(str(busy)) from None
                await asyncio.sleep(busy.seconds)

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
            raise _TooManyRequests(text, float(seconds) if seconds.isdecimal() else 1.0)
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


class _TooManyRequests(Exception):
    """The server answered 429: it did nothing, and names the seconds to wait."""

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
