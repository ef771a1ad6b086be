"""The console's API reads queues: sizes, listings in pages, one mail, its content."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from postroad import Mail, Selector
from postroad.console import reading
from postroad.domain.mail.mail import QUARANTINE
from postroad.ports.mail_queue import MailQueue
from support.consoles import RunningConsole, a_console

MAILS = "/api/v1/queues/memory/reading/mails"
DEAD = "/api/v1/queues/memory/reading/dead-letters"
HOUR = timedelta(hours=1)


def a_mail(number: int = 0, **more: object) -> Mail:
    given = {"sender": f"a{number}@example.org", "recipients": ("b@example.net",), **more}
    return Mail(content=b"Subject: <b>hi</b>\r\n\r\nhello\r\n", **given)  # type: ignore[arg-type]


@pytest.fixture
async def console() -> AsyncIterator[RunningConsole]:
    async with a_console("memory://reading") as running:
        await running.queue.purge()
        await running.queue.discard(Selector.all())
        yield running


async def all_pages(console: RunningConsole, path: str, **query: str | int) -> list[list[str]]:
    """Return the senders of each page."""
    pages, cursor = [], None
    while True:
        given = query if cursor is None else {**query, "cursor": cursor}
        answer = await console.client.get(path, params=given)
        assert answer.status_code == 200, answer.text
        pages.append([each["sender"] for each in answer.json()["items"]])
        cursor = answer.json()["next"]
        if cursor is None:
            return pages


async def test_a_queue_has_the_sizes_that_the_port_counts(console: RunningConsole) -> None:
    await console.queue.enqueue(a_mail())
    await console.queue.enqueue(a_mail(), HOUR)

    listed = (await console.client.get("/api/v1/queues")).json()["items"]
    one = (await console.client.get("/api/v1/queues/memory/reading")).json()
    ages = (await console.client.get("/api/v1/queues/memory/reading/ages")).json()["items"]

    assert listed == [one]
    assert (one["namespace"], one["name"], one["problem"]) == ("memory", "reading", None)
    assert one["sizes"]["size"] == 2
    assert (one["sizes"]["delayed"], one["sizes"]["due"]) == (1, 1)
    assert one["oldestAge"] == "5m"
    assert [(each["domain"], each["total"]) for each in ages] == [("example.net", 2)]


async def test_pages_have_every_mail_the_oldest_first(console: RunningConsole) -> None:
    for number in range(7):
        await console.queue.enqueue(a_mail(number))

    pages = await all_pages(console, MAILS, limit=3)

    senders = [f"a{number}@example.org" for number in range(7)]
    assert pages == [senders[:3], senders[3:6], senders[6:]]


async def test_pages_miss_no_mail_that_gets_another_entry(console: RunningConsole) -> None:
    senders = [f"a{number}@example.org" for number in range(7)]
    for number in range(7):
        await console.queue.enqueue(a_mail(number))
    for number in (2, 3, 4):
        await console.queue.hold(Selector(sender=senders[number]))

    for limit in range(1, 8):
        pages = await all_pages(console, MAILS, limit=limit)
        assert {each for page in pages for each in page} == set(senders)


async def test_a_search_that_finds_nothing_ends_its_page_in_time(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SCAN_TIME", "PULSE"):
        monkeypatch.setattr(reading, name, timedelta(microseconds=-1))
    for number in range(5):
        await console.queue.enqueue(a_mail(number))

    assert await all_pages(console, MAILS, sender="other@example.org") == [[]] * 5
    found = await all_pages(console, MAILS, sender="a3@example.org")
    assert found == [[], [], [], ["a3@example.org"], []]
    await console.queue.expire(Selector.all())
    assert await all_pages(console, DEAD, sender="other@example.org") == [[]] * 5


async def test_an_operation_changes_no_mail_by_which_a_listing_says_how_far_it_is(
    console: RunningConsole,
) -> None:
    wanted = Selector(sender="other@example.org", pulse=timedelta(microseconds=-1))
    await console.queue.enqueue(a_mail())

    assert len([each async for each in console.queue.browse(wanted)]) == 1
    assert await console.queue.expire(wanted) == 0
    assert await console.queue.expire(Selector.all()) == 1
    assert await console.queue.discard(wanted) == 0


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"sender": "a1@example.org"}, ["a1@example.org"]),
        ({"domain": "elsewhere.example"}, ["a2@example.org"]),
        ({"recipient": "c@elsewhere.example", "state": "due"}, ["a2@example.org"]),
        ({"state": "held"}, ["a1@example.org"]),
        ({"state": "delayed"}, ["a3@example.org"]),
        ({"q": "ELSEWHERE"}, ["a2@example.org"]),
        ({"q": "bill"}, ["a3@example.org"]),
        ({"olderThan": "1h"}, []),
        ({"sender": "<>"}, [None]),
        ({"state": "dead"}, []),
    ],
)
async def test_a_search_finds_mail(
    console: RunningConsole, query: dict[str, str], found: list[str | None]
) -> None:
    await console.queue.enqueue(a_mail(1))
    await console.queue.enqueue(a_mail(2, recipients=("c@elsewhere.example",)))
    await console.queue.enqueue(a_mail(3, name="the Bill"), HOUR)
    await console.queue.enqueue(a_mail(sender=None))
    await console.queue.hold(Selector(sender="a1@example.org"))

    pages = await all_pages(console, MAILS, **query)

    assert [each for page in pages for each in page] == found


@pytest.mark.parametrize("how", ["due", "delayed", "held", "quarantined", "retried", "dead"])
async def test_a_mail_shows_why_it_waits(console: RunningConsole, how: str) -> None:
    await waiting(console.queue, how)
    path = DEAD if how == "dead" else MAILS
    listed = (await console.client.get(path)).json()["items"][0]

    one = (await console.client.get(f"{MAILS}/{listed['id']}")).json()

    assert one["waiting"]["cause"].lower() == how
    assert {name: one[name] for name in listed} == listed
    if how == "retried":
        assert "451 busy" in one["waiting"]["text"]
        assert one["dueAt"] is not None
    if how == "quarantined":
        assert one["quarantine"] == "a virus"


async def waiting(queue: MailQueue, how: str) -> None:
    attributes = {QUARANTINE: "a virus"} if how == "quarantined" else {}
    await queue.enqueue(a_mail(attributes=attributes), HOUR if how == "delayed" else timedelta(0))
    if how == "held":
        await queue.hold(Selector.all())
    if how == "dead":
        await queue.expire(Selector.all())
    if how == "retried":
        async for item in queue.dequeue():
            await item.retry(HOUR, error="451 busy")
            break


async def test_content_is_saved_and_never_shown(console: RunningConsole) -> None:
    enqueue_id = await console.queue.enqueue(a_mail())

    answer = await console.client.get(f"{MAILS}/{enqueue_id}/content")

    assert answer.content == b"Subject: <b>hi</b>\r\n\r\nhello\r\n"
    assert answer.headers["content-type"] == "message/rfc822"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"
    await console.queue.purge()
    gone = await console.client.get(f"{MAILS}/{enqueue_id}/content")
    assert gone.status_code == 404
    assert gone.headers["content-type"] == "application/problem+json"
    assert (await console.client.get(f"{MAILS}/{enqueue_id}")).status_code == 404


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=501", "limit=x", "cursor=x", "state=x", "olderThan=x", "olderThan=1h1h",
     f"olderThan={'9' * 5000}h", "unknown=1", f"q={'x' * 1001}", "q=", "limit=%00"],
)  # fmt: skip
async def test_a_wrong_parameter_is_refused(console: RunningConsole, query: str) -> None:
    answer = await console.client.get(f"{MAILS}?{query}")

    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["errors"]


@pytest.mark.parametrize(
    "query", ["q=a&q=b", "sender=a@example.org&limit=5&sender=", "limit=5&limit=5"]
)
async def test_a_parameter_that_is_given_twice_is_refused(
    console: RunningConsole, query: str
) -> None:
    answer = await console.client.get(f"{MAILS}?{query}")

    assert (answer.status_code, answer.json()["detail"]) == (
        422, "a parameter is given more than once",
    )  # fmt: skip


async def test_a_forged_cursor_is_a_place_like_others(console: RunningConsole) -> None:
    await console.queue.enqueue(a_mail())
    for cursor, count in (("0" * 32, 1), ("f" * 32, 0)):
        answer = await console.client.get(MAILS, params={"cursor": cursor})
        assert answer.status_code == 200
        assert len(answer.json()["items"]) == count
