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


def test_pods_of_a_user_that_the_image_does_not_know_accept_and_deliver_mail(
    sandbox: Sandbox,
) -> None:
    pod: dict[str, Any] = {
        "labels": {"team": "mail"},
        "tolerations": [{"key": "mail", "operator": "Exists"}],
        "env": [{"name": "TEAM", "value": "mail"}],
        "logLevel": "Debug",
        "securityContext": {"runAsUser": UID},
    }
    queue = sandbox.mail_queue(
        workers=sandbox.workers(2) | {"pod": pod},
        intake=sandbox.intake(1) | {"pod": pod},
        serviceAccount={"annotations": {"example.org/role": "mail"}},
        networkPolicy={"enabled": True},
    )
    sandbox.apply(queue)
    sandbox.wait_ready()
    mails = list(samples(5, seed=3))
    recipients = [recipient for mail in mails for recipient in mail.recipients]

    with sandbox.smtp() as port:
        sent = [SampleMail(mail.sender, mail.recipients, mail.sent) for mail in mails]
        replies = Sender("127.0.0.1", port).send_all(sent)

    assert [str(reply) for reply in replies if reply.code != 250] == []
    eventually(lambda: sandbox.sink.has_all(recipients), within_seconds=60)
    found = [*sandbox.pods("worker"), *sandbox.pods("intake")]
    assert len(found) == 3
    for each in found:
        assert each["metadata"]["labels"]["team"] == "mail"
        assert {"key": "mail", "operator": "Exists"} in each["spec"]["tolerations"]
        name = each["metadata"]["name"]
        assert sandbox.kubectl("exec", "-n", sandbox.namespace, name, "--", "id", "-u").strip() == (
            str(UID)
        )
    account = sandbox.kubectl.get("serviceaccount", "outgoing-queue", sandbox.namespace)
    assert account["metadata"]["annotations"]["example.org/role"] == "mail"
    assert len(sandbox.kubectl.list("networkpolicies", sandbox.namespace)) == 3
    assert sandbox.postroad("size").strip()


def test_pods_without_a_user_in_the_spec_run_as_that_of_the_image(sandbox: Sandbox) -> None:
    sandbox.apply(sandbox.mail_queue(workers=sandbox.workers(1)))
    sandbox.wait_ready()

    (worker,) = sandbox.pods("worker")
    name = worker["metadata"]["name"]
    user = sandbox.kubectl("exec", "-n", sandbox.namespace, name, "--", "id", "-u")

    assert user.strip() == "10001"
    assert "runAsUser" not in worker["spec"]["securityContext"]
