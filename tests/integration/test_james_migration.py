"""Mail that James' own jars queued moves to postroad whole, once, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import servers
from postroad import open_queue
from support.james import KILLED, Place, fresh_place, listed

pytestmark = [
    pytest.mark.needs("james", "rabbitmq", "cassandra", "s3", "java", "mvn"),
    pytest.mark.timeout(900),
]

MAILS, MAX_BODY = 60, 30_000
KILLS, STEPS_OF_A_MAIL = 20, 6


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with fresh_place(tmp_path) as found:
        yield found


@pytest.fixture(params=["distributed", "embedded"])
async def url(place: Place, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    url = f"embedded://{tmp_path / 'store'}"
    if request.param == "distributed":
        url = f"distributed://test.{servers.fresh()}"
    await place.target(url)
    return url


async def names_in(place: Place, url: str) -> list[str]:
    async with open_queue(url, settings=place.settings) as queue:
        return [str(view.mail.name) async for view in queue.browse()]


def of_sender_3(count: int) -> set[str]:
    """Return the names of a sender's mails among those that James' program fills in."""
    return {f"mail-{each}" for each in range(count) if each % 25 == 3 and each % 4}


async def test_whole_queue_moves_byte_for_byte(place: Place, url: str) -> None:
    async with place.james(JAMES_SLICE="PT1H", JAMES_BUCKETS="2") as james:
        await james.ask("register")
        await james.ask("fill", 0, MAILS, MAX_BODY)
    async with place.james(JAMES_SLICE="PT30M", JAMES_BUCKETS="5") as james:
        await james.ask("register")
        await james.ask("fill", MAILS, MAILS, MAX_BODY)
        await james.ask("remove", "Sender", "sender3@example.org")  # he counts none of them
        done = (await james.ask("take", 10, "SUCCESS"))["answer"]
        [rejected] = (await james.ask("take", 1, "REJECT"))["answer"]
        before = listed(await james.ask("list"))
    removed = of_sender_3(2 * MAILS)
    gone = {f"mail-{each}" for each in range(2 * MAILS)} - {each["name"] for each in before}
    assert gone == removed | set(done)

    imported = f"distributed://test.{servers.fresh()}"
    for expected in ([("1h", 2), ("30m", 5)], []):
        code, lines, err = await place.run("config", "import-james", imported)
        assert code == 0, err
        assert [(each["sliceWindow"], each["bucketCount"]) for each in lines] == expected

    code, lines, _ = await place.migrate(url)
    moved = await place.moved(url)

    assert moved == [each for each in before if each["name"] != rejected]
    assert (code, lines[-1]["moved"], lines[-1]["hidden"]) == (1, len(moved), 1)
    assert lines[-1]["dropped"] > 0, "messages of what James had removed"
    assert lines[0]["reason"] == "no message of it is in his work queue"

    code, lines, _ = await place.migrate(url, "--hidden")
    assert (code, lines[-1]["moved"]) == (0, 1)
    assert await place.moved(url) == before

    code, lines, _ = await place.migrate(url)
    assert (code, lines[-1]["moved"], lines[-1]["dropped"]) == (0, 0, 0)
    async with place.james() as james:
        assert (await james.ask("list"))["answer"] == []
        await james.ask("drop")


MANY = int(os.environ.get("JAMES_MAILS", "400"))
SMALL, USUAL, LARGE = 5_000, 8_000, 10_000_000
IN_FLIGHT = 20


@pytest.mark.timeout(3600)
async def test_many_mails_with_kills_while_james_has_some_in_flight(place: Place, url: str) -> None:
    """From 5 kB to 10 MB; a changed history; removed, dequeued, and in flight. Of 10,000: 300
    removed and 200 dequeued."""
    half, chance = MANY // 2, random.Random(39)
    async with place.james(JAMES_SLICE="PT1H", JAMES_BUCKETS="2") as james:
        await james.ask("register")
        await james.ask("fill", 0, half, USUAL, SMALL)
    async with place.james(IN_FLIGHT, JAMES_SLICE="PT30M", JAMES_BUCKETS="5") as james:
        await james.ask("register")
        await james.ask("fill", half, half - 5, USUAL, SMALL)
        await james.ask("fill", 2 * half - 5, 5, LARGE, LARGE)
        await james.ask("remove", "Sender", "sender3@example.org")
        done = (await james.ask("take", MANY // 50, "SUCCESS"))["answer"]
        before = listed(await james.ask("list"))
        await james.ask("consume", 3_600_000)  # he holds what his prefetch allows, and ends none
        steps = [chance.randrange(2, 2 + STEPS_OF_A_MAIL * MANY // KILLS) for _ in range(KILLS)]
        killed = [(await place.migrate(url, killed_at=each))[0] for each in steps]
        code, lines, err = await place.migrate(url)
    names = {each["name"] for each in before}
    assert names == {f"mail-{each}" for each in range(2 * half)} - of_sender_3(2 * half) - {*done}
    assert killed == [KILLED] * KILLS
    assert (code, lines[-1]["of_james"]) == (0, IN_FLIGHT), (lines[-1], err)
    assert lines[-1]["moved"] < len(before) - IN_FLIGHT

    code, lines, err = await place.migrate(url)  # James has gone: his broker hands them out again

    assert (code, lines[-1]["of_james"], lines[-1]["hidden"]) == (0, 0, 0), (lines, err)
    assert await place.moved(url) == before
    async with place.james() as james:
        assert (await james.ask("list"))["answer"] == []
        await james.ask("drop")


async def test_killed_anywhere_while_james_consumes(place: Place, url: str) -> None:
    """Each mail is ended by James, or waits at postroad: once, by exactly one of both."""
    count, chance = 600, random.Random(39)
    async with place.james(prefetch=5) as james:
        await james.ask("register")
        await james.ask("fill", 0, count, 2_000)
        await james.ask("consume", 1000)
        for _ in range(KILLS):
            code, _, err = await place.migrate(url, killed_at=chance.randrange(2, 60))
            assert code == KILLED, err
        for _ in range(10):
            code, lines, err = await place.migrate(url)
            assert code == 0, (lines, err)
            if not lines[-1]["of_james"]:
                break
            await asyncio.sleep(1)
        by_james = (await james.ask("consumed"))["answer"]
        await james.ask("stop")
        await james.ask("drop")
    by_us = await names_in(place, url)

    assert by_james
    assert by_us
    assert Counter(by_james) + Counter(by_us) == Counter(f"mail-{each}" for each in range(count))


async def test_two_migrations_at_once_move_each_mail_once(place: Place, url: str) -> None:
    async with place.james() as james:
        await james.ask("register")
        await james.ask("fill", 0, 200, 2_000)
        before = listed(await james.ask("list"))
        found = await asyncio.gather(place.migrate(url), place.migrate(url))
        await james.ask("drop")

    assert await place.moved(url) == before
    assert sum(lines[-1]["moved"] for _, lines, _ in found) == 200
    code, lines, _ = await place.migrate(url)
    assert (code, lines[-1]["moved"]) == (0, 0)


async def test_copy_changes_nothing_at_james(place: Place, url: str) -> None:
    async with place.james(JAMES_DEDUPLICATION="true") as james:
        await james.ask("register")
        await james.ask("fill", 0, 30, 5_000)
        before = listed(await james.ask("list"))
        for _ in range(2):
            code, lines, _ = await place.migrate(url, "--leave")
            assert (code, lines[-1]["moved"]) == (0, 30)

        assert await place.moved(url) == before
        assert listed(await james.ask("list")) == before
        taken = (await james.ask("take", 30, "SUCCESS"))["answer"]
        assert sorted(taken) == [each["name"] for each in before]
        await james.ask("drop")
