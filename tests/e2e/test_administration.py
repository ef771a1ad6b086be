"""`kubectl mailqueue …` as an administrator uses it: in a pod of the queue, or in one made for the
command."""

from __future__ import annotations

import json
import subprocess

import pytest

from support.kubectl import eventually
from support.sandbox import Sandbox
from support.senders import SampleMail, Sender

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600, func_only=True),
]

SENDER = "o'neill@origin.example"
MAILS = [
    SampleMail(SENDER, [f"{name}@inn.example"], b"Subject: x\r\n\r\nbody\r\n")
    for name in ("one", "two", "three")
]


def mailqueue(
    sandbox: Sandbox, command: str, *arguments: str, name: str = "outgoing"
) -> subprocess.CompletedProcess[str]:
    return sandbox.plugin(command, name, *arguments)


def objects(sandbox: Sandbox, command: str, *arguments: str) -> list[dict[str, object]]:
    done = mailqueue(sandbox, command, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_queue_is_administered_through_its_pods(shared_sandbox: Sandbox) -> None:
    sandbox = shared_sandbox
    sandbox.apply(sandbox.mail_queue(workers=sandbox.workers(0)))
    sandbox.wait_ready()
    with sandbox.smtp() as port:
        replies = Sender("127.0.0.1", port).send_all(MAILS)
    assert [reply.code for reply in replies] == [250, 250, 250]

    mails = objects(sandbox, "browse", "--sender", SENDER)
    assert [mail["recipients"] for mail in mails] == [mail.recipients for mail in MAILS]
    first = str(mails[0]["enqueue_id"])
    assert objects(sandbox, "show", first) == [mails[0]]
    assert objects(sandbox, "remove", f"--id={first}") == [{"count": 1}]
    assert objects(sandbox, "hold", "--all") == [{"count": 2}]
    sizes = {"size": 2, "delayed": 0, "held": 2, "dead_letters": 0, "oldest_due": None}
    assert objects(sandbox, "size") == [sizes]

    gone = mailqueue(sandbox, "show", first)
    assert (gone.returncode, gone.stdout) == (1, "")
    assert gone.stderr == "postroad: no mail waits under this id\n"
    assert mailqueue(sandbox, "remove").returncode == 2

    sandbox.apply(sandbox.mail_queue())
    sandbox.wait_ready()
    assert objects(sandbox, "release", "--recipient", "two@inn.example") == [{"count": 1}]
    eventually(lambda: sandbox.sink.has_all(["two@inn.example"]), within_seconds=60)
    assert objects(sandbox, "purge") == [{"count": 1}]


def test_a_queue_without_pods_gets_one_for_the_command(shared_sandbox: Sandbox) -> None:
    sandbox = shared_sandbox
    no_pods = {"workers": sandbox.workers(0), "intake": sandbox.intake(0)}
    sandbox.apply(sandbox.mail_queue("bare", **no_pods))
    sandbox.wait_ready("bare")

    done = mailqueue(sandbox, "size", "--json", name="bare")

    assert done.returncode == 0, done.stderr
    empty = {"size": 0, "delayed": 0, "held": 0, "dead_letters": 0, "oldest_due": None}
    assert json.loads(done.stdout) == empty
    assert "is made for this command" in done.stderr
    selector = "app.kubernetes.io/component=command"
    eventually(
        lambda: not sandbox.kubectl.list("pods", sandbox.namespace, selector), within_seconds=60
    )
