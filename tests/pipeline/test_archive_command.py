"""`postroad pipeline archive` over real servers: the lake in the queue's bucket has what the view
had, as the domain decides about it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from pyspark.sql import SparkSession

from postroad import AttemptOutcomes, Outcome, Selector, open_queue
from postroad.bootstrap.cluster import s3_access
from postroad.controller.mailqueue.children import summary
from postroad.distributed.entries.live_slices import with_marks
from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.queues.entries import Entry, Partition, UndecodableRow, slice_of
from postroad.domain.queues.names import QueueName
from postroad.pipeline.spark.lake.catalogs import LakePlace
from postroad.pipeline.spark.lake.lake import LakeTables, open_lake
from postroad.pipeline.spark.spark_conf import lake_folder, s3_settings
from postroad.ports.servers import Servers
from postroad.ports.view import View
from postroad.settings import from_environment
from support.catalog_server import login_of, metadata_in, postgresql
from support.certificates import Certificates
from support.entry_lines import EntryLine, entry_line
from support.lake_frames import in_order, lines_in
from support.stored_queue import close_slices, fill, name, real, url
from support.tls_lines import tls_line

__all__ = ["name", "real", "url"]

pytestmark = [
    pytest.mark.needs("java", "mvn", "rabbitmq", "cassandra", "s3"),
    pytest.mark.timeout(600),
    # PySpark leaves the socket of a result to the garbage collection.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

HOUR = timedelta(hours=1)
CATALOGS = count()
OUTCOME = Outcome(OutcomeKind.DELIVERED, "250 2.0.0 queued", "mx.example.net")


async def archive(url: str, **variables: str) -> tuple[int, str, str]:
    """Run the command; return its exit code, output and errors."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "postroad", "pipeline", "archive", "--queue", url, "--json"],
        env={**os.environ, "POSTROAD_PIPELINE_ADDRESSES": "plain", **variables},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


def id_of(row: Entry | UndecodableRow) -> UUID:
    return row.enqueue_id


async def lines_of(
    view: View, start: datetime, kept: dict[UUID, AttemptOutcomes]
) -> list[EntryLine]:
    """What the domain makes of the rows and marks of a slice."""
    lines = []
    for bucket in range(3):
        partition = Partition(start, bucket)
        async for row, mark in with_marks(view, partition, view.rows(partition), id_of):
            assert isinstance(row, Entry)
            lines.append(entry_line(row, mark, kept.get(row.enqueue_id)))
    return lines


def lake_of(spark: SparkSession, name: QueueName) -> LakeTables:
    folder = lake_folder(name.bucket("postroad-"), name)
    settings = s3_settings(s3_access(from_environment()))
    return open_lake(spark, LakePlace(folder, settings), catalog=f"stored{next(CATALOGS)}")


async def test_the_lake_has_what_the_view_had(
    spark: SparkSession, url: str, name: QueueName, real: Servers
) -> None:
    async with open_queue(url, create=True) as queue:
        kept = await fill(queue)
        view = real.views().view(str(name))
        now = (await view.server_times()).times[0].time
        starts = [slice_of(now - HOUR, HOUR), slice_of(now, HOUR)]  # the hour may have ended since
        lines = {start: await lines_of(view, start, kept) for start in starts}
        starts = [start for start in starts if lines[start]]
        rows = {start: Counter(line.bucket_id for line in lines[start]) for start in starts}
        await close_slices(view, rows)
        expected = [line for start in starts for line in lines[start]]
        assert {line.state for line in expected} == {
            *("delivered", "removed", "rejected", "replaced", "waiting"),
        }

        code, output, errors = await archive(url)

        assert code == 0, errors
        assert json.loads(output)["rows"] == len(expected)
        lake = lake_of(spark, name)
        assert lines_in(lake.entries()) == in_order(expected)
        assert (await view.limits()).archived_through == starts[0]

        await queue.remove(Selector.all())
        for start in starts:
            await view.mark_drained(start)
        after = starts[-1] + HOUR
        await view.advance(browse_start=after)
        expected = [line for start in starts for line in await lines_of(view, start, kept)]

    code, output, errors = await archive(url)

    assert code == 0, errors
    assert all(line.is_final for line in expected)
    assert lines_in(lake.entries()) == in_order(expected)
    assert all(each.is_final for each in lake.slices(starts[0]).values())
    assert lake.gaps() == ()
    assert lake.run_lines().count() == 2
    assert (await view.limits()).archived_through == after


async def test_the_servers_may_offer_tls_only(url: str, real: Servers, tmp_path: Path) -> None:
    async with open_queue(url, create=True):
        pass
    made, settings = Certificates.make(tmp_path), from_environment()
    context, store = made.server_context(), urlsplit(str(settings.s3.endpoint)).port
    async with (
        tls_line(settings.cassandra.port, context) as cassandra,
        tls_line(store or 80, context) as s3,
    ):
        code, output, errors = await archive(
            url,
            POSTROAD_CASSANDRA_TLS="verify-ca",
            POSTROAD_CASSANDRA_PORT=str(cassandra.port),
            POSTROAD_S3_ENDPOINT=f"https://localhost:{s3.port}",
            POSTROAD_CA_FILE=str(made.authority),
            POSTROAD_PIPELINE_SUMMARY_FILE=str(tmp_path / "summary"),
        )

    assert code == 0, errors
    assert json.loads(output)["asked"] == 0
    assert summary((tmp_path / "summary").read_text())["result"].startswith("0 asked")
    assert cassandra.connections > 0
    assert s3.connections > 0


async def test_a_queue_that_was_never_created_is_named(url: str) -> None:
    assert_one_line(await archive(url), 1, "was never created")


async def test_while_the_store_is_away_the_command_is_to_be_repeated(
    url: str, real: Servers
) -> None:
    async with open_queue(url, create=True):
        pass

    found = await archive(url, POSTROAD_S3_ENDPOINT="http://127.0.0.1:1")

    assert_one_line(found, 75, "object store")


def assert_one_line(found: tuple[int, str, str], code: int, text: str) -> None:
    assert found[:2] == (code, ""), found
    (line,) = found[2].splitlines()
    assert text in line


@pytest.mark.needs("pg_ctlcluster")
async def test_a_database_names_the_tables_in_the_bucket(
    url: str, name: QueueName, real: Servers, tmp_path: Path
) -> None:
    async with open_queue(url, create=True) as queue:
        view = real.views().view(str(name))
        start = slice_of((await view.server_times()).times[0].time, HOUR)
        lines = await lines_of(view, start, await fill(queue))
        await close_slices(view, {start: Counter(line.bucket_id for line in lines)})
    with postgresql() as port:
        uri = f"jdbc:postgresql://127.0.0.1:{port}/postgres"
        catalog = {"type": "JDBC", "uri": uri, "login": {"folder": str(login_of(tmp_path))}}
        code, output, errors = await archive(url, POSTROAD_PIPELINE_CATALOG=json.dumps(catalog))
        named = metadata_in(port, f"{str(name).replace('.', '_')}.mail_entries")

    assert code == 0, errors
    assert json.loads(output)["rows"] == len(lines) > 0
    bucket = name.bucket("postroad-")
    assert named.startswith(f"s3a://{bucket}/")
    keys = [each async for each in real.blobs(bucket).keys("")]
    assert named.removeprefix(f"s3a://{bucket}/") in keys
