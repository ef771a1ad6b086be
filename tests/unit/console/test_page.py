"""The console's page without scripts: what it shows, what its forms do, and that nothing from mail
becomes a part of it."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from postroad import Mail, Selector
from postroad.console import page
from postroad.console.api.guard import SECURITY_HEADERS
from postroad.console.page.rendering import rate, shown
from postroad.console.page.texts import OPERATIONS, TEXTS
from postroad.domain.delivery.sites import published_views
from postroad.ports.delivery import Topic
from postroad.ports.mail_queue import MailQueue, Operation
from support.consoles import RunningConsole, a_console

HOME = "/queues/memory/paged"
TABS: Mapping[str, str] = TEXTS["tabs"]  # type: ignore[assignment]
HOSTILE = '<img src="https://evil.example/x" onerror=alert(1)>\x1b[2J\u202egpj.exe {{ 7*7 }}'
BROWSER = {"Accept": "text/html"}


@pytest.fixture
async def console(tmp_path: Path) -> AsyncIterator[RunningConsole]:
    async with a_console("memory://paged", attempt_log=tmp_path) as running:
        await running.queue.purge()
        await running.queue.discard(Selector.all())
        yield running


def a_mail(number: int = 0, domain: str = "example.net", **more: object) -> Mail:
    given = {"sender": f"a{number}@example.org", "recipients": (f"b@{domain}",), **more}
    return Mail(content=b"Subject: hi\r\n\r\nhello\r\n", **given)  # type: ignore[arg-type]


async def a_dead_letter(queue: MailQueue, reason: str, number: int = 0) -> None:
    await queue.enqueue(a_mail(number))
    async for item in queue.dequeue(1):
        await item.reject(reason)
        break


async def read(console: RunningConsole, path: str, status: int = 200) -> str:
    answer = await console.client.get(path, headers=BROWSER)
    assert answer.status_code == status, answer.text
    check_page(answer)
    return answer.text


async def send(console: RunningConsole, path: str, **fields: str | list[str]) -> httpx.Response:
    return await console.client.post(path, data=fields, headers=BROWSER)


async def id_of(console: RunningConsole, path: str = "mails") -> str:
    items = (await console.client.get(f"/api/v1{HOME}/{path}")).json()["items"]
    return str(items[0]["id"])


class Parts(HTMLParser):
    """Elements and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def check_page(answer: httpx.Response) -> None:
    """Check that a page is one that the policy allows, and links only to the console."""
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == SECURITY_HEADERS["Content-Security-Policy"]
    assert answer.headers["referrer-policy"] == "same-origin", "forms would send Origin: null"
    parts = Parts(answer.text)
    assert not {"img", "style", "iframe", "object", "b"} & set(parts.tags)
    for name, value in parts.attributes:
        assert name != "style"
        assert not name.startswith("on")
        if name in ("href", "src", "action", "hx-get"):
            assert value.startswith(("/", "#")), value
            assert not value.startswith("//")


async def test_queues_are_shown_with_their_numbers(console: RunningConsole) -> None:
    await console.queue.enqueue(a_mail())
    await console.queue.enqueue(a_mail(1), timedelta(hours=1))
    text = await read(console, "/")
    assert f'href="{HOME}"' in text
    assert re.search(r"<dt>Waiting</dt><dd><a [^>]*>2</a>", text)
    assert re.search(r"<dt>Delayed</dt><dd><a [^>]*>1</a>", text)
    assert "<rect" in text
    assert "hx-trigger" not in text, "it moves only where that is asked for"
    assert "hx-trigger" in await read(console, "/?live=true")


async def test_each_number_of_the_ages_leads_to_its_mails(console: RunningConsole) -> None:
    await console.queue.enqueue(a_mail(1))
    await console.queue.enqueue(a_mail(2, "elsewhere.example"))
    text = await read(console, HOME)
    links = re.findall(rf'href="({HOME}/mails\?domain=[^"]*)">(\d+)<', text)
    assert {count for _, count in links} == {"1"}
    for link, count in links:
        listed = await read(console, link.replace("&amp;", "&"))
        assert listed.count('<li class="mail">') == int(count)


