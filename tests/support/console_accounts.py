"""ServiceAccounts of a namespace with roles about MailQueues, and their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import ROLE_BINDING, SERVICE_ACCOUNT
from postroad.ports.kubernetes import Object

RBAC = "rbac.authorization.k8s.io"


def service_account(namespace: str, name: str) -> Object:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}


async def make_account(api: ApiServer, namespace: str, name: str) -> None:
    await api.create(SERVICE_ACCOUNT, service_account(namespace, name))


def account_with_role(namespace: str, name: str, role: str) -> list[Object]:
    """Return an account, and what gives it the rights of a ClusterRole in its namespace."""
    return [
        service_account(namespace, name),
        binding("RoleBinding", role, namespace, name, name),
    ]


async def token_of(api: ApiServer, namespace: str, name: str, audiences: Sequence[str] = ()) -> str:
    """Return a token of a ServiceAccount; without audiences, for the API server."""
    answer = await api.call(
        "POST",
        f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
        body={
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": list(audiences)},
        },
    )
    assert answer
    token: str = answer["status"]["token"]
    return token


def binding(
    kind: str, role: str, namespace: str, account: str, name: str, of: str = "ClusterRole"
) -> Object:
    """Return what gives an account the rights of a role."""
    metadata: dict[str, Any] = {"name": name}
    if kind == "RoleBinding":
        metadata["namespace"] = namespace
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": kind,
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": of, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }


async def bind(
    api: ApiServer, role: str, namespace: str, account: str, of: str = "ClusterRole"
) -> None:
    """Give an account the rights of a role in its namespace."""
    name = f"{account}-{role}"
    await api.create(ROLE_BINDING, binding("RoleBinding", role, namespace, account, name, of))
