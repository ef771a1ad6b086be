"""Lakes whose tables a catalog of Iceberg names, a REST server or a database: queues share it
without meeting, and other programs find the tables there."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import StaticTable

from pipeline.conftest import RunJob
from postroad import Mail, open_queue
from postroad.embedded.log.layout import Layout
from postroad.testing import take
from support.catalog_server import login_of, metadata_in, postgresql, rest_catalog

pytestmark = [
    pytest.mark.needs("java", "mvn"),
    pytest.mark.timeout(600),
    # PySpark and pyiceberg leave sockets and files to the garbage collection.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

FIELDS = ("state", "recipients")
Metadata = Callable[[str], str]
"""The file of metadata of a table, as another program finds it."""


class Catalog:
    """A catalog that is there, and what another program finds in it."""

    def __init__(self, kind: str, uri: str, metadata: Metadata, login: Path | None = None) -> None:
        self.kind, self.uri, self.metadata, self.login = kind, uri, metadata, login

    def document(self, namespace: str) -> str:
        fields: dict[str, object] = {"type": self.kind, "uri": self.uri, "namespace": namespace}
        if self.login is not None:
            fields["login"] = {"folder": str(self.login)}
        return json.dumps(fields)

    def states(self, namespace: str) -> list[str]:
        table = StaticTable.from_metadata(self.metadata(f"{namespace}.mail_entries"))
        return sorted(table.scan(selected_fields=FIELDS).to_arrow()["state"].to_pylist())


POSTGRESQL = pytest.param("PostgreSQL", marks=pytest.mark.needs("pg_ctlcluster"))
TABLE = (
    "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = {} AND table_name = {}"
)


@pytest.fixture(params=["REST", "SQLite", POSTGRESQL])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    if request.param == "PostgreSQL":
        with postgresql() as port:
            uri, login = f"jdbc:postgresql://127.0.0.1:{port}/postgres", login_of(tmp_path)
            yield Catalog("JDBC", uri, partial(metadata_in, port), login)
        return
    if request.param == "SQLite":
        database = tmp_path / "catalog.db"

        def metadata(table: str) -> str:
            query = "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = ?"
            namespace, name = table.split(".")
            with sqlite3.connect(database) as opened:
                found = opened.execute(f"{query} AND table_name = ?", (namespace, name))
                return str(found.fetchone()[0])

        # Sessions of tests leave connections open, which would lock it.
        yield Catalog("JDBC", f"jdbc:sqlite:{database}?journal_mode=WAL", metadata)
        return
    with rest_catalog(tmp_path) as uri:

        def metadata(table: str) -> str:
            return str(RestCatalog("tests", uri=uri).load_table(table).metadata_location)

        yield Catalog("REST", uri, metadata)


@pytest.fixture
def answered(run_job: RunJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    async def answer(catalog: str, queue: str, *arguments: str) -> list[dict[str, Any]]:
        monkeypatch.setenv("POSTROAD_PIPELINE_CATALOG", catalog)
        places = ("--queue", url(tmp_path, queue), "--lake", str(tmp_path / f"lake-{queue}"))
        result = await run_job("pipeline", *arguments, *places, "--json")
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    return answer


def url(folder: Path, queue: str) -> str:
    return f"embedded://{folder}/{queue}"


async def pass_mail(folder: Path, queue: str, count: int) -> None:
    """Let mail pass, up to the checkpoint that the next opening takes."""
    checkpoint = Layout(folder / queue, folder).checkpoint
    async with open_queue(url(folder, queue), create=True) as opened:
        mails = [Mail("a@example.org", [f"{queue}@example.net"], b"x")] * count
        await opened.enqueue_all(mails)
        await take(opened)
    before = Path(checkpoint).stat().st_mtime_ns
    async with open_queue(url(folder, queue)), asyncio.timeout(60):
        while count and Path(checkpoint).stat().st_mtime_ns == before:
            await asyncio.sleep(0.01)


async def test_queues_with_one_catalog_have_a_namespace_each(
    catalog: Catalog, answered: Any, tmp_path: Path
) -> None:
    for queue, count in {"one": 2, "two": 3}.items():
        await pass_mail(tmp_path, queue, 0)
        await answered(catalog.document(queue), queue, "archive")
        await pass_mail(tmp_path, queue, count)
        (archived,) = await answered(catalog.document(queue), queue, "archive")
        assert archived["entries"] == count
    _, line = await answered(catalog.document("one"), "one", "traffic", "--by", "domain")
    assert (line["accepted"], line["delivered"]) == (2, 2)
    assert catalog.states("one") == ["delivered"] * 2
    assert catalog.states("two") == ["delivered"] * 3
    assert not (tmp_path / "lake-one/lake").exists()

    (forgotten,) = await answered(catalog.document("two"), "two", "forget", "two@example.net")

    assert forgotten["entries"] == 3
    assert catalog.states("two") == ["delivered"] * 3


async def test_a_namespace_of_another_queue_is_refused(
    catalog: Catalog, answered: Any, run_job: RunJob, tmp_path: Path
) -> None:
    await pass_mail(tmp_path, "one", 1)
    await pass_mail(tmp_path, "two", 1)
    await answered(catalog.document("shared"), "one", "archive")
    had = catalog.metadata("shared.mail_runs")
    others = ("--queue", url(tmp_path, "two"), "--lake", str(tmp_path / "lake-two"))

    refused = await run_job("pipeline", "archive", *others)

    assert refused.exit_code == 1
    assert f"has the lake of the queue in file:{tmp_path}/lake-one" in refused.stderr
    assert catalog.metadata("shared.mail_runs") == had


async def test_a_lake_that_changes_its_catalog_names_what_the_new_one_lacks(
    catalog: Catalog, answered: Any, tmp_path: Path
) -> None:
    await pass_mail(tmp_path, "one", 0)
    await answered("{}", "one", "archive")
    await pass_mail(tmp_path, "one", 2)
    await answered("{}", "one", "archive")
    await pass_mail(tmp_path, "one", 1)

    (archived,) = await answered(catalog.document("one"), "one", "archive")

    head, line = await answered(catalog.document("one"), "one", "traffic", "--by", "domain")
    assert head["lacking"]
    assert line["accepted"] == archived["entries"]
    _, line = await answered("{}", "one", "traffic", "--by", "domain")
    assert line["accepted"] == 2, "the former tables are as they were"