@pytest.mark.parametrize("path", ["", *(f"/{tab}" for tab in TABS if tab != "queue")])
async def test_every_part_is_shown_of_an_empty_queue(console: RunningConsole, path: str) -> None:
    assert 'aria-current="page"' in await read(console, HOME + path)


async def test_rates_conditions_and_how_the_size_went_are_shown(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = [{"type": "Ready", "status": "True", "reason": "AsDeclared"}]
    bad = {"type": "Durable", "status": "False", "reason": "OneNode<b>"}
    monkeypatch.setattr(console.console.queues, "conditions", lambda _: [*ready, bad])
    monkeypatch.setattr("postroad.console.rates.MIN_BETWEEN", timedelta(0))
    shared = console.queue.shared_state
    assert shared
    first = await read(console, HOME)
    entry = published_views([], left=10**6)
    await shared.publish(Topic.WORKERS, "w", entry, timedelta(minutes=1))
    await read(console, HOME)
    page = await read(console, HOME + "?live=true")

    assert ("polyline" in first, "polyline" in page) == (False, True)
    assert re.search(r"<dt>Out</dt><dd>[0-9,]+/s</dd>", page), page
    assert 'hx-trigger="every 5s"' in page
    assert re.search(r'badge delivered"><bdi>Ready</bdi><', page)
    assert re.search(r'badge failed"><bdi>Durable</bdi>: <bdi>OneNode&lt;b&gt;</bdi><', page)
    assert re.search(r"<dt>Out</dt><dd>[0-9,]+/s</dd>", await read(console, "/"))


@pytest.mark.parametrize(
    ("per_second", "expected"),
    [(None, "–"), (0, "0/s"), (0.25, "15/min"), (3.14, "3.1/s"), (1234.5, "1,234/s")],
)
def test_a_rate_is_shown_for_people(per_second: float | None, expected: str) -> None:
    assert rate(per_second) == expected


@pytest.mark.parametrize(
    ("query", "status", "texts"),
    [
        ("?sliceWindow=30m", "good", ["accepted, as version 2", "1h</bdi> → <bdi>30m"]),
        ("?sliceWindow=1h", "good", ["It would change nothing."]),
        ("?sliceWindow=45m", "bad", ["It would be refused:", "30m</bdi>, <bdi>1h"]),
        ("?bucketCount=x", "bad", ["bucketCount"]),
    ],
)
async def test_what_a_change_of_the_configuration_would_do_is_shown_and_nothing_is_changed(
    console: RunningConsole, query: str, status: str, texts: list[str]
) -> None:
    before = (await console.client.get(f"/api/v1{HOME}/configuration")).json()
    page = await read(console, f"{HOME}/configuration{query}")

    assert f'class="notice {status}"' in page
    for each in texts:
        assert each in page
    assert (await console.client.get(f"/api/v1{HOME}/configuration")).json() == before


async def test_a_wrong_filter_stands_beside_what_was_asked(console: RunningConsole) -> None:
    text = await read(console, f"{HOME}/mails?olderThan=soon&sender=a%22b", 422)
    assert 'role="alert"' in text
    assert 'value="soon"' in text
    assert 'value="a&#34;b"' in text


async def test_a_search_goes_on_with_its_filters(console: RunningConsole) -> None:
    for number in range(60):
        await console.queue.enqueue(a_mail(number))
    first = await read(console, f"{HOME}/mails?domain=example.net")
    follow = re.search(r'rel="next" href="([^"]*)"', first)
    assert follow is not None
    second = await read(console, follow[1].replace("&amp;", "&"))
    assert (first + second).count('<li class="mail">') == 60


async def test_what_stands_in_mail_is_text(console: RunningConsole) -> None:
    address = '"x{{7*7}}\' onload=y"@evil.example'
    mail = a_mail(sender=address, recipients=(address,), name=HOSTILE, attributes={"k": HOSTILE})
    await console.queue.enqueue(mail)
    async for item in console.queue.dequeue(1):
        await item.retry(timedelta(hours=1), error=HOSTILE)
        break
    await a_dead_letter(console.queue, HOSTILE)

    waiting, dead = await id_of(console), await id_of(console, "dead-letters")
    for path in ("/mails", f"/mails/{waiting}", "/dead-letters", f"/mails/{dead}", "/mails?q=%3Ci"):
        text = await read(console, HOME + path)
        assert "{{ 7*7 }}" in text
        assert "&lt;img src=" in text
        assert "U+202E" in text
        assert not {"\x1b", "\u202e"} & set(text)
    assert "49" not in Parts(await read(console, f"{HOME}/mails/{waiting}")).tags


def test_hidden_characters_are_shown_by_their_numbers() -> None:
    for character in "\x00\x7f\x85\u00ad\u061c\u200b\u200f\u202a\u2028\u2066\u2069\ufeff\U000e0041":
        text = shown(f"a{character}b")
        assert character not in text
        assert f"U+{ord(character):04X}" in text
    assert shown("ä<b>&\"'") == "<bdi>ä&lt;b&gt;&amp;&#34;&#39;</bdi>"
    assert len(shown("x" * 100_000)) < 1000


async def test_one_mail_is_held_and_released_by_its_buttons(console: RunningConsole) -> None:
    await console.queue.enqueue(a_mail())
    for operation, state in (("hold", "held"), ("release", "due")):
        mail = await id_of(console)
        answer = await send(console, f"{HOME}/operations", operation=operation, id=mail)
        assert answer.status_code == 303
        text = await read(console, answer.headers["location"])
        assert OPERATIONS[operation].past in text
        assert f'<span class="badge {state}">' in text


async def test_a_bulk_change_is_counted_and_confirmed(console: RunningConsole) -> None:
    for number in range(3):
        await console.queue.enqueue(a_mail(number))
    await console.queue.enqueue(a_mail(9, "elsewhere.example"))
    fields = {"operation": "remove", "domain": "example.net"}

    asked = await send(console, f"{HOME}/operations", **fields)
    assert asked.status_code == 200
    check_page(asked)
    assert '<input type="hidden" name="confirm" value="3">' in asked.text
    assert (await console.queue.size()).size == 4

    wrong = await send(console, f"{HOME}/operations", **fields, confirm="2")
    assert 'role="alert"' in wrong.text
    assert (await console.queue.size()).size == 4

    begun = await send(console, f"{HOME}/operations", **fields, confirm="3")
    assert begun.status_code == 303
    for _ in range(100):
        text = await read(console, begun.headers["location"])
        if "Done" in text:
            break
    assert "<strong>3</strong> of 3 removed" in text
    assert (await console.queue.size()).size == 1


async def test_dead_letters_stand_by_reason_and_are_requeued(console: RunningConsole) -> None:
    for number in range(2):
        await a_dead_letter(console.queue, f"550 5.1.1 <b{number}@example.net> unknown", number)
    await a_dead_letter(console.queue, "552 5.2.2 mailbox full", 3)
    text = await read(console, f"{HOME}/dead-letters")
    assert re.findall(r'<summary><span class="count">(\d+)', text) == ["2", "1"]
    ids = re.findall(r'name="id" value="([^"]+)"', text)[:2]

    fields: dict[str, str | list[str]] = {"operation": "requeue", "id": ids}
    asked = await send(console, f"{HOME}/operations", **fields)
    assert '<input type="hidden" name="confirm" value="2">' in asked.text
    done = await send(console, f"{HOME}/operations", **fields, confirm="2")
    assert "<strong>2</strong> of 2" in await read(console, done.headers["location"])
    sizes = await console.queue.size()
    assert (sizes.size, sizes.dead_letters) == (2, 1)

    again = await send(console, f"{HOME}/operations", **fields, confirm="2")
    assert "<strong>0</strong> of 2" in await read(console, again.headers["location"])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"operation": "explode", "all": "yes"},
        {"operation": "remove"},
        {"operation": "remove", "all": "yes", "confirm": "x"},
        {"operation": "remove", "all": "yes", "confirm": "9" * 5000},
        {"operation": "remove", "id": "x", "confirm": "1"},
        {"operation": "hold", "olderThan": "soon"},
    ],
)
async def test_a_form_that_means_nothing_changes_nothing(
    console: RunningConsole, fields: dict[str, str]
) -> None:
    await console.queue.enqueue(a_mail())
    answer = await send(console, f"{HOME}/operations", **fields)
    assert answer.status_code == 422
    check_page(answer)
    sizes = await console.queue.size()
    assert (sizes.size, sizes.held) == (1, 0)


