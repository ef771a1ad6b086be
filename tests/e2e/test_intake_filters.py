"""A milter in a pod of its own, through which the intake of a MailQueue takes mail: what it adds is
in the mail, and while it is gone, mail is put off."""

from __future__ import annotations

import smtplib

import pytest

from support.installation import image_name
from support.kubectl import Manifest, eventually
from support.repository import ROOT
from support.sandbox import Sandbox

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600, func_only=True),
]

NAME, PORT = "milter", 8891
COMMAND = f"""
import asyncio, sys
sys.path.insert(0, "/milter")
from scripted_milter import CONTINUE, ScriptedMilter, packet
milter = ScriptedMilter(replies={{b"E": packet(b"h", b"X-Milter\\0seen\\0") + CONTINUE}})
async def main():
    server = await asyncio.start_server(milter.serve, "0.0.0.0", {PORT})
    await server.serve_forever()
asyncio.run(main())
"""


def milter(sandbox: Sandbox) -> list[Manifest]:
    """A milter in a pod, which runs the one of the tests, and its Service."""
    named = {"name": NAME, "namespace": sandbox.namespace}
    source = (ROOT / "tests/support/scripted_milter.py").read_text()
    container = {
        "name": NAME,
        "image": image_name(),
        "command": ["python", "-c", COMMAND],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": "source", "mountPath": "/milter"}],
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": named,
            "data": {"scripted_milter.py": source},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": named | {"labels": {"app": NAME}},
            "spec": {
                "containers": [container],
                "volumes": [{"name": "source", "configMap": {"name": NAME}}],
                "terminationGracePeriodSeconds": 0,
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": named,
            "spec": {"selector": {"app": NAME}, "ports": [{"port": PORT}]},
        },
    ]


def reply_to(sandbox: Sandbox, recipient: str) -> int:
    """Send a mail; return the reply to it, or 0 where there is no connection."""
    try:
        with sandbox.smtp() as port, smtplib.SMTP("localhost", port, timeout=60) as client:
            content = b"Subject: x\r\n\r\nx\r\n"
            client.sendmail("a@origin.example", [recipient], content)
    except smtplib.SMTPResponseException as refused:
        return refused.smtp_code
    except OSError:
        return 0
    return 250


def test_mail_goes_through_a_milter_in_a_pod_and_is_put_off_while_it_is_gone(
    sandbox: Sandbox,
) -> None:
    given = {"name": "own", "milter": f"inet:{NAME}:{PORT}", "onError": "Defer", "timeout": "5s"}
    sandbox.apply(
        *milter(sandbox), sandbox.mail_queue(intake={**sandbox.intake(1), "filters": [given]})
    )
    sandbox.wait_ready()
    (before,) = sandbox.pods("intake")

    eventually(lambda: reply_to(sandbox, "first@dest.example") == 250, within_seconds=60)
    sandbox.kubectl("delete", "pod", NAME, "-n", sandbox.namespace)
    # Its container may answer for moments after the pod is gone: what it answers is in the mail.
    eventually(lambda: reply_to(sandbox, "away@dest.example") == 451, within_seconds=60)
    sandbox.apply(*milter(sandbox))
    eventually(lambda: reply_to(sandbox, "again@dest.example") == 250, within_seconds=120)

    recipients = ["first@dest.example", "again@dest.example"]
    eventually(lambda: sandbox.sink.has_all(recipients), within_seconds=60)
    contents = sandbox.sink.contents()
    for each in recipients:
        (content,) = contents[each]
        assert b"X-Milter: seen\r\n" in content
    assert all(b"X-Milter: seen\r\n" in each for each in contents.get("away@dest.example", []))
    (after,) = sandbox.pods("intake")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
