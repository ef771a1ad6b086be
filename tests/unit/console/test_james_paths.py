"""James' paths answer as a real James did, whose conversation is recorded; the differences stand in
docs/james-reference.md. His actions on RabbitMQ are in no published jar: their answers are held to
his source alone."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import httpx
import pytest

from postroad import Mail, Selector
from postroad.console import remembered_work
from postroad.console.api.james import tasks
from postroad.console.api.james.answers import duration_of
from postroad.console.operations import MAX_RUNNING
from postroad.console.rights import MAILS, ConsoleUser
from postroad.errors import ViewUnavailable
from postroad.ports.mail_queue import MailQueue
from support.consoles import RunningConsole, a_console
from support.james_conversation import RECORD, QueuedMail, talk
from support.repository import ROOT

BASE = "/james/memory"
QUEUE = f"{BASE}/mailQueues/outgoing"


@pytest.fixture
async def console() -> AsyncIterator[RunningConsole]:
    async with a_console("memory://outgoing", "memory://spool") as running:
        await running.queue.purge()
        yield running
        await running.queue.purge()


async def fill(queue: MailQueue, mail: QueuedMail) -> None:
    made = Mail(mail.sender, mail.recipients, b"x", name=mail.name)
    await queue.enqueue(made, timedelta(seconds=mail.delay or 0))


TEXTS = "texts of his parsers"
DUE = "`nextDelivery` of due mail"


def difference(theirs: dict[str, Any], ours: dict[str, Any]) -> str | None:
    """Return why two answers differ; None: they are equal."""
    if theirs == ours:
        return None
    if theirs["status"] == ours["status"] == 400:
        for answer in (theirs, ours):
            answer["body"]["message"], _, _ = answer["body"]["message"].partition(": ")
            assert answer["body"].pop("details")
        assert theirs == ours
        return TEXTS
    for answer in (theirs, ours):
        answer["body"].sort(key=lambda each: each["name"])  # flushed mail goes to his queue's end
        for mail in answer["body"]:
            mail.pop("nextDelivery")
    assert theirs == ours
    return DUE


async def test_the_recorded_conversation_is_answered_alike(console: RunningConsole) -> None:
    told = await talk(console.client, lambda mail: fill(console.queue, mail), BASE)

    rows = json.loads(RECORD.read_text())
    found = Counter[str | None]()
    for (asked, answer), row in zip(told, rows, strict=True):
        assert row["asked"] == asdict(asked)
        found[difference(row["answered"], json.loads(json.dumps(asdict(answer))))] += 1

    page = (ROOT / "docs/james-reference.md").read_text()
    assert f"{found.pop(None)} of {len(rows)} answers" in page
    assert set(found) == {TEXTS, DUE}
    for reason, number in found.items():
        assert f"| {reason} | {number} |" in page


async def begun(answer: httpx.Response) -> str:
    assert answer.status_code == 201, answer.text
    task = answer.json()["taskId"]
    assert answer.headers["Location"] == f"{BASE}/tasks/{task}"
    return f"{BASE}/tasks/{task}"


async def test_republish_and_browse_start_are_tasks(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    maintained: list[str] = []

    async def maintain(queue: MailQueue) -> None:
        maintained.append(queue.name)

    async def republish(_: MailQueue, older_than: timedelta) -> int:
        assert older_than == timedelta(days=2)
        return 3

    monkeypatch.setattr(type(console.queue), "republish", republish)
    monkeypatch.setattr(type(console.queue), "maintain", maintain)
    url = f"{QUEUE}?action=RepublishNotProcessedMails&olderThan=2"

    task = await begun(await console.client.post(url))
    found = (await console.client.get(f"{task}/await")).json()

    assert (found["type"], found["status"]) == ("republish-not-processed-mails", "completed")
    details = found["additionalInformation"]
    assert (details["mailQueue"], details["nbRequeuedMails"]) == ("outgoing", 3)
    assert details["olderThan"] < details["timestamp"]

    task = await begun(await console.client.post(f"{QUEUE}?action=updateBrowseStart"))
    found = (await console.client.get(f"{task}/await")).json()
    assert (found["type"], found["status"]) == ("browse-start-update", "completed")
    assert found["additionalInformation"]["mailQueue"] == "outgoing"
    assert maintained == [console.queue.name]


ACTIONS = "Supported values are [RepublishNotProcessedMails, updateBrowseStart]"
INVALID = "Invalid arguments supplied in the user request"


@pytest.mark.parametrize(
    ("query", "message", "details"),
    [
        ("", INVALID, f"'action' query parameter is compulsory. {ACTIONS}"),
        ("?action=", INVALID, f"'action' query parameter cannot be empty or blank. {ACTIONS}"),
        (
            "?action=x",
            INVALID,
            f"Invalid value supplied for query parameter 'action': x. {ACTIONS}",
        ),
        ("?action=RepublishNotProcessedMails", "Missing olderThan", None),
        ("?action=RepublishNotProcessedMails&olderThan=", "Missing olderThan", None),
        (
            "?action=RepublishNotProcessedMails&olderThan=1x",
            "Invalid olderThan",
            "Unknown unit: x",
        ),
    ],
)
async def test_wrong_actions(
    console: RunningConsole, query: str, message: str, details: str | None
) -> None:
    answer = await console.client.post(f"{QUEUE}{query}")

    assert answer.status_code == 400
    expected = {"statusCode": 400, "type": "InvalidArgument", "message": message}
    assert answer.json() == {**expected, "details": details}


@pytest.mark.parametrize("unit", ["9999999999999d", "-1d", "d", "1 d 2"])
async def test_a_duration_that_is_none_is_refused(console: RunningConsole, unit: str) -> None:
    url = f"{QUEUE}?action=RepublishNotProcessedMails&olderThan={unit}"
    answer = await console.client.post(url)

    assert (answer.status_code, answer.json()["message"]) == (400, "Invalid olderThan")


async def test_a_task_that_works_is_awaited_and_cancelled(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(MAX_RUNNING):
        await fill(console.queue, QueuedMail(f"m{number}"))

    async def remove(_: MailQueue, selector: Selector) -> int:
        await asyncio.Event().wait()
        return 0

    monkeypatch.setattr(type(console.queue), "remove", remove)
    works = [await begun(await console.client.delete(f"{QUEUE}/mails")) for _ in range(MAX_RUNNING)]
    late = await console.client.delete(f"{QUEUE}/mails")
    assert (late.status_code, late.json()["type"]) == (429, "ServerError")
    monkeypatch.setattr(tasks, "MAX_RUNNING", MAX_RUNNING + 1)
    monkeypatch.setattr(remembered_work, "MAX_KEPT", MAX_RUNNING)
    late = await console.client.delete(f"{QUEUE}/mails")  # though this user may have one more
    assert (late.status_code, late.json()["type"]) == (429, "ServerError")

    waited = await console.client.get(f"{works[0]}/await?timeout=10ms")
    assert (waited.status_code, waited.json()["message"]) == (408, "The timeout has been reached")
    while (found := (await console.client.get(works[0])).json())["additionalInformation"] is None:
        await asyncio.sleep(0)  # it still counts
    assert (found["status"], found["cancelledFrom"]) == ("inProgress", None)
    assert found["additionalInformation"]["initialCount"] == MAX_RUNNING

    for each in works:
        assert (await console.client.delete(each)).status_code == 204
    found = (await console.client.get(f"{works[0]}/await")).json()
    assert found["status"] == "canceled"
    assert found["cancelledFrom"] is not None
    assert "canceledDate" in found
    assert (await console.queue.size()).size == MAX_RUNNING


async def test_a_task_fails_as_a_server_is_away(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def remove(_: MailQueue, selector: Selector) -> int:
        raise ViewUnavailable("Cassandra does not answer")

    monkeypatch.setattr(type(console.queue), "remove", remove)
    task = await begun(await console.client.delete(f"{QUEUE}/mails?name=x"))

    found = (await console.client.get(f"{task}/await")).json()

    assert (found["status"], "failedDate" in found) == ("failed", True)
    failed = await console.client.get(f"{BASE}/tasks?status=failed")
    assert [each["taskId"] for each in failed.json()] == [found["taskId"]]


async def test_a_server_that_is_away_is_an_error_of_his_form(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def size(_: MailQueue) -> None:
        raise ViewUnavailable("Cassandra does not answer")

    monkeypatch.setattr(type(console.queue), "size", size)

    answer = await console.client.get(QUEUE)

    assert (answer.status_code, answer.json()["type"]) == (503, "ServerError")
    assert answer.headers["Retry-After"] == "30"


async def test_mail_that_comes_during_a_removal_stays(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(console.queue, QueuedMail("early"))
    remove = type(console.queue).remove

    async def after_another(queue: MailQueue, selector: Selector) -> int:
        await fill(queue, QueuedMail("late"))
        return await remove(queue, selector)

    monkeypatch.setattr(type(console.queue), "remove", after_another)
    task = await begun(await console.client.delete(f"{QUEUE}/mails"))
    await console.client.get(f"{task}/await")

    listed = (await console.client.get(f"{QUEUE}/mails")).json()
    assert [each["name"] for each in listed] == ["late"]


class OnlyReading:
    """Rights of a user who may look at one namespace."""

    async def may(
        self, who: ConsoleUser, verb: str, resource: str, namespace: str, name: str = ""
    ) -> bool:
        return verb != "create" and namespace == "memory"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/memory/mailQueues/outgoing/mails"),
        ("PATCH", "/memory/mailQueues/outgoing/mails?delayed=true"),
        ("POST", "/memory/mailQueues/outgoing?action=updateBrowseStart"),
        ("DELETE", "/memory/tasks/5b6e3f0c-4d0f-4a6e-9a52-0a3f6f1f6d11"),
        ("GET", "/other/mailQueues"),
        ("GET", "/other/mailQueues/outgoing"),
        ("GET", "/other/mailQueues/outgoing/mails"),
        ("GET", "/other/tasks"),
        ("GET", "/other/tasks/5b6e3f0c-4d0f-4a6e-9a52-0a3f6f1f6d11"),
        ("GET", "/other/tasks/5b6e3f0c-4d0f-4a6e-9a52-0a3f6f1f6d11/await"),
    ],
)
async def test_rights_are_those_of_the_api(method: str, path: str) -> None:
    async with a_console("memory://outgoing", rights=OnlyReading()) as console:
        refused = await console.client.request(method, f"/james{path}", content='{"delayed":false}')
        seen = await console.client.get(QUEUE)

    status = 404 if "/other/mailQueues/" in path else 403  # a queue that is not seen is none
    assert (refused.status_code, refused.json()["statusCode"]) == (status, status)
    assert seen.status_code == 200


class NoAddresses:
    """Rights of a user who runs queues, and sees no addresses."""

    async def may(
        self, who: ConsoleUser, verb: str, resource: str, namespace: str, name: str = ""
    ) -> bool:
        return resource != MAILS


async def test_tasks_show_no_addresses_to_a_user_who_may_not_see_mail() -> None:
    async with a_console("memory://outgoing", rights=NoAddresses()) as console:
        query = {"recipient": "secret@example.net"}
        task = await begun(await console.client.delete(f"{QUEUE}/mails", params=query))
        ended = await console.client.get(f"{task}/await")
        shown = await console.client.get(task)
        listed = await console.client.get(f"{BASE}/tasks")

    for found in (ended.json(), shown.json(), listed.json()[0]):
        assert found["additionalInformation"]["mailQueueName"] == "outgoing"
        assert found["additionalInformation"]["recipient"] is None
    assert "secret" not in ended.text + shown.text + listed.text


async def test_a_session_is_needed(console: RunningConsole) -> None:
    assert (await console.anonymous.get(QUEUE)).status_code == 401
    foreign = await console.client.delete(f"{QUEUE}/mails", headers={"Origin": "http://evil.test"})
    assert foreign.status_code == 403


async def test_durations_that_no_date_has_are_refused_at_once(console: RunningConsole) -> None:
    far = {"action": "RepublishNotProcessedMails", "olderThan": "99999999d"}
    answer = await console.client.post(QUEUE, params=far)
    assert (answer.status_code, answer.json()["message"]) == (400, "Invalid olderThan")

    path = f"{BASE}/tasks/5b6e3f0c-4d0f-4a6e-9a52-0a3f6f1f6d11/await"
    long = await console.client.get(path, params={"timeout": "366d"})
    assert (long.status_code, long.json()["message"]) == (400, "Invalid timeout")
    with pytest.raises(ValueError, match="unit format"):  # in a time linear in the spaces
        duration_of(f" 1{' ' * 1_000_000}s !", timedelta(seconds=1))


async def test_tasks_of_another_namespace_are_not_seen(console: RunningConsole) -> None:
    task = await begun(await console.client.delete(f"{QUEUE}/mails"))
    elsewhere = task.replace("/memory/", "/other/")

    assert (await console.client.get(elsewhere)).status_code == 404
    assert (await console.client.get("/james/other/tasks")).json() == []
    assert (await console.client.get("/james/other/mailQueues")).json() == []


async def test_the_oldest_task_that_ended_is_forgotten(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered_work, "MAX_KEPT", 2)
    made = []
    for _ in range(3):
        made.append(await begun(await console.client.delete(f"{QUEUE}/mails")))
        await console.client.get(f"{made[-1]}/await")

    assert (await console.client.get(made[0])).status_code == 404
    assert (await console.client.get(made[1])).status_code == 200