async def test_forms_need_the_console_s_own_origin(console: RunningConsole) -> None:
    await console.queue.enqueue(a_mail())
    for origin in ("null", "http://evil.example"):
        answer = await console.client.post(
            f"{HOME}/operations",
            data={"operation": "hold", "all": "yes", "confirm": "1"},
            headers=BROWSER | {"Origin": origin},
        )
        assert answer.status_code == 403
        check_page(answer)
    assert (await console.queue.size()).held == 0


async def test_a_refusal_is_a_page_for_browsers_and_a_problem_for_programs(
    console: RunningConsole,
) -> None:
    for client, path, status in (
        (console.anonymous, "/", 401),
        (console.client, "/queues/memory/missing", 404),
        (console.client, f"{HOME}/mails/x", 422),
        (console.client, "/static/missing.css", 404),
    ):
        seen = await client.get(path, headers=BROWSER)
        assert seen.status_code == status
        check_page(seen)
        assert (await client.get(path)).headers["content-type"] == "application/problem+json"
    api = await console.client.get("/api/v1/queues/memory/missing", headers=BROWSER)
    assert api.headers["content-type"] == "application/problem+json"


async def test_addresses_are_put_on_the_list_and_taken_off(console: RunningConsole) -> None:
    path = f"{HOME}/suppressions"
    added = await send(console, path, change="add", address="b+1@example.net", reason="<b>asked")
    assert added.status_code == 303
    text = await read(console, added.headers["location"])
    assert "b+1@example.net" in text
    assert "&lt;b&gt;asked" in text
    gone = await send(console, path, change="remove", address="b+1@example.net")
    assert "b+1@example.net" not in await read(console, gone.headers["location"])
    check_page(await send(console, path, change="add", address="no address"))


