"""Starts Spark on Java 17: in this process, or with executors elsewhere. Source: ADR 0047, 0075."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from postroad.pipeline.java.java import java_home

_LOGGING = files("postroad.pipeline.java").joinpath("log4j2.properties")

BRIEF = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of Java for what is done in seconds: the second compiler takes more than it saves, and no
threads collect garbage beside the work."""

SETTINGS: Mapping[str, str] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Each task of a shuffle writes so many files; Spark joins small ones when it reads them.
    "spark.sql.shuffle.partitions": "32",
    # How long a result waits for Python to fetch it: 15 s are too short on a busy machine.
    "spark.python.authenticate.socketTimeout": "300s",
    # Lower case by the rules of no country, as Python's.
    "spark.driver.extraJavaOptions": "-Duser.timezone=UTC -Duser.language=en"
    f" -Dlog4j2.configurationFile={_LOGGING}",
}
"""Spark in one process: it listens on loopback only, and has one idea of time and text."""


def open_session(
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
    jars: Iterable[Path] = (),
) -> SparkSession:
    """Start Spark, or return the session of this process. Executors elsewhere have the jars in
    images of their own. Raises: NotInstalled."""
    os.environ["JAVA_HOME"] = str(java_home(os.environ.get("JAVA_HOME")))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else executors take PATH's python3
    builder = SparkSession.builder.master(master).appName("postroad")
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", " ".join(BRIEF))
    wanted = {**SETTINGS, **(settings or {})}
    # Not `spark.jars`: of these, executors fetch a copy each, and so does Spark in one process.
    wanted["spark.driver.extraClassPath"] = ":".join(map(str, jars))
    for name, value in wanted.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def close_session(session: SparkSession) -> None:
    """End Spark. Where Java has ended by itself, the job has failed for that."""
    with suppress(Py4JError, ConnectionError):
        session.stop()


def own_jars() -> Path:
    """Return the folder of the jars that PySpark brings."""
    return Path(pyspark.__file__).parent / "jars"
