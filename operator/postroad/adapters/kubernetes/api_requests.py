"""Requests to the Kubernetes API server.

They and Kopf's watches share one pool of connections. A request that the server has not begun (429)
is repeated here; any other failure is left to the next reconcile, because its effect is not known.

Address of the API server, and credentials for it.

Of the official client only this is used: it knows service accounts, kubeconfig files and their
plugins, and renews what expires. Its requests block, and its model classes lack postroad's kinds.
"""

import asyncio
import json
import os
import re
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.connector import NEEDS_CLEANUP_CLOSED, Connection
from kubernetes import client, config
from kubernetes.client.rest import should_bypass_proxies

from postroad import errors
from postroad.http_responses import parsed_json, read_body
from postroad.ports.kubernetes import Object
from postroad.ports.servers import Guard
from postroad.telemetry import metrics

HEADER = "BearerToken"

TOKEN_SECONDS = 1.0
"""Time for which a token is not asked for again, because each reading takes a thread."""


class ApiAccess:
    """Address and credentials of one user of an API server."""

    def __init__(self, configuration: client.Configuration) -> None:
        self._configuration = configuration
        self._asked: tuple[float, str | None] | None = None
        """When the token was last asked for, and the answer."""

    @property
    def address(self) -> str:
        """The URL that paths are appended to."""
        return str(self._configuration.host).rstrip("/")

    @property
    def proxy(self) -> str | None:
        """The URL of the proxy to use, if any."""
        found = self._configuration
        if found.proxy and not should_bypass_proxies(found.host, no_proxy=found.no_proxy or ""):
            return str(found.proxy)
        return None

    @property
    def server_name(self) -> str | None:
        """The name in the API server's certificate, when it is not that of the address."""
        return self._configuration.tls_server_name or None

    def tls(self) -> ssl.SSLContext:
        """Return how to check the API server's certificate, and the client's own. Raises:
        KubernetesRefused."""
        found = self._configuration
        try:
            context = ssl.create_default_context(cafile=found.ssl_ca_cert)
            if not found.verify_ssl:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            elif found.assert_hostname is False:
                context.check_hostname = False
            if found.cert_file:
                context.load_cert_chain(found.cert_file, found.key_file)
        except (OSError, ValueError) as error:
            raise errors.KubernetesRefused(
                f"the certificates for the Kubernetes API server cannot be used: {error}"
            ) from error
        return context

    async def authorization(self) -> str | None:
        """Return the Authorization header of this moment: the kubelet renews pods' tokens, and a
        plugin of a kubeconfig may run, which takes its time. Raises: KubernetesUnavailable, OSError
        where there is none at the moment."""
        now = time.monotonic()
        if self._asked is not None and now - self._asked[0] < TOKEN_SECONDS:
            return self._asked[1]
        key = self._configuration.get_api_key_with_prefix
        try:
            token = await asyncio.to_thread(key, HEADER, "authorization")
            self._asked = now, token
            return token
        except config.ConfigException as error:
            raise errors.KubernetesUnavailable(f"the operator has no token now: {error}") from error


def load_access(kubeconfig: Path | None = None) -> ApiAccess:
    """Return the access to the API server: by the given file, else by the pod's service account,
    else by KUBECONFIG or ~/.kube/config. Raises: KubernetesRefused when none of them is there."""
    found = client.Configuration()
    try:
        if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call]
        else:
            file = str(kubeconfig) if kubeconfig else None
            config.load_kube_config(file, client_configuration=found)  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        raise errors.KubernetesRefused(
            f"no Kubernetes API server is configured: {error}",
            hint="set KUBECONFIG, or run as a pod with a service account",
        ) from error
    return ApiAccess(found)


def access_of(kubeconfig: Mapping[str, Any]) -> ApiAccess:
    """Return the access by the current context of a kubeconfig. Raises: KubernetesRefused."""
    found = client.Configuration()
    try:
        config.load_kube_config_from_dict(dict(kubeconfig), client_configuration=found)  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        raise errors.KubernetesRefused(f"the kubeconfig cannot be used: {error}") from error
    return ApiAccess(found)


CALLS = 8
"""Concurrent requests; more would only queue in the API server."""

TIMEOUT_SECONDS = 15.0
"""For one request; the next reconcile repeats one that takes longer."""

RETRY_SECONDS = 5.0
"""Time that a call waits in all for a server that answers 429."""

MAX_ANSWER = 16 * 1024 * 1024
"""Octets, for ten objects as large as etcd takes them, 1.5 MiB. A longer one is that of another
server, and would be memory of the operator."""

MAX_PAGES = 1_000
"""Answers to one list, for as many objects of one kind as an API server ever held. One that names a
next page without end would be memory of the operator as well."""

JSON = "application/json"

_RESOURCE = re.compile(
    r"/(?:api/[^/]+|apis/[^/]+/[^/]+)(?:/namespaces/[^/]+)?/([^/]+)(?:/[^/]+(/[^/]+)?)?$"
)

MALFORMED = ("unable to convert", "failed to create typed patch object")
"""Server-side apply answers 500 with these texts to a malformed quantity or an unknown field. A
repetition gets the same answer, so they are refusals."""


