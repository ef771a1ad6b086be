"""The queues of a console in a cluster: those that a file names, opened when they are asked for;
and the Events about what is changed of them."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from postroad import open_queue
from postroad.cli.processes.cluster_console import event_of
from postroad.console.audit import AuditEntry
from postroad.console.followed_queues import FollowedQueues, ServedQueue
from postroad.console.queues import ConsoleQueue
from postroad.domain.queues.names import QueueName
from postroad.errors import BrokerUnavailable, InvalidSettings, QueueClosed, QueueNotFound

OUTGOING, LATER = QueueName("mail", "outgoing"), QueueName("mail", "later")


def declare(file: Path, **queues: dict[str, Any]) -> None:
    """Replace the file at once, as the kubelet does."""
    other = file.with_suffix(".new")
    other.write_text(json.dumps({f"mail/{name}": each for name, each in queues.items()}))
    other.replace(file)


async def test_queues_are_opened_when_they_are_asked_for_and_follow_their_file(
    tmp_path: Path,
) -> None:
    file, opened, fails = tmp_path / "queues.json", list[tuple[str, str]](), [True]

    async def opener(name: QueueName, declared: ServedQueue) -> ConsoleQueue:
        opened.append((name.name, declared.environment.get("POSTROAD_S3_BUCKET", "")))
        if name == LATER and fails.pop():
            raise BrokerUnavailable("away")
        queue = await open_queue(f"memory://{name.name}", create=True)
        return ConsoleQueue(name, queue, uid=declared.uid)

    declare(file, outgoing={"uid": "1", "environment": {"POSTROAD_S3_BUCKET": "a"}})
    queues = FollowedQueues(file, opener)
    assert (queues.names(), opened) == ([OUTGOING], [])
    first, second = await asyncio.gather(queues.open(OUTGOING), queues.open(OUTGOING))
    assert first is second
    assert opened == [("outgoing", "a")]

    both: dict[str, Any] = {"outgoing": {"uid": "1", "environment": {"POSTROAD_S3_BUCKET": "b"}}}
    declare(file, later={"uid": "2"}, **both)
    assert set(queues.names()) == {OUTGOING, LATER}
    other = await queues.open(OUTGOING)
    assert other is not first
    both["outgoing"]["conditions"] = [["Ready", "False", "Away"]]
    declare(file, later={"uid": "2"}, **both)
    queues.names()
    assert await queues.open(OUTGOING) is other, "it is opened as before"
    ready = {"type": "Ready", "status": "False", "reason": "Away"}
    assert (queues.conditions(OUTGOING), queues.conditions(LATER)) == ([ready], [])
    assert opened[1:] == [("outgoing", "b")]
    fails.append(True)
    with pytest.raises(BrokerUnavailable):
        await queues.open(LATER)
    fails[:] = [False]
    assert (await queues.open(LATER)).uid == "2", "the next request tries again"

    file.write_text("{")
    assert set(queues.names()) == {OUTGOING, LATER}, "what was read before stays"
    declare(file, later={"uid": "2"})
    assert queues.names() == [LATER]
    with pytest.raises(QueueNotFound):
        await queues.open(OUTGOING)
    await queues.close()
    for each in (first, other):
        with pytest.raises(QueueClosed):
            each.queue.check_open()


@pytest.mark.parametrize(
    "text", ["", "[]", '{"outgoing": {"uid": "1"}}', '{"Mail/x": {"uid": "1"}}']
)
def test_a_file_that_cannot_be_used_at_the_start_is_an_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "queues.json"
    if text:
        file.write_text(text)

    async def opener(name: QueueName, declared: ServedQueue) -> ConsoleQueue:
        raise NotImplementedError

    with pytest.raises(InvalidSettings):
        FollowedQueues(file, opener)


async def test_an_event_names_who_what_and_how_many_and_no_address() -> None:
    queue = await open_queue("memory://announced", create=True)
    on = ConsoleQueue(OUTGOING, queue, uid="u")
    at = datetime(2026, 11, 30, tzinfo=UTC)
    entry = AuditEntry(at, "alice" * 400, "hold", ("sender",), 3)

    event = event_of(on, entry, "main-console-0")
    short = event_of(on, AuditEntry(at, "bob", "suspend", (), None, (("site", "mx.a"),)), "pod")

    assert len(str(event["note"]).encode()) <= 1024
    assert short["note"] == "bob: suspend site mx.a"
    assert (event["regarding"], event["reason"]) == (
        {
            "apiVersion": "postroad.dev/v1beta1",
            "kind": "MailQueue",
            "namespace": "mail",
            "name": "outgoing",
            "uid": "u",
        },
        "ChangedByConsole",
    )
    await queue.close()