async def test_a_site_is_suspended_and_resumed(console: RunningConsole) -> None:
    path = f"{HOME}/sites"
    fields = {"site": "mx.example.net", "duration": "2h", "reason": "they asked"}
    done = await send(console, path, change="suspend", **fields)
    text = await read(console, done.headers["location"])
    assert '<span class="badge suspended">' in text
    assert "they asked" in text
    done = await send(console, path, change="resume", site="mx.example.net")
    assert "badge suspended" not in await read(console, done.headers["location"])
    assert (await send(console, path, change="resume", site="../x")).status_code == 404


async def test_a_trace_asks_for_a_recipient(console: RunningConsole) -> None:
    assert "<ol" not in await read(console, f"{HOME}/trace")
    assert str(TEXTS["no_attempts"]) in await read(console, f"{HOME}/trace?recipient=b@example.net")


async def test_files_of_the_page_are_its_own(console: RunningConsole) -> None:
    text = await read(console, "/")
    for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', text):
        assert (await console.client.get(path)).status_code == 200
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", text)
    assert [inside for _, inside in scripts] == ["", ""]


def test_templates_have_no_text_of_their_own() -> None:
    folder = Path(page.__path__[0]) / "templates"
    for template in folder.glob("*.html"):
        text = re.sub(r"{#.*?#}|{%.*?%}|{{.*?}}", "", template.read_text(), flags=re.DOTALL)
        text = re.sub(r"<[^>]*>", "", text)
        assert not re.findall(r"[a-z]{2,}", text), template.name


