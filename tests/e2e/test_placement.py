"""Pods run where, with what and as whom a MailQueue says, and mail passes through them."""

from __future__ import annotations

from typing import Any

import pytest

from support.kubectl import eventually
from support.mails import samples
from support.sandbox import Sandbox
from support.senders import SampleMail, Sender

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600, func_only=True),
]

UID = 1_000_680_000
"""As OpenShift's restricted-v2 gives them to namespaces: no user of the image."""


def user_of(sandbox: Sandbox, pod: dict[str, Any]) -> str:
    """Return the user that the processes of a pod have."""
    name = pod["metadata"]["name"]
    return sandbox.kubectl("exec", "-n", sandbox.namespace, name, "--", "id", "-u").strip()


def test_pods_of_a_user_that_the_image_does_not_know_accept_and_deliver_mail(
    sandbox: Sandbox,
) -> None:
    sandbox.apply(sandbox.mail_queue(workers=sandbox.workers(1)))
    sandbox.wait_ready()
    (worker,) = sandbox.pods("worker")
    assert "runAsUser" not in worker["spec"]["securityContext"]
    assert user_of(sandbox, worker) == "10001"

    pod: dict[str, Any] = {
        "labels": {"team": "mail"},
        "tolerations": [{"key": "mail", "operator": "Exists"}],
        "env": [{"name": "TEAM", "value": "mail"}],
        "logLevel": "Debug",
        "securityContext": {"runAsUser": UID},
    }
    sandbox.apply(
        sandbox.mail_queue(
            workers=sandbox.workers(1) | {"pod": pod},
            intake=sandbox.intake(1) | {"pod": pod},
            serviceAccount={"annotations": {"example.org/role": "mail"}},
            networkPolicy={"enabled": True},
        )
    )

    def placed() -> list[dict[str, Any]]:
        found = [*sandbox.pods("worker"), *sandbox.pods("intake")]
        labels = [each["metadata"]["labels"].get("team") for each in found]
        return found if labels == ["mail", "mail"] else []

    found = eventually(placed, within_seconds=120)
    sandbox.wait_ready()
    mails = list(samples(5, seed=3))
    recipients = [recipient for mail in mails for recipient in mail.recipients]

    with sandbox.smtp() as port:
        sent = [SampleMail(mail.sender, mail.recipients, mail.sent) for mail in mails]
        replies = Sender("127.0.0.1", port).send_all(sent)

    assert [str(reply) for reply in replies if reply.code != 250] == []
    eventually(lambda: sandbox.sink.has_all(recipients), within_seconds=60)
    for each in found:
        assert {"key": "mail", "operator": "Exists"} in each["spec"]["tolerations"]
        assert user_of(sandbox, each) == str(UID)
    account = sandbox.kubectl.get("serviceaccount", "outgoing-queue", sandbox.namespace)
    assert account["metadata"]["annotations"]["example.org/role"] == "mail"
    assert len(sandbox.kubectl.list("networkpolicies", sandbox.namespace)) == 3
    eventually(lambda: sandbox.size() == 0, within_seconds=60)
