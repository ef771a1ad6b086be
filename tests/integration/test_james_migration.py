"""Mail that James' own jars queued moves to postroad whole, once, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

import servers
from bench.bare_clients import BareRabbitMQ
from postroad import open_queue
from postroad.adapters.cassandra.session import Session, Statement
from postroad.adapters.rabbitmq.connection import parameters_of
from postroad.errors import BlobMissing
from postroad.james.blobs import JamesBlobs
from postroad.james.properties import Configuration
from support.james import KILLED, Place, fresh_place, listed
from support.repository import ROOT

pytestmark = [
    pytest.mark.needs("james", "rabbitmq", "cassandra", "s3", "java", "mvn"),
    pytest.mark.timeout(900),
]

MAILS, MAX_BODY = 60, 30_000
KILLS = 20


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
    removed = {f"mail-{each}" for each in range(2 * MAILS) if each % 7 == 3 and each % 5}
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
LARGE = 10_000_000
IN_FLIGHT = 20


@pytest.mark.timeout(1800)
async def test_many_mails_while_james_has_some_in_flight(place: Place, url: str) -> None:
    """5 kB on the average, some of 10 MB; a changed history; removed, dequeued, and in flight."""
    half = MANY // 2
    async with place.james(JAMES_SLICE="PT1H", JAMES_BUCKETS="2") as james:
        await james.ask("register")
        await james.ask("fill", 0, half, 10_000)
    async with place.james(IN_FLIGHT, JAMES_SLICE="PT30M", JAMES_BUCKETS="5") as james:
        await james.ask("register")
        await james.ask("fill", half, half - 5, 10_000)
        await james.ask("fill", 2 * half - 5, 5, LARGE, LARGE)
        await james.ask("remove", "Sender", "sender3@example.org")
        done = (await james.ask("take", MANY // 50, "SUCCESS"))["answer"]
        started = time.monotonic()
        before = listed(await james.ask("list"))
        browsed = time.monotonic() - started
        await james.ask("consume", 3_600_000)  # he holds what his prefetch allows, and ends none
        started = time.monotonic()
        code, lines, err = await place.migrate(url)
        seconds = time.monotonic() - started
    names = {each["name"] for each in before}
    removed = {f"mail-{each}" for each in range(2 * half) if each % 7 == 3 and each % 5}
    assert names == {f"mail-{each}" for each in range(2 * half)} - removed - set(done)
    assert (code, lines[-1]["of_james"]) == (0, IN_FLIGHT), (lines[-1], err)
    assert lines[-1]["moved"] == len(before) - IN_FLIGHT
    print(f"{lines[-1]['moved']} mails in {seconds:.1f} s; James' browse: {browsed:.1f} s")

    code, lines, err = await place.migrate(url)  # James has gone: his broker hands them out again

    assert (code, lines[-1]["moved"], lines[-1]["of_james"]) == (0, IN_FLIGHT, 0), (lines, err)
    assert await place.moved(url) == before
    async with place.james() as james:
        assert (await james.ask("list"))["answer"] == []
        await james.ask("drop")


async def test_killed_anywhere_while_james_consumes(place: Place, url: str) -> None:
    """Each mail is ended by James, or waits at postroad: once, by exactly one of both."""
    count, chance = 400, random.Random(39)
    async with place.james(prefetch=5) as james:
        await james.ask("register")
        await james.ask("fill", 0, count, 2_000)
        await james.ask("consume", 600)
        killed = 0
        while killed < KILLS:
            code, _, err = await place.migrate(url, killed_at=chance.randrange(2, 60))
            if code != KILLED:
                assert code in (0, 1), err
                break
            killed += 1
        for _ in range(5):
            code, lines, err = await place.migrate(url)
            assert code == 0, (lines, err)
            if not lines[-1]["of_james"]:
                break
            await asyncio.sleep(1)
        by_james = (await james.ask("consumed"))["answer"]
        await james.ask("stop")
        await james.ask("drop")
    by_us = await names_in(place, url)

    assert killed >= KILLS // 2
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


COPY = Statement(
    "INSERT INTO {keyspace}.enqueuedmailsv4 (queuename, timerangestart, bucketid, enqueueid,"
    " enqueuedtime, name, headerblobid, bodyblobid, recipients, attributes)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


async def plant(
    session: Session, like: dict[str, Any], name: str, ago: timedelta = timedelta()
) -> UUID:
    """Write a row as that of another mail, which has no message, into the slice of a time."""
    enqueue_id = uuid4()
    begun = like["timerangestart"] - ago
    place = (like["queuename"], begun, like["bucketid"], enqueue_id, begun, name)
    kept = (like["headerblobid"], like["bodyblobid"], like["recipients"], like["attributes"])
    await session.execute(COPY, (*place, *kept))
    return enqueue_id


async def test_what_cannot_be_moved_is_named_and_the_others_move(
    place: Place, tmp_path: Path
) -> None:
    url = f"embedded://{tmp_path / 'store'}"
    await place.target(url)
    store = place.where.servers.blobs(place.where.bucket)
    async with place.james() as james, place.session() as session:
        await james.ask("register")
        await james.ask("fill", 0, 12, 2_000)
        rows = await session.run("SELECT * FROM {keyspace}.enqueuedmailsv4")
        by_name = {row["name"]: dict(row) for row in rows}
        ghost = await plant(session, by_name["mail-1"], "ghost")
        early = await plant(session, by_name["mail-2"], "early", timedelta(hours=5))
        newer = await plant(session, by_name["mail-3"], "newer")
        await session.run("ALTER TABLE {keyspace}.enqueuedmailsv4 ADD expiry int")
        key = "queuename = ? AND timerangestart = ? AND bucketid = ? AND enqueueid = ?"
        change = Statement(f"UPDATE {{keyspace}}.enqueuedmailsv4 SET expiry = 5 WHERE {key}")
        like = by_name["mail-3"]
        its_place = (like["queuename"], like["timerangestart"], like["bucketid"], newer)
        await session.execute(change, its_place)
        await store.delete(by_name["mail-5"]["headerblobid"])
        broker = BareRabbitMQ(parameters_of(servers.rabbitmq(), "test"))
        await broker.ready()
        body = json.dumps({"enqueueId": str(uuid4()), "expiry": 5}).encode()
        await broker.publish("", f"JamesMailQueue-workqueue-{place.name}", body)
        await broker.close()

        code, lines, _ = await place.migrate(url, "--dry-run")
        assert code == 1
        slices = [each for each in lines if "slice" in each]
        assert [each["mails"] for each in slices] == [1, 14]
        assert [each["hidden"] for each in slices] == [1, 0]
        assert [each["unreadable"] for each in slices] == [0, 2]

        code, lines, err = await place.migrate(url)
        reasons = {each["enqueue_id"]: each["reason"] for each in lines if "reason" in each}
        assert (code, lines[-1]["moved"]) == (1, 11), err
        assert "no blob" in reasons.pop(str(by_name["mail-5"]["enqueueid"]))
        assert reasons.pop(str(early)) == "before his browse start"
        assert "message" in reasons.pop(str(ghost))
        assert "message" in reasons.pop(str(newer))
        assert "the field expiry, which postroad does not know" in reasons.popitem()[1]
        assert reasons == {}

        code, lines, _ = await place.migrate(url, "--hidden")
        reasons = {each["enqueue_id"]: each["reason"] for each in lines if "reason" in each}
        assert (code, lines[-1]["moved"], len(reasons)) == (1, 2, 3)
        assert "the column expiry, which postroad does not know" in reasons[str(newer)]
        moved = set(await names_in(place, url))
        assert moved == {f"mail-{each}" for each in range(12) if each != 5} | {"ghost", "early"}

        # The messages that could not be moved wait for James again.
        await james.ask("consume", 0)
        code, _, err = await place.migrate(url, "--hidden")
        assert code == 1
        assert "stop James for hidden rows" in err
        await james.ask("stop")
        await james.ask("drop")


PLACE = "queuename text, timerangestart timestamp, bucketid int"
TABLES = [
    f"CREATE TABLE {{keyspace}}.{each}"
    for each in (
        f"enqueuedmailsv4 ({PLACE}, PRIMARY KEY (queuename, timerangestart, bucketid))",
        "deletedmailsv2 (queuename text, enqueueid uuid, PRIMARY KEY ((queuename, enqueueid)))",
        "browsestart (queuename text PRIMARY KEY, browsestart timestamp)",
        "eventstore (aggregateid text, eventid int, event text, PRIMARY KEY (aggregateid))",
        "blobs (id text PRIMARY KEY, position int)",
        "blobparts (id text, chunknumber int, data blob, PRIMARY KEY (id, chunknumber))",
    )
]
"""As much of his tables as is asked for before rows are read; those of blobs whole."""


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"cassandra_keyspace": "not_there"}, "no keyspace not_there"),
        ({"cassandra_password": "sesame"}, "stands in cassandra.properties"),
        ({"uri": "amqp://guest:sesame@127.0.0.1:1/"}, "RabbitMQ cannot be reached"),
        ({"implementation": "postgres"}, "blobs in 'postgres' cannot be read"),
    ],
)
async def test_wrong_places_are_named(
    place: Place, changed: dict[str, str], named: str, tmp_path: Path
) -> None:
    url = f"embedded://{tmp_path / 'store'}"
    await place.target(url)
    async with place.session() as session:
        for table in TABLES:
            await session.run(table)
    place.write(**changed)

    code, lines, err = await place.migrate(url)

    assert code in (1, 75)
    assert (lines, named in err) == ([], True), err
    assert "sesame" not in err


async def test_encrypted_blobs_are_read_from_cassandra(place: Place) -> None:
    """Blobs that Tink encrypted, in the chunks in which James stores them."""
    text = (ROOT / "tests/unit/james/tink-1.9.0.txt").read_text()
    stored = {name: base64.b64decode(each) for name, each in map(str.split, text.splitlines())}
    place.write(
        implementation="cassandra",
        encryption_aes_enable="true",
        encryption_aes_password="pässword",
        encryption_aes_salt="73616c7479",
    )
    async with place.session() as session:
        for table in TABLES:
            await session.run(table)
        for name, blob in stored.items():
            chunks = [blob[at : at + 1024] for at in range(0, len(blob), 1024)]
            await session.execute(SAVE_BLOB, (name, len(chunks)))
            for number, chunk in enumerate(chunks[: -1 if name == "0" else None]):
                await session.execute(SAVE_PART, (name, number, chunk))
        blobs = JamesBlobs(Configuration(place.folder).blobs(), session)

        assert await blobs.content("5", "4041") == bytes(range(5)) + bytes(
            each % 251 for each in range(4041)
        )
        assert await blobs.size("5", "4041") == len(stored["5"] + stored["4041"])
        with pytest.raises(BlobMissing, match="part 0 of its header"):
            await blobs.content("0", "5")
        with pytest.raises(BlobMissing, match="no blob other"):
            await blobs.content("5", "other")


SAVE_BLOB = Statement("INSERT INTO {keyspace}.blobs (id, position) VALUES (?, ?)")
SAVE_PART = Statement("INSERT INTO {keyspace}.blobparts (id, chunknumber, data) VALUES (?, ?, ?)")
