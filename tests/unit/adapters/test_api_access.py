"""Who the operator is for the API server, and which API server it trusts: by a kubeconfig."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from postroad.adapters.kubernetes import api_requests
from postroad.adapters.kubernetes.api_requests import ApiAccess, load_access
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import MAIL_QUEUE
from postroad.errors import KubernetesRefused, KubernetesUnavailable
from support.api_over_http import HttpKubernetes, api_over_http
from support.certificates import Certificates
from support.memory.clock import ManualClock
from support.memory.kubernetes.world import KubernetesWorld


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
async def served(certificates: Certificates) -> AsyncIterator[tuple[str, HttpKubernetes]]:
    """An API server that lets in only clients with a certificate of its authority."""
    context = certificates.server_context()
    context.load_verify_locations(certificates.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    async with api_over_http(KubernetesWorld(ManualClock()), context) as found:
        yield found


def kubeconfig(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    """Write a kubeconfig, which is YAML, as JSON."""
    named = {"name": "test"}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{**named, "cluster": cluster}],
        "users": [{**named, "user": user}],
        "contexts": [{**named, "context": {"cluster": "test", "user": "test"}}],
    }
    file = folder / "kubeconfig"
    file.write_text(json.dumps(content))
    return file


def data(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def client_of(certificates: Certificates) -> dict[str, Any]:
    return {
        "client-certificate-data": data(certificates.chain),
        "client-key-data": data(certificates.key),
    }


async def found_by(file: Path) -> object:
    api = ApiServer(load_access(file), "postroad")
    try:
        return await api.get(MAIL_QUEUE, "mail", "outgoing")
    finally:
        await api.close()


async def test_a_client_certificate_and_the_authority_of_the_file_are_used(
    tmp_path: Path, certificates: Certificates, served: tuple[str, HttpKubernetes]
) -> None:
    cluster = {"server": served[0], "certificate-authority-data": data(certificates.authority)}

    assert await found_by(kubeconfig(tmp_path, cluster, client_of(certificates))) is None

    assert len(served[1].requests) == 1


async def test_a_token_goes_with_each_request(
    tmp_path: Path, certificates: Certificates, served: tuple[str, HttpKubernetes]
) -> None:
    cluster = {"server": served[0], "certificate-authority": str(certificates.authority)}
    user = {**client_of(certificates), "token": "t0ken"}

    await found_by(kubeconfig(tmp_path, cluster, user))

    assert served[1].authorizations == {"Bearer t0ken"}


async def test_a_token_is_asked_for_again_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet renews the tokens of pods."""
    given = iter(["one", "two", "three"])
    found = ApiAccess(client.Configuration())
    monkeypatch.setattr(
        found._configuration, "get_api_key_with_prefix", lambda *_: next(given), raising=False
    )

    assert {await found.authorization() for _ in range(5)} == {"one"}
    monkeypatch.setattr(api_requests, "TOKEN_SECONDS", 0.0)
    assert [await found.authorization() for _ in range(2)] == ["two", "three"]


async def test_another_name_of_the_server_is_checked_against_its_certificate(
    tmp_path: Path, certificates: Certificates, served: tuple[str, HttpKubernetes]
) -> None:
    cluster = {
        "server": served[0].replace("localhost", "127.0.0.1"),
        "certificate-authority-data": data(certificates.authority),
    }
    user = client_of(certificates)

    with pytest.raises(KubernetesUnavailable, match="certificate"):
        await found_by(kubeconfig(tmp_path, cluster, user))
    named = {**cluster, "tls-server-name": "localhost"}
    assert await found_by(kubeconfig(tmp_path, named, user)) is None
    unchecked = {"server": cluster["server"], "insecure-skip-tls-verify": True}
    assert await found_by(kubeconfig(tmp_path, unchecked, user)) is None


async def test_a_server_of_another_authority_is_not_trusted(
    tmp_path: Path, certificates: Certificates, served: tuple[str, HttpKubernetes]
) -> None:
    file = kubeconfig(tmp_path, {"server": served[0]}, client_of(certificates))

    with pytest.raises(KubernetesUnavailable, match="certificate"):
        await found_by(file)

    assert served[1].requests == []


def test_a_missing_kubeconfig_is_refused_with_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(KubernetesRefused) as raised:
        load_access(tmp_path / "missing")

    assert "KUBECONFIG" in raised.value.explain()
