"""Where the API server is, and how a client proves who it is.

Of the official client only this is used: it knows service accounts, kubeconfig files and their
plugins, and renews what expires. Its requests block, and its model classes lack postroad's kinds.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from pathlib import Path

from kubernetes import client, config
from kubernetes.client.rest import should_bypass_proxies

from postroad.errors import KubernetesRefused, KubernetesUnavailable

HEADER = "BearerToken"

TOKEN_SECONDS = 1.0
"""How long a token is not asked for again, because each reading takes a thread."""


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
            raise KubernetesRefused(
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
            raise KubernetesUnavailable(f"the operator has no token now: {error}") from error


def load_access(kubeconfig: Path | None = None) -> ApiAccess:
    """Return the access to the API server: by the given file, else by the pod's service account,
    else by KUBECONFIG or ~/.kube/config.

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
    return ApiAccess(found)
