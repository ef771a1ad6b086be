"""One small Spark for all tests of the pipeline, in the process of the tests.

They run in a process of their own (`tests/run-all.sh`), since the JVM stays until its end.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from postroad.cli import main
from postroad.cli.pipeline import spark as pipeline_spark
from postroad.pipeline.java import jars
from postroad.pipeline.java.key_stores import KeyStores
from postroad.pipeline.spark.lake.lake import EXTENSIONS
from postroad.pipeline.spark.session import BRIEF, SETTINGS, open_session
from postroad.settings import Settings
from support.catalog_server import sqlite_driver


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    home, folder = tmp_path_factory.mktemp("spark"), jars.default_folder()
    jars.fetch(folder)
    options = SETTINGS["spark.driver.extraJavaOptions"]
    settings = {
        "spark.driver.extraJavaOptions": " ".join((options, *BRIEF)),
        "spark.driver.memory": "640m",
        "spark.local.dir": str(home / "local"),
        "spark.sql.extensions": EXTENSIONS,
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    }
    session = open_session("local[2]", settings, [*jars.jars_in(folder), sqlite_driver()])
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


_KEPT_ALIVE = count(3_600_000)


def own_connection() -> dict[str, str]:
    """Return a setting with which the connector opens a connection to Cassandra of its own. One
    that it has kept learns of a keyspace a second or more after another client has made it, and
    until then Spark finds no such keyspace."""
    return {"spark.cassandra.connection.keepAliveMS": str(next(_KEPT_ALIVE))}


RunJob = Callable[..., Awaitable[Result]]


@pytest.fixture
def run_job(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> RunJob:
    """Runs `postroad …` in this process and its Spark, whose catalogs are its own."""

    @asynccontextmanager
    async def session(
        settings: Settings, stores: KeyStores, files: Sequence[Path], master: str, **_: bool
    ) -> AsyncIterator[SparkSession]:
        assert files
        assert master == "local[*]"
        context = spark.sparkContext
        # What Spark's processes have, which began before the variables of this test were set.
        own = {each: os.environ[each] for each in os.environ if each.startswith("POSTROAD_")}
        monkeypatch.setattr(context, "environment", context.environment | own)
        new, sessions = spark.newSession(), spark._jvm.SparkSession
        for name, value in own_connection().items():
            new.conf.set(name, value)
        sessions.setDefaultSession(new._jsparkSession)  # what the connector's threads ask
        try:
            yield new
        finally:
            sessions.setDefaultSession(spark._jsparkSession)

    monkeypatch.setattr(pipeline_spark, "spark_session", session)
    monkeypatch.setenv("POSTROAD_PIPELINE_ADDRESSES", "plain")

    async def run(*arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, main, arguments)

    return run
