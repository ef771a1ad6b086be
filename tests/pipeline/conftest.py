"""One small Spark for all tests of the pipeline, in the process of the tests.

They run in a process of their own (`tests/run-all.sh`), since the JVM stays until its end.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from postroad.pipeline import jars
from postroad.pipeline.spark.lake import EXTENSIONS
from postroad.pipeline.spark.session import SETTINGS, open_session

ONE_COMPILER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Starts sooner; the tests end before the second compiler would pay."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    home, folder = tmp_path_factory.mktemp("spark"), jars.default_folder()
    jars.fetch(folder)
    options = SETTINGS["spark.driver.extraJavaOptions"]
    settings = {
        "spark.driver.extraJavaOptions": f"{options} {ONE_COMPILER}",
        "spark.driver.memory": "640m",
        "spark.local.dir": str(home / "local"),
        "spark.sql.extensions": EXTENSIONS,
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    }
    session = open_session("local[2]", settings, jars.jars_in(folder))
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
