"""The console's API and the commands give equal answers for equal queues: memory, a directory, and
the running servers."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import servers
from postroad import Mail, Selector, open_queue
from postroad.cli import main
from postroad.console.queues import names_of
from postroad.ports.mail_queue import MailQueue, Operation
from support.consoles import RunningConsole, a_console

ENGINES = [
    "memory",
    "embedded",
    pytest.param("distributed", marks=pytest.mark.needs("rabbitmq", "cassandra", "s3")),
]
ALL = {"all": True}
SELECTORS: list[dict[str, Any]] = [
    {"sender": "a1@example.org"},
    {"sender": ""},
    {"domain": "D2.example"},
    {"recipient": "b@d1.example", "name": "held"},
    ALL,
]


@pytest.fixture(params=ENGINES)
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """The URLs of two queues of one engine."""
    if request.param == "embedded":
        return f"embedded://{tmp_path}/one", f"embedded://{tmp_path}/two"
    scheme = "distributed://test." if request.param == "distributed" else "memory://"
    return f"{scheme}{servers.fresh()}", f"{scheme}{servers.fresh()}"


async def fill(queue: MailQueue) -> None:
    for number in range(4):
        sender = f"a{number}@example.org" if number else None
        await queue.enqueue(Mail(sender, (f"b@d{number % 3}.example",), b"x", name=f"m{number}"))
    await queue.enqueue(Mail("a1@example.org", ("b@d2.example",), b"later"), timedelta(minutes=5))
    held = Mail("a1@example.org", ("b@d1.example",), b"x", name="held")
    await queue.enqueue(held, timedelta(minutes=5))
    await queue.hold(Selector(name="held"))
    for number in range(3):
        dead = Mail(f"a{number}@example.org", (f"b@d{number}.example",), b"x", name="dead")
        await queue.enqueue(dead)
    await queue.expire(Selector(name="dead"))


def options(selector: dict[str, Any]) -> list[str]:
    if selector == ALL:
        return ["--all"]
    return [part for name, value in selector.items() for part in (f"--{name}", value or "<>")]


async def command(url: str, name: str, *more: str) -> list[Any]:
    """Run a command; return the lines that it prints."""
    arguments = [name, "--queue", url, "--json", *more]
    ended = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    assert ended.exit_code == 0, ended.output
    return [json.loads(line) for line in ended.stdout.splitlines()]


async def by_api(
    console: RunningConsole, base: str, operation: str, selector: dict[str, Any]
) -> tuple[int, int]:
    """Do an operation; return how many mails it was for, and how many it changed."""
    wanted = {"operation": operation, "selector": selector}
    counted = await console.client.post(f"{base}/operations", json={**wanted, "dryRun": True})
    matched = counted.json()["matched"]
    begun = await console.client.post(f"{base}/operations", json={**wanted, "confirm": matched})
    assert begun.status_code == 202, begun.text
    await console.client.get(f"{base}/operations/{begun.json()['id']}/events")
    ended = (await console.client.get(f"{base}/operations/{begun.json()['id']}")).json()
    assert (ended["phase"], ended["message"]) == ("Done", None)
    return matched, ended["done"]


def facts(mails: list[Any], *, is_printed: bool) -> list[tuple[object, ...]]:
    """Return what is equal of mails of two queues, in the order in which they are listed."""
    found: list[tuple[object, ...]] = []
    for each in mails:
        reason = each.get("reason")
        is_held = reason is None and (each["held"] if is_printed else each["state"] == "held")
        is_delayed = (each["due_at"] if is_printed else each["dueAt"]) is not None
        size = each["size_bytes" if is_printed else "sizeBytes"]
        parts = (each["sender"] or None, each["recipients"], each["name"], each["attempt"], size)
        found.append((*parts, is_held, is_delayed, reason))
    return found


async def all_pages(console: RunningConsole, path: str) -> list[Any]:
    """Return the items of all pages: on a busy machine a page ends early."""
    found: list[Any] = []
    page: dict[str, Any] = {"next": ""}
    while page["next"] is not None:
        query = {"cursor": page["next"]} if page["next"] else {}
        page = (await console.client.get(path, params=query)).json()
        found += page["items"]
    return found


async def check_equal(console: RunningConsole, base: str, url: str) -> None:
    for path, name in (("mails", "browse"), ("dead-letters", "dead-letters")):
        listed = await all_pages(console, f"{base}/{path}")
        printed = await command(url, name)
        assert sorted(map(str, facts(listed, is_printed=False))) == sorted(
            map(str, facts(printed, is_printed=True))
        )


@pytest.mark.parametrize("operation", list(Operation))
async def test_operations_have_equal_results(urls: tuple[str, str], operation: Operation) -> None:
    one, two = urls
    async with a_console(one) as console, open_queue(two, create=True) as other:
        name = names_of([one])[0]
        base = f"/api/v1/queues/{name.namespace}/{name.name}"
        await fill(console.queue)
        await fill(other)
        await check_equal(console, base, two)
        for selector in SELECTORS:
            _, done = await by_api(console, base, operation.value, selector)
            [printed] = await command(two, operation.value, *options(selector))
            assert done == printed["count"], (operation, selector)
            await check_equal(console, base, two)


async def test_numbers_are_equal(urls: tuple[str, str]) -> None:
    one, two = urls
    async with a_console(one) as console, open_queue(two, create=True) as other:
        name = names_of([one])[0]
        base = f"/api/v1/queues/{name.namespace}/{name.name}"
        await fill(console.queue)
        await fill(other)

        [printed] = await command(two, "size")
        sizes = (await console.client.get(base)).json()["sizes"]
        names = {
            "size": "size",
            "delayed": "delayed",
            "held": "held",
            "dead_letters": "deadLetters",
        }
        assert {key: printed[key] for key in names} == {
            key: sizes[named] for key, named in names.items()
        }
        assert sizes["due"] == sizes["size"] - sizes["delayed"] - sizes["held"]
        ages = (await console.client.get(f"{base}/ages")).json()["items"]
        assert ages == await command(two, "ages")


async def test_configurations_are_equal(urls: tuple[str, str]) -> None:
    one, _ = urls
    async with a_console(one) as console:
        name = names_of([one])[0]
        path = f"/api/v1/queues/{name.namespace}/{name.name}/configuration"
        answer = await console.client.get(path)
        if one.startswith("embedded:"):
            assert answer.status_code == 404
            return
        found = answer.json()
        [shown] = await configured(one, "show")
        assert found["history"] == await configured(one, "history")
        assert (found["version"], found["sliceWindow"]) == (shown["version"], shown["sliceWindow"])
        assert found["acceptedAt"] == shown["accepted_at"]
        for window, outcome in (("30m", "changed"), ("1h", "unchanged"), ("45m", "refused")):
            plan = (await console.client.get(f"{path}/plan?sliceWindow={window}")).json()
            [checked] = await configured(one, "check", "--slice-window", window)
            assert plan["outcome"] == outcome
            for field in checked.keys() - {"queue"}:
                assert plan[field] == checked[field], field
        page = await console.client.get(path.removeprefix("/api/v1"))
        assert page.text.count("<li><time") == len(found["history"])
        assert f"Slice window <bdi>{found['sliceWindow']}</bdi>" in page.text
        wrong = await console.client.get(f"{path}/plan?sliceWindow=0s")
        assert wrong.status_code == 422


async def configured(url: str, name: str, *more: str) -> list[Any]:
    """Run a command of `postroad config`; return the lines that it prints."""
    ended = await asyncio.to_thread(
        CliRunner().invoke, main, ["config", name, url, "--json", *more]
    )
    return [json.loads(line) for line in ended.stdout.splitlines()]
