"""A Secret gets another user of RabbitMQ while mail goes through, by an administrator or by the
operator: no pod restarts, no mail is lost, and the first user can be deleted."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.kubectl import Manifest, eventually, manifests, secret
from support.sandbox import Sandbox
from support.senders import SampleMail, Sender
from support.servers import (
    broker_users,
    connected_broker_users,
    make_broker_user,
    remove_broker_user,
)

ROLE = Path(__file__).parents[2] / "manifests" / "users.yaml"

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600, func_only=True),
]

KUBELET_SECONDS = 240
"""The time until a pod has a changed Secret."""

Logins = dict[str, str]


@pytest.fixture
def logins() -> Iterator[Logins]:
    """Passwords of two users by name, in the order of their use."""
    made = {f"e2e-{secrets.token_hex(4)}": secrets.token_hex(8) for _ in range(2)}
    for name, password in made.items():
        make_broker_user(name, password)
    yield made
    for name in made:
        remove_broker_user(name)


def use(sandbox: Sandbox, name: str, password: str) -> None:
    login = {"username": name, "password": password}
    sandbox.apply(secret("rabbitmq", sandbox.namespace, login))


def send(sandbox: Sandbox, recipient: str) -> None:
    mail = SampleMail("a@origin.example", [recipient], b"Subject: x\r\n\r\nhello\r\n")
    with sandbox.smtp() as port:
        (reply,) = Sender("127.0.0.1", port).send_all([mail])
    assert reply.code == 250


def user_in(sandbox: Sandbox, component: str) -> str:
    """Return the user whom a pod would connect as."""
    target, file = f"deployment/outgoing-{component}", "/etc/postroad/rabbitmq/username"
    return sandbox.kubectl("exec", "-n", sandbox.namespace, target, "--", "cat", file).strip()


def cluster_with_users(sandbox: Sandbox) -> Manifest:
    """Return the sandbox's QueueCluster, which asks for a user for each MailQueue."""
    cluster = sandbox.installation.queue_cluster(sandbox.namespace, sandbox.keyspace)
    cluster["spec"]["rabbitmq"]["users"] = {"overlap": "10m"}
    return cluster


def made_user(sandbox: Sandbox) -> str:
    """Return the user that the operator made for the queue."""
    found = sandbox.kubectl.get("secret", "outgoing-rabbitmq", sandbox.namespace)
    return base64.b64decode(found["data"]["username"]).decode()


def test_the_operator_makes_a_user_of_the_queues_own_and_switches_it(sandbox: Sandbox) -> None:
    sandbox.apply(*manifests(ROLE))
    sandbox.apply(cluster_with_users(sandbox))
    sandbox.apply(sandbox.mail_queue(deletionPolicy="Delete"))
    sandbox.wait_ready()
    first = made_user(sandbox)
    before = {part: sandbox.pods(part)[0]["metadata"]["uid"] for part in ("worker", "intake")}
    send(sandbox, "first@dest.example")
    eventually(lambda: first in connected_broker_users(), within_seconds=60)

    sandbox.kubectl(
        "annotate", "mailqueue", "outgoing", "-n", sandbox.namespace, "postroad.dev/rotate=once"
    )
    eventually(lambda: made_user(sandbox) != first, within_seconds=60)
    second = made_user(sandbox)
    for part in before:
        eventually(
            lambda part=part: user_in(sandbox, part) == second,  # type: ignore[misc]
            within_seconds=KUBELET_SECONDS,
            every_seconds=2,
        )
    eventually(lambda: second in connected_broker_users(), within_seconds=60)
    eventually(lambda: first not in connected_broker_users(), within_seconds=60)
    remove_broker_user(first)  # as the operator does after the overlap
    send(sandbox, "second@dest.example")

    recipients = [f"{name}@dest.example" for name in ("first", "second")]
    eventually(lambda: sandbox.sink.has_all(recipients), within_seconds=120)
    for part, uid in before.items():
        (pod,) = sandbox.pods(part)
        assert pod["metadata"]["uid"] == uid
    assert sandbox.events("UserSwitched")
    sandbox.kubectl(
        "delete", "mailqueue", "outgoing", "-n", sandbox.namespace, "--timeout=60s", timeout=70
    )
    eventually(lambda: not broker_users() & {first, second}, within_seconds=120)


def test_another_user_takes_over_without_a_restart(sandbox: Sandbox, logins: Logins) -> None:
    (first, first_password), (second, second_password) = logins.items()
    use(sandbox, first, first_password)
    sandbox.apply(sandbox.mail_queue())
    sandbox.wait_ready()
    before = {part: sandbox.pods(part)[0]["metadata"]["uid"] for part in ("worker", "intake")}
    send(sandbox, "first@dest.example")
    assert first in connected_broker_users()

    use(sandbox, second, second_password)
    for part in before:
        eventually(
            lambda part=part: user_in(sandbox, part) == second,  # type: ignore[misc]
            within_seconds=KUBELET_SECONDS,
            every_seconds=2,
        )
    send(sandbox, "second@dest.example")
    eventually(lambda: second in connected_broker_users(), within_seconds=60)
    remove_broker_user(first)
    make_broker_user(first, secrets.token_hex(8))  # for the end of the test; not its password
    eventually(lambda: first not in connected_broker_users(), within_seconds=60)
    send(sandbox, "third@dest.example")

    recipients = [f"{name}@dest.example" for name in ("first", "second", "third")]
    eventually(lambda: sandbox.sink.has_all(recipients), within_seconds=120)
    for part, uid in before.items():
        (pod,) = sandbox.pods(part)
        assert pod["metadata"]["uid"] == uid
        assert [each["restartCount"] for each in pod["status"]["containerStatuses"]] == [0]
    sandbox.wait_ready()
