"""Starts Spark on Java 17, in this process or with executors elsewhere, and raises what it raises
as errors of postroad. Source: ADR 0047, 0075."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from postroad.errors import CredentialsRefused, JobFailed
from postroad.pipeline.java.jars import java_home

_REFUSED = (
    *("AuthenticationException", "UnauthorizedException", "AccessDenied"),
    *("NotAuthorizedException", "ForbiddenException", "password authentication failed"),
    *("InvalidAccessKeyId", "SignatureDoesNotMatch"),
)
"""Words that the names and texts of refusals have in them."""


@contextmanager
def translated() -> Iterator[None]:
    """Raise what Spark raises as one line. Raises: JobFailed, CredentialsRefused."""
    try:
        yield
    except Py4JJavaError as error:
        causes = _causes(error.java_exception)
        line = _line(causes[-1])
        if any(word in cause for cause in causes for word in _REFUSED):
            raise CredentialsRefused(line) from error
        raise JobFailed(line) from error
    except PySparkException as error:
        raise JobFailed(_line(str(error))) from error
    except (Py4JError, ConnectionError) as error:
        raise JobFailed(f"Java ended, as when it has too little memory: {error}") from error


def _line(text: str) -> str:
    """Return the first line of an error; of one in a Python process, what postroad raised there."""
    lines = text.strip().splitlines()
    raised = [each for each in lines if each.startswith("postroad.errors.")]
    return (raised[-1] if raised else lines[0])[:300]


def _causes(exception: object) -> list[str]:
    """Return an exception of Java and its causes as text, the first cause last."""
    found: list[str] = []
    while exception is not None and len(found) < 20:
        found.append(exception.toString())  # type: ignore[attr-defined]
        exception = exception.getCause()  # type: ignore[attr-defined]
    return found


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
    master: str = "local[*]", settings: Mapping[str, str] | None = None, jars: Iterable[Path] = ()
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


def kept(lines: DataFrame) -> DataFrame:
    """Read these lines now, and return them as they are. With executors, two of them have each
    line, so that a job goes on when one ends; when both do, Spark raises, because it may not read
    the lines again."""
    session = lines.sparkSession
    if session.sparkContext._jsc.sc().isLocal():
        return lines.localCheckpoint()
    found = lines.localCheckpoint(eager=False)
    # Spark's own method has no level: `localCheckpoint` of an RDD lets a later `persist` name it.
    rows = found._jdf.queryExecution().analyzed().rdd()
    rows.persist(session._jvm.org.apache.spark.storage.StorageLevel.MEMORY_AND_DISK_2())
    rows.count()
    return found
