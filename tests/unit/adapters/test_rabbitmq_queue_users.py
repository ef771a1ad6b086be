"""The rights of queue users are those that docs/operator/servers.md names for pods."""

from __future__ import annotations

import re
from pathlib import Path

from postroad.adapters.rabbitmq.queue_users import permissions_of, topic_permission_of
from postroad.domain.queues.broker_users import QueueUser
from postroad.domain.queues.names import QueueName

DOCUMENT = Path(__file__).parents[3] / "docs" / "operator" / "servers.md"


def test_queue_users_have_the_documented_rights() -> None:
    [row] = [each for each in DOCUMENT.read_text().splitlines() if each.startswith("| RabbitMQ |")]
    queue = QueueName("mail-1", "outgoing")
    text = row.replace("\\|", "|").replace("NAMESPACE", "mail-1").replace("NAME", "outgoing")
    documented = dict(
        re.findall(r"(write|read|topic) `(\S+)`", text.partition("`^postroad\\.`")[2])
    )

    permissions, topic = permissions_of(queue), topic_permission_of(queue)

    assert documented == {
        "write": permissions["write"],
        "read": permissions["read"],
        "topic": topic["write"],
    }
    assert (permissions["configure"], topic["read"]) == ("^$", "^$")


def test_a_name_is_read_as_it_is_written_and_others_are_no_queues() -> None:
    user = QueueUser(QueueName("mail-1", "outgoing"), "4d0964520104", "b")

    assert QueueUser.parse(str(user)) == user
    assert user.other.other == user != user.other
    for text in ("guest", "postroad.mail.outgoing.a", f"{user}.a", f"{user}\n", f"x{user}"):
        assert QueueUser.parse(text) is None
