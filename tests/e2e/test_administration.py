"""`kubectl mailqueue …` as people use it: in a pod of the queue, or in one made for the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.kubectl import eventually
from support.place import Place
from support.senders import Letter, Sender

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600),
]

SENDER = "o'neill@origin.example"
LETTERS = [
    Letter(SENDER, [f"{name}@inn.example"], b"Subject: x\r\n\r\nbody\r\n")
    for name in ("one", "two", "three")
]


def mailqueue(place: Place, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the plugin with the cluster's kubectl."""
    kubectl, _, kubeconfig = place.stack.kubernetes.kubectl.command()
    program = Path(sys.executable).with_name("kubectl-mailqueue")
    return subprocess.run(
        [str(program), command, "outgoing", "--namespace", place.namespace, *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        env=os.environ
        | {"KUBECONFIG": kubeconfig, "PATH": f"{Path(kubectl).parent}:{os.environ['PATH']}"},
    )


def objects(place: Place, command: str, *arguments: str) -> list[dict[str, object]]:
    done = mailqueue(place, command, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_queue_is_administered_through_its_pods(place: Place) -> None:
    place.apply(place.mail_queue(workers=place.workers(0)))
    place.wait_ready()
    with place.smtp() as port:
        replies = Sender("127.0.0.1", port).send_all(LETTERS)
    assert [reply.code for reply in replies] == [250, 250, 250]

    mails = objects(place, "browse", "--sender", SENDER)
    assert [mail["recipients"] for mail in mails] == [letter.recipients for letter in LETTERS]
    first = str(mails[0]["enqueue_id"])
    assert objects(place, "show", first) == [mails[0]]
    assert objects(place, "remove", f"--id={first}") == [{"count": 1}]
    assert objects(place, "hold", "--all") == [{"count": 2}]
    assert objects(place, "size") == [{"size": 2, "delayed": 0, "held": 2, "dead_letters": 0}]

    gone = mailqueue(place, "show", first)
    assert (gone.returncode, gone.stdout) == (1, "")
    assert gone.stderr == "postroad: no mail waits under this id\n"
    assert mailqueue(place, "remove").returncode == 2

    place.apply(place.mail_queue())
    place.wait_ready()
    assert objects(place, "release", "--recipient", "two@inn.example") == [{"count": 1}]
    eventually(lambda: place.sink.has_all(["two@inn.example"]), within_seconds=60)
    assert objects(place, "purge") == [{"count": 1}]


def test_a_queue_without_pods_gets_one_for_the_command(place: Place) -> None:
    place.apply(place.mail_queue(workers=place.workers(0), intake=place.intake(0)))
    place.wait_ready()

    done = mailqueue(place, "size", "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"size": 0, "delayed": 0, "held": 0, "dead_letters": 0}
    assert "is made for this command" in done.stderr
    selector = "app.kubernetes.io/component=command"
    eventually(lambda: not place.kubectl.list("pods", place.namespace, selector), within_seconds=60)
