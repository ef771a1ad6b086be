"""Mail that a James left moves, from what a real one stored; what cannot be moved or read is named.

His jars are not needed: `support.james_recording` writes what they had stored."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

import servers
from postroad.adapters.cassandra.session import Statement
from postroad.errors import BlobMissing
from postroad.james.blobs import JamesBlobs
from postroad.james.migration import WORK_QUEUE
from postroad.james.properties import Configuration
from support.james import AWAY, Place, fresh_place
from support.james_recording import SCHEMA, WrittenQueue, a_broker, written
from support.repository import ROOT

pytestmark = [pytest.mark.needs("rabbitmq", "cassandra", "s3"), pytest.mark.timeout(600)]

GHOST = "no message of it is in his work queue"


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with fresh_place(tmp_path) as found:
        yield found


@pytest.fixture
async def james(place: Place) -> AsyncIterator[WrittenQueue]:
    """Twelve mails at James."""
    async with written(place, 12) as found:
        yield found


@pytest.fixture
async def url(place: Place, tmp_path: Path) -> str:
    url = f"embedded://{tmp_path / 'store'}"
    await place.target(url)
    return url


async def test_recorded_mails_move_whole_and_once(james: WrittenQueue, url: str) -> None:
    await james.mark("mail-4")
    expected = [each for each in james.mails if each["name"] != "mail-4"]

    code, lines, err = await james.place.migrate(url)

    assert (code, lines[-1]["moved"], lines[-1]["dropped"]) == (0, 11, 1), err
    assert await james.place.moved(url) == expected
    code, lines, err = await james.place.migrate(url)
    assert (code, lines[-1]["moved"], lines[-1]["dropped"]) == (0, 0, 0), err


def reasons_in(lines: list[dict[str, str]]) -> dict[str, str]:
    """Return the reason by enqueue id of what stays."""
    return {each["enqueue_id"]: each["reason"] for each in lines if "reason" in each}


async def test_hidden_rows_are_named_and_move_when_wanted(james: WrittenQueue, url: str) -> None:
    hidden = {
        await james.plant("ghost", "mail-1"): GHOST,
        # A late insert, too, comes into a slice that his browse start has passed.
        await james.plant("early", "mail-2", timerangestart="2026-11-30 01:00:00Z"): (
            "before his browse start"
        ),
        await james.plant("bucket", "mail-2", bucketid=7): (
            "in a bucket that his bucketCount no longer has"
        ),
        await james.plant("slice", "mail-2", timerangestart="2026-11-30 06:20:00Z"): (
            "in a slice that his sliceWindow does not cut"
        ),
    }

    code, lines, _ = await james.place.migrate(url, "--dry-run")
    assert code == 0
    totals = [(each["mails"], each["hidden"]) for each in lines if "slice" in each]
    assert totals == [(1, 1), (14, 1), (1, 1)]

    code, lines, err = await james.place.migrate(url)
    assert (code, lines[-1]["moved"], reasons_in(lines)) == (1, 12, hidden), err

    async with a_broker() as consumer:
        consumer.consume(WORK_QUEUE + james.place.name, 1)
        code, _, err = await james.place.migrate(url, "--hidden")
        assert (code, "stop James for hidden rows" in err) == (1, True)

    code, lines, err = await james.place.migrate(url, "--hidden")
    assert (code, lines[-1]["moved"], reasons_in(lines)) == (0, 4, {}), err
    moved = {each["name"] for each in await james.place.moved(url)}
    assert moved == {*james.rows, "ghost", "early", "bucket", "slice"}


async def test_what_cannot_be_read_is_named_and_the_others_move(
    james: WrittenQueue, url: str
) -> None:
    newer = await james.plant("newer", "mail-3")
    await james.session.run("ALTER TABLE {keyspace}.enqueuedmailsv4 ADD expiry int")
    key = ("queuename", "timerangestart", "bucketid", "enqueueid")
    row = {**{name: james.rows["mail-3"][name] for name in key}, "enqueueid": newer, "expiry": 5}
    change = Statement("INSERT INTO {keyspace}.enqueuedmailsv4 JSON ? DEFAULT UNSET")
    await james.session.execute(change, (json.dumps(row),))
    lost = james.rows["mail-5"]
    store = james.place.where.servers.blobs(james.place.where.bucket)
    await store.delete(lost["headerblobid"])
    later = str(uuid4())
    async with a_broker() as broker:
        body = json.dumps({"enqueueId": later, "expiry": 5}).encode()
        await broker.publish("", WORK_QUEUE + james.place.name, body)

    code, lines, _ = await james.place.migrate(url, "--dry-run")
    assert (code, [each["unreadable"] for each in lines if "slice" in each]) == (1, [2])

    code, lines, err = await james.place.migrate(url)
    reasons = reasons_in(lines)
    assert (code, lines[-1]["moved"]) == (1, 11), err
    assert "no blob" in reasons.pop(lost["enqueueid"])
    assert reasons.pop(newer) == GHOST
    assert "the field expiry, which postroad does not know" in reasons.pop(later)
    assert reasons == {}

    code, lines, _ = await james.place.migrate(url, "--hidden")
    assert (code, lines[-1]["moved"], len(reasons_in(lines))) == (1, 0, 3)
    assert "the column expiry, which postroad does not know" in reasons_in(lines)[newer]


async def test_dry_run_names_what_a_wrong_key_cannot_decrypt(james: WrittenQueue, url: str) -> None:
    aes = {"password": "sesame", "salt": "73616c7479", "enable": "true"}
    james.place.write(**{f"encryption_aes_{name}": value for name, value in aes.items()})

    code, lines, _ = await james.place.migrate(url, "--dry-run")

    [totals] = (each for each in lines if "slice" in each)
    assert (code, totals["unreadable"], totals["octets"]) == (1, totals["mails"], 0)
    assert all("is not encrypted as" in each for each in reasons_in(lines).values())


async def test_his_history_begins_ours_once_and_follows_no_other(james: WrittenQueue) -> None:
    await james.register(sliceWindow=1800.0, bucketCount=5)
    queue = f"distributed://test.{servers.fresh()}"
    for expected in ([("1h", 2), ("30m", 5)], []):
        code, lines, err = await james.place.run("config", "import-james", queue)
        found = [(each["sliceWindow"], each["bucketCount"]) for each in lines]
        assert (code, found) == (0, expected), err

    queue = f"distributed://test.{servers.fresh()}"
    await james.place.target(queue)  # with a configuration of its own
    code, lines, err = await james.place.run("config", "import-james", queue)
    assert (code, lines) == (1, []), err
    assert "has a configuration history of its own already" in err


WRONG_PLACES = (
    ({"cassandra_keyspace": "not_there"}, "no keyspace not_there"),
    ({"cassandra_password": "sesame"}, "stands in cassandra.properties"),
    ({"uri": "amqp://guest:sesame@127.0.0.1:1/"}, "RabbitMQ cannot be reached"),
    ({"implementation": "postgres"}, "blobs in 'postgres' cannot be read"),
    ({"objectstorage_s3_secretKey": "sesame"}, "stands in blob.properties"),
)


async def test_wrong_places_and_credentials_are_named(james: WrittenQueue, url: str) -> None:
    migrating = ("migrate", "james", james.place.name, "--queue", url)
    for changed, named in WRONG_PLACES:
        james.place.write(**changed)

        code, lines, err = await james.place.run(*migrating)

        assert code in (1, AWAY), changed
        assert (lines, named in err) == ([], True), err
        assert "sesame" not in err

    james.place.write()
    await james.session.run("DROP TABLE {keyspace}.eventstore")
    code, lines, err = await james.place.migrate(url)
    assert (code, lines, "lacks eventstore of James" in err) == (1, [], True), err


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
        for table in SCHEMA:
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
        with pytest.raises(BlobMissing, match="part 0 of its header"):
            await blobs.content("0", "5")
        with pytest.raises(BlobMissing, match="no blob other"):
            await blobs.content("5", "other")


SAVE_BLOB = Statement("INSERT INTO {keyspace}.blobs (id, position) VALUES (?, ?)")
SAVE_PART = Statement("INSERT INTO {keyspace}.blobparts (id, chunknumber, data) VALUES (?, ?, ?)")