def test_each_operation_has_texts() -> None:
    assert not set(TEXTS) & set(dir(dict)), "a template would show the method"
    assert set(OPERATIONS) == {each.value for each in Operation}


def without_attempt_log(console: RunningConsole) -> None:
    (queue,) = console.console.queues._queues.values()  # type: ignore[attr-defined]
    object.__setattr__(queue, "attempt_log", None)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (None, "start it with --log"),
        ([], "postroad trace {} --queue distributed://memory.paged"),
    ],
)
async def test_a_mail_whose_attempts_are_not_known_says_where_they_are(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch, conditions: object, expected: str
) -> None:
    without_attempt_log(console)
    monkeypatch.setattr(console.console.queues, "conditions", lambda _: conditions)
    await console.queue.enqueue(a_mail())
    async for item in console.queue.dequeue(1):
        await item.retry(timedelta(hours=1), error="451 try again")
        break
    (mail,) = (await console.client.get(f"/api/v1{HOME}/mails")).json()["items"]
    text = await read(console, f"{HOME}/mails/{mail['id']}")
    assert "<strong>1 attempt.</strong>" in text
    assert expected.format(mail["mailId"]) in text
    assert "451 try again" in text


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (None, "start the console with --log"),
        ([], "`postroad trace --queue distributed://memory.paged`"),
    ],
)
async def test_a_trace_without_attempt_log_says_where_attempts_are(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch, conditions: object, expected: str
) -> None:
    without_attempt_log(console)
    monkeypatch.setattr(console.console.queues, "conditions", lambda _: conditions)
    answer = await console.client.get(f"/api/v1{HOME}/trace?recipient=b@example.net")
    assert answer.status_code == 404
    assert expected in answer.json()["detail"]


async def test_what_a_queue_does_not_have_is_no_error(console: RunningConsole) -> None:
    without_attempt_log(console)
    text = await read(console, f"{HOME}/trace?recipient=b@example.net")
    assert 'class="notice" role="status"' in text
    nowhere = await read(console, "/nowhere", 404)
    assert 'role="alert"' not in nowhere


async def test_domains_break_between_their_labels(console: RunningConsole) -> None:
    await console.queue.enqueue(a_mail(0, "department.university.example"))
    assert "<bdi>department.<wbr>university.<wbr>example</bdi>" in await read(console, HOME)


async def test_the_report_of_a_lake_is_shown_as_it_was_written_and_runs_nothing(
    tmp_path: Path,
) -> None:
    async with a_console("memory://paged", reports=tmp_path) as console:
        assert "Report of the lake" not in await read(console, HOME)
        path = f"/api/v1{HOME}/report"
        assert (await console.client.get(path)).status_code == 404
        written = "<!doctype html><script>alert(1)</script><img src='https://evil.example/'>"
        (tmp_path / "index.html").write_text(written)
        assert f'href="{path}"' in await read(console, HOME)
        shown_to = await console.client.get(path)
        assert shown_to.text == written
        policy = shown_to.headers["content-security-policy"]
        assert policy.startswith("sandbox; default-src 'none'; img-src data:;")
        assert "script-src" not in policy
        assert (await console.anonymous.get(path)).status_code == 401


def make_huge(page: Path) -> None:
    page.touch()
    os.truncate(page, 2**40)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, make_huge])
async def test_what_is_no_report_or_too_large_takes_no_thread_and_no_memory(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "index.html")
    async with a_console("memory://paged", reports=tmp_path) as console:
        path = f"/api/v1{HOME}/report"
        assert path not in await read(console, HOME)
        async with asyncio.timeout(5):
            assert (await console.client.get(path)).status_code == 404
