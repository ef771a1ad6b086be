"""`spec.console` of a QueueCluster in pods: its users, their rights, what they change, its end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from support.console_accounts import account_with_role
from support.kubectl import eventually
from support.sandbox import Sandbox
from support.senders import SampleMail, Sender

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600, func_only=True),
]

SENDER = "a@origin.example"
MAIL = SampleMail(SENDER, ["b@inn.example"], b"Subject: secret plans\r\n\r\nbody\r\n")


@contextmanager
def opened(sandbox: Sandbox, account: str) -> Iterator[httpx.Client]:
    """The console as the plugin opens it, with the session of its link."""
    kubectl, _, kubeconfig = sandbox.kubectl_command()
    program = Path(sys.executable).with_name("kubectl-mailqueue")
    path = f"{Path(kubectl).parent}:{os.environ['PATH']}"
    command = [str(program), "console", "outgoing", "--namespace", sandbox.namespace]
    with subprocess.Popen(
        [*command, "--service-account", account, "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"KUBECONFIG": kubeconfig, "PATH": path, "PYTHONUNBUFFERED": "1"},
    ) as running:
        try:
            assert running.stdout is not None
            said = [running.stdout.readline(), running.stdout.readline()]
            assert said[1].startswith("open http://127.0.0.1:"), said
            link = httpx.URL(said[1].split()[1])
            own = f"http://{link.host}:{link.port}"
            with httpx.Client(base_url=own, headers={"Origin": own}, timeout=60) as client:
                page = client.get(link, follow_redirects=True)
                assert (page.status_code, page.url.path) == (
                    200,
                    f"/queues/{sandbox.namespace}/outgoing",
                )
                yield client
        finally:
            running.terminate()


def test_a_console_in_pods_serves_users_by_their_roles_until_it_is_taken_away(
    sandbox: Sandbox,
) -> None:
    namespace, kubectl = sandbox.namespace, sandbox.kubectl
    cluster = sandbox.installation.queue_cluster(namespace, sandbox.keyspace)
    cluster["spec"]["console"] = {}
    accounts = [
        *account_with_role(namespace, "reader", "view"),
        *account_with_role(namespace, "postmaster", "edit"),
    ]
    queue = sandbox.mail_queue(workers=sandbox.workers(0))
    sandbox.apply(cluster, *accounts, queue)
    sandbox.wait_ready()
    with sandbox.smtp() as port:
        assert [each.code for each in Sender("127.0.0.1", port).send_all([MAIL])] == [250]

    def is_ready() -> bool:
        found = kubectl.condition("queuecluster", "main", namespace, "ConsoleReady")
        return found.get("status") == "True"

    eventually(is_ready, within_seconds=180)
    path = f"/api/v1/queues/{namespace}/outgoing"
    with opened(sandbox, "reader") as reader:
        (mail,) = reader.get(f"{path}/mails").json()["items"]
        assert mail["recipients"] == ["b@inn.example"]
        assert reader.get(f"{path}/mails/{mail['id']}/content").status_code == 403
        hold = {"operation": "hold", "selector": {"sender": SENDER}}
        assert reader.post(f"{path}/operations", json=hold).status_code == 403
    with opened(sandbox, "postmaster") as postmaster:
        assert postmaster.post(f"{path}/operations", json=hold).status_code == 202
        eventually(lambda: postmaster.get(path).json()["sizes"]["held"] == 1, within_seconds=60)
    eventually(lambda: sandbox.events("ChangedByConsole"), within_seconds=60)
    (event,) = sandbox.events("ChangedByConsole")
    assert f"{namespace}:postmaster: hold of 1 mails" in event["message"]
    assert SENDER not in str(event)

    del cluster["spec"]["console"]
    sandbox.apply(cluster)
    selector = "app.kubernetes.io/component=console"
    kinds = "deployments,services,configmaps,pods"
    eventually(lambda: not kubectl.list(kinds, namespace, selector), within_seconds=120)
    assert sandbox.size() == 1
