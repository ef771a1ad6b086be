"""Operations by the console's API: counted, confirmed, made in portions, watched to their end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from postroad import Mail, Selector
from postroad.console import operations
from postroad.console.api import streams
from postroad.domain.queues.documents import MailView
from postroad.errors import ViewUnavailable
from postroad.ports.mail_queue import MailQueue, Operation
from support.consoles import RunningConsole, a_console

BASE = "/api/v1/queues/memory/operated"
ALL = {"all": True}


def a_mail(number: int) -> Mail:
    return Mail(f"a{number % 3}@example.org", ("b@example.net",), b"x", name=str(number))


@pytest.fixture
async def console(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningConsole]:
    monkeypatch.setattr(operations, "PORTION", 3)
    monkeypatch.setattr(operations, "FIRST_PAUSE", timedelta(milliseconds=1))
    async with a_console("memory://operated") as running:
        await running.queue.purge()
        await running.queue.discard(Selector.all())
        for number in range(10):
            await running.queue.enqueue(a_mail(number))
        yield running


async def begin(console: RunningConsole, operation: str, selector: Any, **more: object) -> Any:
    wanted = {"operation": operation, "selector": selector, **more}
    return await console.client.post(f"{BASE}/operations", json=wanted)


async def result(console: RunningConsole, operation_id: str) -> Any:
    """Watch an operation to its end; return the events."""
    answer = await console.client.get(f"{BASE}/operations/{operation_id}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(each[6:]) for each in answer.text.splitlines() if each[:6] == "data: "]
    assert events[-1] == (await console.client.get(f"{BASE}/operations/{operation_id}")).json()
    return events


async def held(queue: MailQueue) -> set[str]:
    return {each.mail.name or "" async for each in queue.browse() if each.held}


async def test_an_operation_is_made_in_portions_that_are_seen(console: RunningConsole) -> None:
    begun = await begin(console, "hold", ALL)
    assert begun.status_code == 202
    assert begun.json()["matched"] == 10

    events = await result(console, begun.json()["id"])

    assert len(await held(console.queue)) == 10
    assert (events[-1]["phase"], events[-1]["done"], events[-1]["matched"]) == ("Done", 10, 10)
    assert len(events) >= 2
    assert [each["done"] for each in events] == sorted(each["done"] for each in events)


async def test_a_dry_run_counts_and_changes_nothing(console: RunningConsole) -> None:
    counted = await begin(console, "remove", {"sender": "a0@example.org"}, dryRun=True)

    assert (counted.status_code, counted.json()["matched"]) == (202, 4)
    [event] = await result(console, counted.json()["id"])
    assert (event["phase"], event["dryRun"], event["done"]) == ("Counted", True, 0)
    assert (await console.queue.size()).size == 10


@pytest.mark.parametrize(
    "more",
    [{"dryRun": "yes"}, {"dryRun": 1}, {"confirm": True}, {"confirm": "4"},
     {"selector": {"all": "true"}}, {"selector": {"olderThan": True}},
     {"selector": {"olderThan": 3600}}],
)  # fmt: skip
async def test_a_value_of_another_type_is_refused(
    console: RunningConsole, more: dict[str, Any]
) -> None:
    wanted = {"operation": "hold", "selector": ALL} | more
    answer = await console.client.post(f"{BASE}/operations", json=wanted)

    assert answer.status_code == 422, answer.text
    assert not await held(console.queue)


async def begin_by_key(console: RunningConsole, key: str, operation: str, **more: object) -> Any:
    wanted = {"operation": operation, "selector": {"sender": "a0@example.org"}, **more}
    headers = {"Idempotency-Key": key}
    return await console.client.post(f"{BASE}/operations", json=wanted, headers=headers)


async def test_a_key_is_answered_with_what_it_began(console: RunningConsole) -> None:
    refused = await begin_by_key(console, "k1", "remove")
    assert refused.status_code == 409, "nothing was begun: the key is free"
    first = await begin_by_key(console, "k1", "remove", confirm=4)
    await result(console, first.json()["id"])
    await console.queue.enqueue(a_mail(0))
    again = await begin_by_key(console, "k1", "remove", confirm=4)
    other = await begin_by_key(console, "k2", "remove", confirm=1)
    reused = await begin_by_key(console, "k1", "hold")
    dry = await begin_by_key(console, "k1", "remove", dryRun=True)
    console.client.cookies.set("postroad-console", console.login())
    of_other_user = await begin_by_key(console, "k1", "hold")

    assert (first.status_code, again.status_code, again.json()) == (202, 202, first.json())
    assert other.json()["id"] != first.json()["id"]
    assert (reused.status_code, dry.status_code) == (409, 409)
    assert of_other_user.status_code == 202
    for wrong in ("", "a b", "x" * 256):
        assert (await begin_by_key(console, wrong, "hold")).status_code == 422


async def test_a_key_begins_anew_in_a_queue_that_was_opened_anew(console: RunningConsole) -> None:
    first = await begin_by_key(console, "k", "hold")
    await result(console, first.json()["id"])
    queues = cast("Any", console.console.queues)._queues
    ((name, before),) = queues.items()
    queues[name] = replace(before, uid="another")  # as FollowedQueues does

    again = await begin_by_key(console, "k", "hold")

    assert again.status_code == 202
    assert (await result(console, again.json()["id"]))[-1]["phase"] == "Done"


async def test_two_requests_of_one_key_at_a_time_begin_one_operation(
    console: RunningConsole,
) -> None:
    answers = await asyncio.gather(*(begin_by_key(console, "k", "hold") for _ in range(5)))

    ids = {each.json()["id"] for each in answers if each.status_code == 202}
    assert len(ids) == 1
    assert {each.status_code for each in answers} <= {202, 409}
    audit = (await console.client.get(f"{BASE}/audit")).json()["items"]
    assert [each["change"] for each in audit] == ["hold"]


@pytest.mark.parametrize("operation", ["remove", "expire"])
async def test_what_cannot_be_undone_needs_the_present_number(
    console: RunningConsole, operation: str
) -> None:
    selector = {"sender": "a0@example.org"}
    for confirm in ({}, {"confirm": 3}, {"confirm": 0}):
        refused = await begin(console, operation, selector, **confirm)
        assert refused.status_code == 409
        assert '"confirm": 4' in refused.json()["detail"]
    assert (await console.queue.size()).size == 10

    begun = await begin(console, operation, selector, confirm=4)

    assert (await result(console, begun.json()["id"]))[-1]["done"] == 4
    assert (await console.queue.size()).size == 6


async def test_dead_letters_are_requeued_and_discarded(console: RunningConsole) -> None:
    await console.queue.expire(Selector.all())

    begun = await begin(console, "requeue", {"sender": "a0@example.org"})
    assert (await result(console, begun.json()["id"]))[-1]["done"] == 4
    begun = await begin(console, "discard", ALL, confirm=6)
    assert (await result(console, begun.json()["id"]))[-1]["done"] == 6

    sizes = await console.queue.size()
    assert (sizes.size, sizes.dead_letters) == (4, 0)


async def test_mail_that_is_accepted_later_is_left_alone(console: RunningConsole) -> None:
    begun = await begin(console, "hold", ALL)
    await console.queue.enqueue(a_mail(99))
    await result(console, begun.json()["id"])

    assert "99" not in await held(console.queue)


async def test_an_operation_goes_on_where_it_was_when_a_server_is_back(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, calls = console.queue.change, 0

    async def failing(operation: Operation, selector: Selector) -> int:
        nonlocal calls
        calls += 1
        if calls in (2, 3):
            raise ViewUnavailable("Cassandra is away")
        return await change(operation, selector)

    monkeypatch.setattr(console.queue, "change", failing)
    begun = await begin(console, "hold", ALL)
    events = await result(console, begun.json()["id"])

    assert (events[-1]["phase"], events[-1]["done"]) == ("Done", 10)
    assert len(await held(console.queue)) == 10


async def test_an_operation_that_a_server_refuses_fails_with_its_words(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(operation: Operation, selector: Selector) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(console.queue, "change", failing)
    begun = await begin(console, "hold", ALL)
    event = (await result(console, begun.json()["id"]))[-1]

    assert (event["phase"], event["done"]) == ("Failed", 0)
    assert "see its log" in event["message"]


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        ({"operation": "hold", "selector": {}}, 422),
        ({"operation": "hold", "selector": {"all": False}}, 422),
        ({"operation": "hold", "selector": {"all": True, "sender": "a@b"}}, 422),
        ({"operation": "hold", "selector": {"unknown": 1}}, 422),
        ({"operation": "hold", "selector": {"older_than": "1h"}, "x": 1}, 422),
        ({"operation": "purge", "selector": {"all": True}}, 422),
        ({"operation": "hold", "selector": {"sender": "x" * 1000}}, 422),
        ({"operation": "hold", "selector": [[[[]]]]}, 422),
        ({"operation": "remove", "selector": {"all": True}, "confirm": -1}, 422),
        ([], 422),
    ],
)
async def test_a_wrong_operation_is_refused(
    console: RunningConsole, wanted: Any, status: int
) -> None:
    answer = await console.client.post(f"{BASE}/operations", json=wanted)

    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert (await console.queue.size()).size == 10


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 60_000, b"\xff\xfe", b"\x00", b'{"a":1}' * 3])
async def test_a_body_that_is_no_json_is_refused(console: RunningConsole, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await console.client.post(f"{BASE}/operations", content=body, headers=headers)

    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"
    assert not answer.json()["detail"].endswith(": ")


async def test_the_answer_to_an_untyped_body_names_the_header(console: RunningConsole) -> None:
    answer = await console.client.post(f"{BASE}/operations", content=b"{}")

    assert answer.status_code == 422
    assert "Content-Type: application/json" in answer.json()["detail"]


async def test_an_operation_is_found_at_its_queue_alone() -> None:
    async with a_console("memory://operated", "memory://other") as console:
        begun = (await begin(console, "hold", ALL, dryRun=True)).json()
        found = await console.client.get(f"{BASE}/operations/{begun['id']}")
        assert found.status_code == 200
        other = found.request.url.path.replace("operated", "other")
        assert (await console.client.get(other)).status_code == 404


async def test_operations_that_come_at_once_have_the_bound_of_others(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    browse = console.queue.browse

    async def slow(selector: Selector) -> AsyncIterator[MailView]:
        await asyncio.sleep(0)  # while it counts, the others arrive
        async for each in browse(selector):
            yield each

    monkeypatch.setattr(console.queue, "browse", slow)
    wanted = {"sender": "a0@example.org"}

    answers = await asyncio.gather(*(begin(console, "hold", wanted) for _ in range(30)))

    begun = [each for each in answers if each.status_code == 202]
    assert len(begun) == operations.MAX_RUNNING
    for each in begun:
        await result(console, each.json()["id"])
    assert (await begin(console, "hold", wanted)).status_code == 202


async def test_streams_have_a_bound(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = (await begin(console, "hold", ALL, dryRun=True)).json()
    monkeypatch.setattr(streams, "MAX_STREAMS_OF_USER", 0)

    answer = await console.client.get(f"{BASE}/operations/{begun['id']}/events")

    assert answer.status_code == 429
    assert "retry-after" in answer.headers


async def test_streams_that_come_at_once_have_the_bound_of_others(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, change = asyncio.Event(), console.queue.change

    async def waiting(operation: Operation, selector: Selector) -> int:
        await ends.wait()
        return await change(operation, selector)

    monkeypatch.setattr(console.queue, "change", waiting)
    monkeypatch.setattr(streams, "MAX_STREAMS_OF_USER", 3)
    begun = (await begin(console, "hold", ALL)).json()
    path = f"{BASE}/operations/{begun['id']}/events"
    asked = [asyncio.create_task(console.client.get(path)) for _ in range(10)]
    async with asyncio.timeout(30):
        while sum(each.done() for each in asked) < 7:
            await asyncio.sleep(0.01)
    ends.set()

    answers = await asyncio.gather(*asked)
    assert sorted(each.status_code for each in answers) == [200] * 3 + [429] * 7
    assert (await console.client.get(path)).status_code == 200, "room again"


async def test_changes_are_logged_without_addresses(
    console: RunningConsole, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    begun = await begin(console, "hold", {"sender": "a0@example.org"})
    await result(console, begun.json()["id"])
    await asyncio.sleep(0)

    [begins] = [each for each in caplog.records if each.getMessage() == "a change"]
    fields = vars(begins)
    assert (fields["who"], fields["change"], fields["matched"]) == ("session-1", "hold", 4)
    assert fields["selector"] == ["sender"]
    assert "a0@example.org" not in str([vars(each) for each in caplog.records])
