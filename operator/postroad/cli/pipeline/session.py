"""What a job of the pipeline runs on: Spark in this process, or Spark as the driver of executors on
Kubernetes; with key stores for Java that are there before Java starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from postroad.bootstrap.cluster import s3_access
from postroad.errors import InvalidSettings
from postroad.pipeline.java.executors import RUN_FOLDER, SECRET_FILE, Executors, run_secret
from postroad.pipeline.java.key_stores import KeyStores, key_stores
from postroad.settings import Settings


@contextmanager
def run_stores(settings: Settings) -> Iterator[KeyStores]:
    """Give a run its key stores. Raises: InvalidSettings."""
    if settings.pipeline.executors_file is None:
        with key_stores() as stores:
            yield stores
    else:
        yield stores_of_a_pod(settings)


def stores_of_a_pod(settings: Settings) -> KeyStores:
    """Return the key stores of a driver's or an executor's pod, and make the secret that they
    share. Raises: InvalidSettings."""
    servers = (settings.rabbitmq, settings.cassandra, settings.s3)
    logins = [each.login_folder for each in servers if each.login_folder is not None]
    RUN_FOLDER.mkdir(mode=0o700, exist_ok=True)
    SECRET_FILE.touch(mode=0o600)
    SECRET_FILE.write_text(run_secret(logins, _required(settings, "pod_name")))
    return KeyStores(RUN_FOLDER)


@asynccontextmanager
async def spark_session(
    settings: Settings, stores: KeyStores, jars: Sequence[Path], master: str, *, brief: bool = False
) -> AsyncIterator[Any]:
    """Start Spark, and end it. `brief`: a job of seconds. Raises: NotInstalled, InvalidSettings,
    TlsRefused."""
    from postroad.pipeline.spark.jobs.archiving import SESSION
    from postroad.pipeline.spark.reading.servers import java_settings
    from postroad.pipeline.spark.session import BRIEF, close_session, open_session

    java = java_settings(s3_access(settings), stores, BRIEF if brief else ())
    started = {**SESSION, **java, **_of_executors(settings)}
    session = await asyncio.to_thread(open_session, master, started, jars)
    try:
        session.sparkContext.setLogLevel("FATAL")  # what fails is raised, in one line
        yield session
    finally:
        close_session(session)


def _of_executors(settings: Settings) -> Mapping[str, str]:
    file = settings.pipeline.executors_file
    if file is None:
        return {}
    pod_name, pod_ip = _required(settings, "pod_name"), _required(settings, "pod_ip")
    return Executors.read(file).settings(pod_name, pod_ip)


def _required(settings: Settings, field: str) -> str:
    value: str | None = getattr(settings.pipeline, field)
    if not value:
        raise InvalidSettings(f"POSTROAD_PIPELINE_{field.upper()}: executors need it")
    return value
