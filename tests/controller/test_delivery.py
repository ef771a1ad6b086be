"""`spec.delivery` over a real API server: its defaults, the file of workers, Secrets that are
missing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from postroad.controller.kubernetes.api import CONFIG_MAP, DEPLOYMENT, MAIL_QUEUE
from postroad.delivery_settings.files import read_delivery
from postroad.ports.kubernetes import Kind, Object
from support.resources import mail_queue, secret
from support.running_operator import Running
from support.signing import ed25519_pem

pytestmark = pytest.mark.needs("kubernetes")

BY_MX = {"replicas": 0, "handler": {"mx": {}}}
SOCKET = {"name": "mailboxes", "domains": ["a.example"], "hops": [{"socket": "/run/lmtp"}]}
DELIVERY: dict[str, Any] = {
    "routing": {"rules": [SOCKET, {"name": "partner", "mx": {"tls": {"mode": "Required"}}}]},
    "signing": [
        {
            "domain": "example.org",
            "keys": [{"selector": "s", "secretRef": {"name": "dkim", "key": "s.pem"}}],
        }
    ],
}


async def child(operator: Running, kind: Kind, name: str) -> Object:
    found = await operator.api.get(kind, operator.namespace, name)
    assert found
    return found


async def test_the_file_of_workers_follows_and_their_pods_stay(
    operator: Running, tmp_path: Path
) -> None:
    """The API server fills in defaults, which the file leaves out."""
    await operator.apply_cluster()
    key = {"s.pem": ed25519_pem().decode()}
    await operator.apply(
        mail_queue(operator.namespace, workers=BY_MX, delivery=DELIVERY),
    )
    conditions = await operator.until(lambda found: found["Ready"]["status"] == "False")
    assert conditions["WorkersReady"]["reason"] == "CredentialsMissing"
    assert (
        "spec.delivery.signing[0].keys[0].secretRef: there is no Secret dkim"
        in (conditions["WorkersReady"]["message"])
    )
    await operator.apply(secret(operator.namespace, "dkim", key))
    await operator.until_ready()

    before = await child(operator, DEPLOYMENT, "outgoing-worker")
    (text,) = (await child(operator, CONFIG_MAP, "outgoing-delivery"))["data"].values()
    (tmp_path / "delivery.yaml").write_text(text)
    routing = read_delivery(tmp_path / "delivery.yaml").routing
    assert routing
    assert [each.name for each in routing.rules] == ["mailboxes", "partner"]
    assert "Opportunistic" not in text
    change = {"routing": {"rules": [{"name": "all", "mx": {"tls": {"mode": "Encrypted"}}}]}}
    patch = {"spec": {"delivery": change}}
    await operator.api.patch(MAIL_QUEUE, operator.namespace, "outgoing", patch)
    while "Encrypted" not in str(await child(operator, CONFIG_MAP, "outgoing-delivery")):
        await asyncio.sleep(0.1)
    await operator.until_ready()

    after = await child(operator, DEPLOYMENT, "outgoing-worker")
    assert after["spec"]["template"] == before["spec"]["template"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
