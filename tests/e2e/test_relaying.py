"""An intake in a pod relays for the networks of its MailQueue, on every way by which a client can
come."""

from __future__ import annotations

import pytest

from support.kubectl import KubectlFailed, eventually
from support.sandbox import Sandbox
from support.senders import SampleMail, Sender

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600, func_only=True),
]

SEND = """
import smtplib
with smtplib.SMTP("outgoing-intake", 2525, timeout=20) as client:
    client.ehlo()
    client.mail("a@origin.example")
    print(*client.rcpt("b@dest.example"))
"""


def reply_to_another_pod(sandbox: Sandbox) -> str:
    """Return the intake's reply when a worker's pod names a recipient through the Service."""
    worker = sandbox.pods("worker")[0]["metadata"]["name"]
    try:
        return sandbox.kubectl("exec", "-n", sandbox.namespace, worker, "--", "python3", "-c", SEND)
    except KubectlFailed as error:
        return str(error)  # the Deployment replaces the pods at this moment


def reply_to_a_forwarded_port(sandbox: Sandbox) -> int:
    mail = SampleMail("a@origin.example", ("b@dest.example",), b"Subject: x\r\n\r\ny\r\n")
    with sandbox.smtp() as port:
        (reply,) = Sender("127.0.0.1", port).send_all([mail])
    return reply.code


def test_a_pod_sends_only_when_its_network_is_named(shared_sandbox: Sandbox) -> None:
    sandbox = shared_sandbox
    sandbox.apply(sandbox.mail_queue(intake=sandbox.intake(1, "127.0.0.0/8")))
    sandbox.wait_ready()

    assert reply_to_a_forwarded_port(sandbox) == 250
    assert reply_to_another_pod(sandbox).startswith("550 b'5.7.1 relaying denied")

    network = f"{sandbox.pods('worker')[0]['status']['podIP']}/32"
    sandbox.apply(sandbox.mail_queue(intake=sandbox.intake(1, network)))
    eventually(lambda: reply_to_another_pod(sandbox).startswith("250 "), within_seconds=120)
    assert reply_to_a_forwarded_port(sandbox) == 550


def test_an_open_relay_is_a_condition_and_a_warning_in_the_log(shared_sandbox: Sandbox) -> None:
    sandbox = shared_sandbox
    sandbox.apply(sandbox.mail_queue(intake=sandbox.intake(1, "0.0.0.0/0")))
    sandbox.wait_ready()

    assert sandbox.condition("RelayRestricted")["reason"] == "OpenRelay"

    def warnings() -> list[str]:
        """Return them from pods that follow the change, as far as they were there before."""
        pods = [each["metadata"]["name"] for each in sandbox.pods("intake")]
        logs = [sandbox.kubectl("logs", "-n", sandbox.namespace, each) for each in pods]
        return [line for each in logs for line in each.splitlines() if "open relay" in line]

    eventually(warnings, within_seconds=240, every_seconds=2)
