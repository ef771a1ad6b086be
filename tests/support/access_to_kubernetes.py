"""Access to an API server as another user than the administrator."""

from __future__ import annotations

from kubernetes import client

from postroad.adapters.kubernetes.api_requests import HEADER, ApiAccess


def access_to(url: str, token: str = "") -> ApiAccess:
    """Return the access of the user with a token, without TLS."""
    configuration = client.Configuration()
    configuration.host = url
    return with_token(ApiAccess(configuration), token) if token else ApiAccess(configuration)


def with_token(access: ApiAccess, token: str) -> ApiAccess:
    """Return the access of the user with a token, to the same API server."""
    found, other = access._configuration, client.Configuration()
    other.host, other.verify_ssl = found.host, found.verify_ssl
    other.ssl_ca_cert, other.tls_server_name = found.ssl_ca_cert, found.tls_server_name
    other.api_key = {HEADER: f"Bearer {token}"}
    return ApiAccess(other)
