"""The archive of a queue in a directory: what its store let go becomes lines of the lake, once,
wherever a run is killed; and the jobs over the lake answer from them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from crash.world import Inline
from pipeline.conftest import RunJob
from postroad.adapters.disk.files import DiskFiles
from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.mail.mail import Mail, Outcome, OutcomeKind
from postroad.domain.queues.selection import Selector
from postroad.domain.values.identifiers import EPOCH
from postroad.embedded.history import LEEWAY
from postroad.embedded.log.layout import Layout
from postroad.embedded.log.options import StoreOptions
from postroad.embedded.opening import describe, open_store
from postroad.embedded.store.archive import Archived, read_archive
from postroad.embedded.store.engine import Engine
from postroad.embedded.store.owner import OwnedQueue
from postroad.pipeline.addresses import kept_address
from postroad.pipeline.archive.archive import Run
from postroad.pipeline.archive.planning import Stretch
from postroad.pipeline.spark.jobs.store_archiving import archive_history
from postroad.pipeline.spark.jobs.tracing import TraceSelector, trace
from postroad.pipeline.spark.jobs.traffic import destinations, traffic
from postroad.pipeline.spark.lake.extent import extent_of
from postroad.pipeline.spark.lake.store_lake import StoreLake, open_store_lake
from postroad.settings.pipeline import AddressKind
from support.memory.clock import ManualClock, SeededRandomness
from support.store_ledger import KINDS, RandomHistory

pytestmark = [
    pytest.mark.needs("java", "mvn"),
    pytest.mark.timeout(600),
    # PySpark leaves the socket of a result to the garbage collection.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)
OPTIONS = StoreOptions(steps=(MINUTE,))
FOUND: dict[OutcomeKind, Outcome] = {
    OutcomeKind.DELIVERED: Outcome(OutcomeKind.DELIVERED, "250 ok", "mx.example.net"),
    OutcomeKind.DEFERRED: Outcome(OutcomeKind.DEFERRED, "450 later", "mx.example.net"),
}


class Store:
    """A store on the disk, with a clock that the test moves."""

    def __init__(self, root: Path, clock: ManualClock) -> None:
        self.root, self.clock, self.files = root, clock, DiskFiles()

    async def open(self) -> None:
        self.root.mkdir(exist_ok=True)
        self.layout, options = describe(self.files, self.root, OPTIONS, create=True)
        (self.root / "archive").mkdir(exist_ok=True)
        randomness = SeededRandomness(7)
        engine = Engine(
            *(self.files, self.layout, options, self.clock, randomness, Inline(), Inline())
        )
        self.queue = OwnedQueue("store", engine, await open_store(engine))
        await self.queue.maintenance.recovering
        self.consumer = self.queue.consumer(10)

    async def enqueue(self, name: str) -> None:
        mail = Mail("a@example.org", (f"{name}@example.net",), b"x" * 10, name=name)
        await self.queue.enqueue(mail)

    async def attempt(self, kind: OutcomeKind) -> None:
        item = await self.consumer.next()
        outcomes = AttemptOutcomes.of(dict.fromkeys(item.mail.recipients, FOUND[kind]), 0.5)
        if kind is OutcomeKind.DELIVERED:
            await item.done(outcomes)
        else:
            await item.retry(MINUTE, outcomes=outcomes)

    async def let_go(self) -> Archived:
        await self.clock.advance(2 * HOUR)
        for _ in range(2):
            await self.queue.maintenance.checkpoint()
        return self.archived()

    def archived(self) -> Archived:
        found = read_archive(self.files, Layout(self.root, self.root / "mail"))
        assert found is not None
        return found


@pytest.fixture
async def store(tmp_path: Path) -> Any:
    async with opened(Store(tmp_path / "store", ManualClock())) as found:
        yield found


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Store]:
    await store.open()
    yield store
    await store.queue.close()


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> StoreLake:
    return open_store_lake(spark.newSession(), tmp_path / "lake", create=True)


def run(lake: StoreLake, store: Store) -> Run:
    kept = kept_address(AddressKind.HASHED, b"k" * 16)
    found = archive_history(lake, store.files, store.layout, kept, store.clock, uuid4())
    assert not found.damaged
    return found.run


def states(lake: StoreLake) -> Counter[str]:
    return Counter(row["state"] for row in lake.entries().select("state").collect())


async def first_mails(store: Store) -> None:
    for number in range(3):
        await store.enqueue(f"passes{number}")
        await store.attempt(OutcomeKind.DELIVERED)
    await store.enqueue("retried")
    await store.clock.advance(SECOND)
    await store.attempt(OutcomeKind.DEFERRED)
    await store.enqueue("held")
    await store.clock.advance(SECOND)
    await store.queue.hold(Selector(name="held"))


async def last_mails(store: Store) -> None:
    await store.attempt(OutcomeKind.DELIVERED)
    await store.queue.remove(Selector(name="held"))


async def test_mails_become_lines_as_the_store_records_them(
    lake: StoreLake, store: Store, tmp_path: Path
) -> None:
    await first_mails(store)
    await store.let_go()

    first = run(lake, store)

    assert states(lake) == {"delivered": 3, "replaced": 2, "waiting": 2}
    assert store.archived().segments == []
    assert first.counts["unreadable"] == 0
    addresses = {row[0] for row in lake.entries().select("sender").collect()}
    assert all(len(each) == 32 for each in addresses)
    await last_mails(store)
    await store.let_go()

    run(lake, store)

    assert states(lake) == {"delivered": 4, "replaced": 2, "removed": 1}
    assert lake.parts().where("kind != 'segment'").count() == 0
    assert lake.gaps() == ()
    times = lake.times()
    assert times is not None
    assert (times.begun, times.through) == (EPOCH, store.clock.now() - LEEWAY)
    await store.clock.advance(HOUR)
    files = sorted((tmp_path / "lake" / "lake").rglob("*"))
    again = run(lake, store)
    assert set(again.counts.values()) == {0}
    assert sorted((tmp_path / "lake" / "lake").rglob("*")) == files, "it commits nothing"
    later = lake.times()
    assert later is not None
    assert later.through == store.clock.now() - LEEWAY


STEPS = ("put_lines", "put_parts", "put_run", "put_times")


@pytest.mark.parametrize("step", STEPS)
async def test_a_run_that_is_killed_behind_a_commit_is_repeated_to_the_same_table(
    lake: StoreLake,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    await first_mails(store)
    await store.let_go()
    run(lake, store)
    await last_mails(store)
    found = await store.let_go()

    class Killed(Exception):
        pass

    honest: Callable[..., None] = getattr(StoreLake, step)

    def killed(self: StoreLake, *arguments: Any) -> None:
        honest(self, *arguments)
        raise Killed

    monkeypatch.setattr(StoreLake, step, killed)
    with pytest.raises(Killed):
        run(lake, store)
    monkeypatch.undo()
    assert store.archived() == found, "nothing is deleted that the lake may not have"

    run(lake, store)

    assert states(lake) == {"delivered": 4, "replaced": 2, "removed": 1}
    assert lake.parts().where("kind != 'segment'").count() == 0
    assert store.archived().segments == []


async def test_a_segment_that_comes_back_undoes_no_ending(lake: StoreLake, store: Store) -> None:
    """As when a backup of the directory is restored whose files the lake has had."""
    await first_mails(store)
    found = await store.let_go()
    places = [store.root / "archive" / str(each) for each in found.segments]
    files = {each: each.read_bytes() for each in places}
    run(lake, store)
    await last_mails(store)
    await store.let_go()
    run(lake, store)
    had = states(lake)
    for each, data in files.items():
        each.write_bytes(data)

    run(lake, store)

    assert states(lake) == had == {"delivered": 4, "replaced": 2, "removed": 1}
    assert store.archived().segments == []


async def test_what_is_old_goes_from_every_file_and_is_not_read_again(
    run_job: RunJob, tmp_path: Path
) -> None:
    """Of mail that waits, the lake has parts beside its line."""
    root, folder = tmp_path / "store", tmp_path / "lake"
    before = datetime.now(UTC) - 3 * DAY

    async def count_of(*arguments: str) -> int:
        options = ("--queue", f"embedded://{root}", "--lake", str(folder), "--json")
        result = await run_job(*arguments, *options)
        assert result.exit_code == 0, result.output
        return int(json.loads(result.stdout)["entries"])

    async with opened(Store(root, ManualClock(before))) as recent:
        await first_mails(recent)
        await recent.let_go()
        assert await count_of("pipeline", "archive") == 7
        assert lines_in_files(folder, "entries") == 7
        assert lines_in_files(folder, "parts", "mail_id <> ''") > 0

        assert await count_of("pipeline", "forget", "--older-than", "1d") == 7

        assert lines_in_files(folder, "entries") == lines_in_files(folder, "slices") == 0
        assert lines_in_files(folder, "parts", "mail_id <> ''") == 0
        await last_mails(recent)
        await recent.let_go()
        assert await count_of("pipeline", "archive") == 0, "those entries were made before"


def lines_in_files(folder: Path, table: str, where: str = "true") -> int:
    """How many lines the files of a table have, those of former states too."""
    files = [str(each) for each in (folder / "lake" / table / "data").rglob("*.parquet")]
    if not files:
        return 0
    (found,) = duckdb.sql(f"SELECT count(*) FROM read_parquet({files}) WHERE {where}").fetchall()
    return int(found[0])


async def test_jobs_over_the_lake_of_a_directory(
    run_job: RunJob, store: Store, tmp_path: Path
) -> None:
    await first_mails(store)
    await store.clock.advance(2 * MINUTE)
    await last_mails(store)
    await store.let_go()
    options = ("--queue", f"embedded://{store.root}", "--lake", str(tmp_path / "lake"), "--json")
    stretch = ("--from", "2026-01-01T00:00:00Z")

    async def answered(*arguments: str) -> list[dict[str, Any]]:
        result = await run_job(*arguments, *options)
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    (archived,) = await answered("pipeline", "archive")
    assert archived["entries"] == 7
    _, line = await answered("pipeline", "traffic", "--by", "nothing", *stretch)
    assert (line["accepted"], line["delivered"], line["removed"]) == (5, 4, 1)
    _, line = await answered("pipeline", "destinations", *stretch)
    assert (line["site"], line["recovered"], line["deferred_mails"]) == ("mx.example.net", 1, 1)
    _, *lines = await answered("trace", "retried@example.net")
    assert [each["state"] for each in lines] == ["replaced", "delivered"]
    (forgotten,) = await answered("pipeline", "forget", "retried@example.net")
    assert forgotten["entries"] == 2
    _, *lines = await answered("trace", "retried@example.net")
    assert lines == []
    advised = await run_job("pipeline", "advise", *options)
    assert (advised.exit_code, "nothing to set" in advised.stderr) == (2, True)
    reported = await run_job("pipeline", "report", str(tmp_path / "report"), *options[:4], *stretch)
    assert reported.exit_code == 0, reported.output
    assert "postroad ages" in (tmp_path / "report/index.html").read_text()


async def test_answers_equal_what_callers_saw(lake: StoreLake, store: Store) -> None:
    history = RandomHistory(store.queue, store.clock, seed=3)
    for steps in (60, 60):
        for _ in range(steps):
            await history.step()
        run(lake, store)
    await store.clock.advance(2 * MINUTE)
    await store.queue.maintenance.checkpoint()
    run(lake, store)
    stretch = Stretch(store.clock.now() - 5 * DAY, store.clock.now())
    want = {cell: counts for cell, counts in history.ledger.cells.items() if +counts}

    lines = traffic(lake.entries(), stretch)

    cells = {(each.hour, each.sender_domain, each.domain, each.site): each for each in lines}
    assert {
        cell: Counter({kind: getattr(each, kind) for kind in KINDS}) for cell, each in cells.items()
    } == want
    until = stretch._replace(before=stretch.before - LEEWAY)
    assert extent_of(lake).coverage(until, None).lacking == ()
    tried: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for (_, _, to, site), counts in want.items():
        if site:
            tried[to, site].update(counts)
    found = {(each.domain, each.site): each for each in destinations(lake.entries(), stretch)}
    assert {place: each.outcomes.delivered for place, each in found.items()} == {
        place: counts["delivered"] for place, counts in tried.items()
    }
    assert {place: each.outcomes.deferred for place, each in found.items()} == {
        place: counts["deferred"] for place, counts in tried.items()
    }
    traced = defaultdict[str, list[str]](list)
    for entry in trace(lake.entries, None, stretch, TraceSelector(F.lit(True))):
        traced[entry.mail_id].append(entry.state)
    assert Counter(map(tuple, traced.values())) == Counter(history.states())
