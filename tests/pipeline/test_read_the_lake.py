"""The examples of `docs/read-the-lake.md` over a lake whose files have lines of former states."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from pipeline.lake_entries import History, delivered, frame
from postroad.domain.queues.entries import Partition, slice_of
from postroad.pipeline.spark.lake.catalogs import LakePlace
from postroad.pipeline.spark.lake.lake import LakeTables, open_lake
from support.repository import ROOT
from support.store_ledger import HOUR

pytestmark = [
    pytest.mark.needs("java", "mvn"),
    pytest.mark.timeout(600),
    # PySpark and pyiceberg leave sockets and files to the garbage collection.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

PLACE = "/var/lib/postroad/lake"
WANTED = {"delivered": 3, "waiting": 2}
EXAMPLES = dict(
    re.findall(
        r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```",
        (ROOT / "docs/read-the-lake.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
)


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("read") / "lake"
    lake = open_lake(spark, LakePlace(f"file:{found}"), create=True, catalog="read")
    history = History()
    for number in range(5):
        entry = history.accept("a@a.example", "b@b.example")
        put(spark, lake, history)  # the first state: it waits
        if number < 3:
            history.end(entry, "delivered", delivered())
        history.now += HOUR
    put(spark, lake, history)
    return found


def put(spark: SparkSession, lake: LakeTables, history: History) -> None:
    lines = [
        each | {"slice_start": slice_of(each["enqueued_at"], HOUR), "bucket_id": 0}
        for each in history.entries
    ]
    lake.put_entries(frame(spark, lines), {Partition(each["slice_start"], 0) for each in lines})


def run(name: str, folder: Path, **given: Any) -> Any:
    """The value of `found` behind an example."""
    namespace = dict(given)
    exec(EXAMPLES[name].replace(PLACE, str(folder)), namespace)
    return namespace["found"]


def test_there_is_an_example_for_each_library() -> None:
    assert sorted(EXAMPLES) == ["DuckDB", "Polars", "Spark SQL", "pandas"]
    assert all(PLACE in each for each in EXAMPLES.values())


def test_the_files_alone_have_lines_of_former_states(folder: Path) -> None:
    files = f"{folder}/lake/entries/data/**/*.parquet"
    (found,) = duckdb.sql(f"SELECT count(*) FROM read_parquet('{files}')").fetchall()

    assert found[0] > sum(WANTED.values())


def test_pandas_reads_the_present_state(folder: Path) -> None:
    assert run("pandas", folder).to_dict() == WANTED


def test_duckdb_reads_the_present_state(folder: Path) -> None:
    assert dict(run("DuckDB", folder).fetchall()) == WANTED


def test_polars_reads_the_present_state(folder: Path) -> None:
    assert dict(run("Polars", folder).rows()) == WANTED


def test_spark_sql_reads_the_present_state(folder: Path, spark: SparkSession) -> None:
    found = run("Spark SQL", folder, spark=spark.newSession())

    assert Counter(dict(map(tuple, found.collect()))) == WANTED
