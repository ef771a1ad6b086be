"""Runs a job of the pipeline on Spark: what must be installed, key stores for Java, the queue, and
the summary that the operator reads in the end."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import SecretStr

from postroad.bootstrap.archiving import ArchivedQueue, is_in_a_directory, lake_of, open_archived
from postroad.bootstrap.cluster import cassandra_access, s3_access
from postroad.cli.options import DURATION
from postroad.cli.progress import progress
from postroad.delivery_settings.lake_catalog import LakeCatalog
from postroad.errors import InvalidInput, InvalidSettings, NotInstalled
from postroad.pipeline.java import executors, jars
from postroad.pipeline.java.jars import java_home
from postroad.pipeline.java.key_stores import KeyStores, key_stores
from postroad.settings import Settings, from_environment
from postroad.settings.pipeline import MIN_KEY, AddressKind

if TYPE_CHECKING:
    from postroad.pipeline.spark.jobs.tracing import ViewTables
    from postroad.pipeline.spark.lake.catalogs import LakePlace


def write_summary(
    file: Path | None,
    counts: Mapping[str, int],
    *,
    lag: timedelta | None = None,
    findings: int | None = None,
) -> None:
    """Write what a run counted, how far it was behind in the end, and how many findings it has of
    what it looked for; nothing without a file. Raises: OSError."""
    if file is not None:
        seconds = None if lag is None else max(0, int(lag.total_seconds()))
        found = {"counts": dict(counts), "lag_seconds": seconds, "findings": findings}
        file.write_text(json.dumps(found))


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
    executors.RUN_FOLDER.mkdir(mode=0o700, exist_ok=True)
    executors.SECRET_FILE.touch(mode=0o600)
    executors.SECRET_FILE.write_text(executors.run_secret(logins, _required(settings, "pod_name")))
    return KeyStores(executors.RUN_FOLDER)


@asynccontextmanager
async def spark_session(
    settings: Settings, stores: KeyStores, jars: Sequence[Path], master: str, *, brief: bool = False
) -> AsyncIterator[Any]:
    """Start Spark, and end it. `brief`: a job of seconds. Raises: NotInstalled, InvalidSettings,
    TlsRefused."""
    from postroad.pipeline.spark.jobs.archiving import SESSION
    from postroad.pipeline.spark.session import BRIEF, close_session, open_session
    from postroad.pipeline.spark.spark_conf import java_settings

    java = java_settings(s3_access(settings), stores, BRIEF if brief else ())
    started = {**SESSION, **java, **_of_executors(settings)}
    # Spark shows the tasks of what takes it longer.
    started["spark.ui.showConsoleProgress"] = str(sys.stderr.isatty()).lower()
    with progress("starting Spark"):
        session = await asyncio.to_thread(open_session, master, started, jars)
    try:
        yield session
    finally:
        close_session(session)


def _of_executors(settings: Settings) -> Mapping[str, str]:
    file = settings.pipeline.executors_file
    if file is None:
        return {}
    pod_name, pod_ip = _required(settings, "pod_name"), _required(settings, "pod_ip")
    return executors.Executors.read(file).settings(pod_name, pod_ip)


def _required(settings: Settings, field: str) -> str:
    value: str | None = getattr(settings.pipeline, field)
    if not value:
        raise InvalidSettings(f"POSTROAD_PIPELINE_{field.upper()}: executors need it")
    return value


wait_option = click.option(
    "--wait",
    "patience",
    type=DURATION,
    default="0s",
    help="Wait for another run for so long, such as 15m: one that died keeps others away for ten "
    "minutes, but of a queue in a directory. Default: not at all.",
)


def lake_directory(url: str, folder: Path | None) -> Path | None:
    """Return the directory of the lake of a queue in a directory; None of a queue with a bucket.
    Raises: InvalidInput where it is missing, too much or in the store, InvalidQueueURL."""
    is_local = is_in_a_directory(url)
    if is_local and folder is None:
        raise InvalidInput(f"{url!r} has no bucket for its lake: name its directory with --lake")
    if not is_local and folder is not None:
        raise InvalidInput(f"--lake is for queues in a directory; that of {url!r} is in its bucket")
    return None if folder is None else lake_of(url, folder)


@dataclass(frozen=True, slots=True)
class QueueWithSpark:
    """A queue and Spark, open for one job. `configure_view` lets Spark reach the queue's view.
    Raises: InvalidSettings, CredentialsMissing, TlsRefused."""

    settings: Settings
    queue: ArchivedQueue
    session: Any
    configure_view: Callable[[], None]

    def view_tables(self) -> ViewTables:
        """Let Spark reach the queue's view, and return its tables. Raises: as
        `configure_view`."""
        from postroad.pipeline.spark.jobs.tracing import ViewTables

        self.configure_view()
        queue = self.queue
        return ViewTables(queue.view, queue.reading, queue.cassandra.keyspace, str(queue.name))


@asynccontextmanager
async def open_with_spark(
    url: str, master: str, instead: str = "use another job", *, brief: bool = False
) -> AsyncIterator[QueueWithSpark]:
    """Open a queue by its URL, and start Spark. `instead`: what serves a queue without tables;
    `brief`: for a job of seconds. Raises: NotInstalled, InvalidQueueURL, InvalidSettings,
    QueueNotFound, ServerError, TlsRefused."""
    settings = from_environment()
    files = installed(settings)
    with run_stores(settings) as stores:
        async with (
            open_archived(url, settings, instead) as queue,
            spark_session(settings, stores, files, master, brief=brief) as session,
        ):

            def configure_view() -> None:
                from postroad.pipeline.spark.spark_conf import cassandra_settings

                for name, value in cassandra_settings(queue.cassandra, stores).items():
                    session.conf.set(name, value)

            yield QueueWithSpark(settings, queue, session, configure_view)


@asynccontextmanager
async def open_spark(settings: Settings, master: str, *, brief: bool = False) -> AsyncIterator[Any]:
    """Start Spark for a queue without servers; `brief`: for seconds. Raises: NotInstalled."""
    files = installed(settings)
    with run_stores(settings) as stores:
        async with spark_session(settings, stores, files, master, brief=brief) as session:
            yield session


def place_of(queue: ArchivedQueue, catalog: LakeCatalog) -> LakePlace:
    """Return where the lake of a queue with a bucket is. Raises: CredentialsMissing."""
    from postroad.pipeline.spark.lake.catalogs import lake_place
    from postroad.pipeline.spark.spark_conf import lake_folder, s3_settings

    folder = lake_folder(queue.bucket, queue.name)
    return lake_place(folder, s3_settings(queue.s3), catalog, str(queue.name))


def installed(settings: Settings) -> list[Path]:
    """Return the jars. Raises: NotInstalled without them, PySpark or Java."""
    if find_spec("pyspark") is None:
        raise NotInstalled.lacking("pyspark")
    java_home(os.environ.get("JAVA_HOME"))
    driver = settings.pipeline.catalog_driver
    if driver is not None and not driver.is_file():
        raise NotInstalled(f"POSTROAD_PIPELINE_CATALOG_DRIVER: there is no file {driver}")
    return [*jars.jars_in(jars_folder(settings)), *([] if driver is None else [driver])]


def jars_folder(settings: Settings) -> Path:
    return settings.pipeline.jars or jars.default_folder()


def address_key(settings: Settings) -> bytes:
    """Return the key of hashed addresses; empty: there is none. Raises: InvalidSettings where
    addresses are to be hashed without one."""
    key = settings.pipeline.address_key or _key_in(settings.pipeline.address_key_file)
    if key is None and settings.pipeline.addresses is AddressKind.HASHED:
        raise InvalidSettings(
            "POSTROAD_PIPELINE_ADDRESS_KEY: hashes of addresses need a key",
            hint="set one and keep it, or set POSTROAD_PIPELINE_ADDRESSES to plain or none",
        )
    return b"" if key is None else key.get_secret_value().encode()


def _key_in(file: Path | None) -> SecretStr | None:
    if file is None:
        return None
    try:
        key = file.read_text().strip("\r\n")
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"POSTROAD_PIPELINE_ADDRESS_KEY_FILE: {error}") from error
    if len(key) < MIN_KEY:
        raise InvalidSettings(f"{file}: a key of addresses has at least {MIN_KEY} characters")
    return SecretStr(key)


@click.command(hidden=True)
def executor() -> None:
    """Become an executor of the driver that made this pod."""
    from postroad.pipeline.spark.session import own_jars
    from postroad.pipeline.spark.spark_conf import cassandra_settings, trust_options

    settings = from_environment()
    stores = stores_of_a_pod(settings)
    cassandra_settings(cassandra_access(settings), stores)  # for the stores that the driver names
    folder = settings.pipeline.jars or jars.default_folder()
    java = java_home(os.environ.get("JAVA_HOME")) / "bin/java"
    command = executors.java_command(os.environ, java, f"{own_jars()}/*:{folder}/*")
    command[1:1] = trust_options(s3_access(settings), stores)
    os.execv(command[0], command)  # noqa: S606 - no shell: a program of the image
