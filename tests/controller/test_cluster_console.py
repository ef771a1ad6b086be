"""The process of a console in a cluster, over real servers and a real API server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from postroad import Mail, open_queue
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import EVENT
from support.console_accounts import bind, make_account, token_of
from support.ports import free_port
from support.shipped_roles import ROLE, shipped

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(300),
]

AUDIENCE = "postroad.dev/consoles/mail/main"
MAIL = Mail(sender="a@example.org", recipients=("b@example.net",), content=b"Subject: x\r\n\r\n")


@asynccontextmanager
async def console(file: Path, kubeconfig: Path) -> AsyncIterator[httpx.AsyncClient]:
    port = free_port()
    command = [sys.executable, "-m", "postroad", "cluster-console", f"--queues={file}"]
    command += [f"--audience={AUDIENCE}", f"--listen=127.0.0.1:{port}"]
    command += ["--issuer=https://issuer.invalid", "--client=postroad-console"]
    environment = os.environ | {"KUBECONFIG": str(kubeconfig), "POSTROAD_HEALTH_PORT": "0"}
    with subprocess.Popen(command, env=environment) as running:
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                async with asyncio.timeout(120):
                    while not await _answers(client):
                        assert running.poll() is None
                        await asyncio.sleep(0.2)
                yield client
        finally:
            running.terminate()


async def _answers(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/")).status_code == 401
    except httpx.TransportError:
        return False


async def test_a_console_reads_and_changes_queues_by_the_rights_of_its_users(
    api: ApiServer, kubeconfig: Path, namespace: str, tmp_path: Path
) -> None:
    made, tokens = [], {}
    for account, parts in (("viewer", ("view",)), ("operator", ("view", "edit"))):
        await make_account(api, namespace, account)
        for part in parts:
            role = shipped("ClusterRole", f"postroad-{part}")
            role["metadata"] = {"name": f"{namespace}-{account}-{part}"}
            made.append(await api.create(ROLE, role))
            await bind(api, f"{namespace}-{account}-{part}", namespace, account)
        tokens[account] = await token_of(api, namespace, account, [AUDIENCE])
    viewer, operator = ({"Authorization": f"Bearer {each}"} for each in tokens.values())
    url = f"distributed://{namespace}.outgoing"
    async with open_queue(url, create=True) as queue:
        await queue.enqueue(MAIL)
    file = tmp_path / "queues.json"
    served = {"uid": "6b6f6e73-6f6c-4500-8000-000000000001", "environment": {}}
    file.write_text(json.dumps({f"{namespace}/outgoing": served}))

    async with console(file, kubeconfig) as client:
        assert (await client.get("/login")).status_code == 503
        path = f"/api/v1/queues/{namespace}/outgoing"
        async with asyncio.timeout(150):  # servers of a busy machine answer late
            while (await client.get(path, headers=viewer)).status_code == 503:
                await asyncio.sleep(0.5)
        (mail,) = (await client.get(f"{path}/mails", headers=viewer)).json()["items"]
        assert mail["recipients"] == ["b@example.net"]
        content = await client.get(f"{path}/mails/{mail['id']}/content", headers=viewer)
        assert content.status_code == 403
        hold = {"operation": "hold", "selector": {"recipient": "b@example.net"}}
        refused = await client.post(f"{path}/operations", json=hold, headers=viewer)
        assert refused.status_code == 403
        begun = await client.post(f"{path}/operations", json=hold, headers=operator)
        assert (begun.status_code, begun.json()["matched"]) == (202, 1)
        async with asyncio.timeout(60):
            while (await client.get(path, headers=viewer)).json()["sizes"]["held"] != 1:
                await asyncio.sleep(0.2)
            while not (events := await api.list(EVENT, namespace)):
                await asyncio.sleep(0.2)
        assert f"{namespace}:operator: hold of 1 mails selected by recipient" in events[0]["note"]
        assert "b@example.net" not in json.dumps(events)
        configuration = await client.get(f"{path}/configuration", headers=viewer)
        assert configuration.json()["version"] >= 1
        replaced = tmp_path / "queues.new"
        replaced.write_text("{}")
        replaced.replace(file)
        assert (await client.get(path, headers=viewer)).status_code == 404
    for each in made:
        await api.delete(ROLE, each)