class ApiRequests:
    """Makes requests. The connections are opened by the first one, and belong to its event loop.
    `guard` is asked before each write leaves."""

    def __init__(self, access: ApiAccess, guard: Guard | None) -> None:
        self.access = access
        self.guard = guard
        self._connector: aiohttp.TCPConnector | None = None
        self._session: aiohttp.ClientSession | None = None
        self._responses: list[aiohttp.ClientResponse] = []
        self._free = asyncio.Semaphore(CALLS)

    def open_session(self, *also: aiohttp.ClientMiddlewareType) -> aiohttp.ClientSession:
        """Return a session that proves who the operator is; a watch closes its own. `close` ends
        responses that Kopf leaves open. `also`: what its requests go through first. Raises:
        KubernetesRefused for certificates that cannot be used."""
        if self._connector is None:
            secured = self.access.address.startswith("https:")
            context = self.access.tls() if secured else True
            self._connector = aiohttp.TCPConnector(
                limit=0, ssl=context, enable_cleanup_closed=NEEDS_CLEANUP_CLOSED
            )
        return aiohttp.ClientSession(
            connector=self._connector,
            connector_owner=False,
            request_class=aiohttp.ClientRequest if self.guard is None else guarded(self.guard),
            middlewares=(*also, self._authorize),
            proxy=self.access.proxy,
            headers={"User-Agent": "postroad"},
        )

    async def _authorize(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Count each request and give it the token of its moment, Kopf's watches included."""
        metrics.KUBERNETES_REQUESTS.labels(request.method, resource_in(request.url.path)).inc()
        authorization = await self.access.authorization()
        if authorization is not None:
            request.headers["Authorization"] = authorization
        response = await handler(request)
        # A stopped watch can leave its response open, and closing the connector alone does not end
        # its connection.
        self._responses = [each for each in (*self._responses, response) if not each.closed]
        return response

    async def close(self) -> None:
        """Close the connections, with responses that are still open. Idempotent."""
        responses, self._responses = self._responses, []
        for each in responses:
            if each.connection is not None and each.connection.transport is not None:
                # A close by TLS would wait for the API server's, which the event loop may not see.
                each.connection.transport.abort()
            each.close()
        session, self._session = self._session, None
        connector, self._connector = self._connector, None
        if session is not None:
            await session.close()
        if connector is not None:
            await connector.close()

    async def call(self, method: str, path: str, **options: Any) -> Object | None:
        """Make a request; repeat any while the server answers 429, as it has then done nothing."""
        waited = 0.0
        while True:
            try:
                async with self._free:
                    return await self._request(method, path, **options)
            except _TooManyRequests as busy:
                waited += busy.seconds
                if waited > RETRY_SECONDS:
                    raise errors.KubernetesUnavailable(str(busy)) from None
                await asyncio.sleep(busy.seconds)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        missing_ok: bool = False,
    ) -> Object | None:
        status, headers, data = await self._exchange(
            method,
            f"{path}?{urlencode(query)}" if query else path,
            None if body is None else json.dumps(body).encode(),
            {"Accept": accept, "Content-Type": content_type},
        )
        if status == 404 and missing_ok:
            return None
        if status == 429:
            seconds = headers.get("Retry-After", "")
            text = _text_of(f"{method} {path}", status, data)
            raise _TooManyRequests(text, float(seconds) if seconds.isdecimal() else 1.0)
        if status >= 300:
            raise _refusal(f"{method} {path}", status, data)
        answer = _object_in(data)
        if answer is None:
            # A load balancer before it, for example: whether a write had its effect is unknown.
            raise errors.KubernetesUnavailable(f"{method} {path}: {status}, and no object")
        return answer

    async def _exchange(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        if self._session is None:
            self._session = self.open_session()
        try:
            async with (
                asyncio.timeout(TIMEOUT_SECONDS),
                self._session.request(
                    method,
                    f"{self.access.address}{target}",
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    server_hostname=self.access.server_name,
                ) as response,
            ):
                body = await read_body(response, MAX_ANSWER)
                return response.status, response.headers, body
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise errors.KubernetesUnavailable(
                f"the Kubernetes API server does not answer: {reason}"
            ) from error


def guarded(guard: Guard) -> type[aiohttp.ClientRequest]:
    """Return requests that ask a guard when their connection stands, just before they are sent.
    All writes have bodies."""

    class GuardedRequest(aiohttp.ClientRequest):
        async def write_bytes(
            self, writer: AbstractStreamWriter, conn: Connection, content_length: int | None = None
        ) -> None:
            try:
                guard()
            except errors.PostroadError as error:
                assert conn.protocol is not None
                conn.protocol.set_exception(error)  # what waits for the response raises it
                return
            await super().write_bytes(writer, conn, content_length)

    return GuardedRequest


def resource_in(path: str) -> str:
    """Return the resource of a path, with its subresource; the empty string where there is none.

    >>> resource_in("/apis/postroad.dev/v1beta1/namespaces/mail/mailqueues/outgoing/status")
    'mailqueues/status'
    >>> resource_in("/api/v1/namespaces/mail"), resource_in("/apis/postroad.dev/v1beta1")
    ('namespaces', '')
    """
    found = _RESOURCE.search(path)
    return f"{found[1]}{found[2] or ''}" if found else ""


class _TooManyRequests(Exception):
    """The server answered 429: it did nothing, and names the seconds to wait."""

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(text)
        self.seconds = max(seconds, 0.1)


def _text_of(what: str, status: int, data: bytes) -> str:
    answer = _object_in(data)
    text = data[:200].decode(errors="replace") if answer is None else answer.get("message", "")
    return f"{what}: {status} {text}"


def _object_in(data: bytes) -> Object | None:
    """Return the JSON object that a body is; None where it is none."""
    try:
        found = parsed_json(data)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _refusal(
    what: str, status: int, data: bytes
) -> errors.KubernetesConflict | errors.KubernetesRefused | errors.KubernetesUnavailable:
    text = _text_of(what, status, data)
    if status == 409:
        return errors.KubernetesConflict(text)
    if any(each in text for each in MALFORMED):
        return errors.KubernetesRefused(text)
    if status >= 500:
        return errors.KubernetesUnavailable(text)
    return errors.KubernetesRefused(text)
