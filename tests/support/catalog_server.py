"""Catalogs of Iceberg for tests: the REST server of its own tests; for JDBC, SQLite's driver, and
a PostgreSQL."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from postroad.pipeline.java.jars import default_folder, java_home
from postroad.pipeline.spark.session import own_jars
from support.ports import free_port

ICEBERG, JETTY, SQLITE = "1.10.0", "11.0.26", "3.50.3.0"
JARS = {
    "org.apache.iceberg:iceberg-core": (ICEBERG, "tests"),
    "org.apache.iceberg:iceberg-open-api": (ICEBERG, "test-fixtures"),
    "org.eclipse.jetty:jetty-servlet": (JETTY, ""),
    "org.xerial:sqlite-jdbc": (SQLITE, ""),
}
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>dev.postroad</groupId><artifactId>tests</artifactId><version>1</version>
<packaging>pom</packaging><dependencies>{}</dependencies></project>
"""


def catalog_jars() -> Path:
    """The folder of the server's jars, fetched by Maven once for all checkouts."""
    folder = default_folder().with_name(f"catalog-{ICEBERG}-{SQLITE}")
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        wanted = [
            (each, version, "") for each, (version, _) in JARS.items() if "open-api" not in each
        ]
        wanted += [(each, *of) for each, of in JARS.items() if of[1]]
        pom = Path(name) / "pom.xml"
        pom.write_text(POM.format("".join(_dependency(*each) for each in wanted)))
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
        output = f"-DoutputDirectory={name}/jars"
        subprocess.run(["mvn", "-B", "-q", "-ntp", goal, "-f", str(pom), output], check=True)
        (Path(name) / "jars").rename(folder)
    return folder


def _dependency(coordinates: str, version: str, classifier: str) -> str:
    group, artifact = coordinates.split(":")
    return (
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version><classifier>{classifier}</classifier></dependency>"
    )


def sqlite_driver() -> Path:
    return catalog_jars() / f"sqlite-jdbc-{SQLITE}.jar"


@contextmanager
def rest_catalog(folder: Path) -> Iterator[str]:
    """A server whose tables lie below a folder; gives its URL. Raises: AssertionError with what a
    server printed that ended."""
    port = free_port()
    given = {
        "CATALOG_URI": f"jdbc:sqlite:{folder}/server.db",
        "CATALOG_WAREHOUSE": f"file:{folder}/warehouse",
        "CATALOG_REST_PORT": str(port),
    }
    command = [str(java_home(os.environ.get("JAVA_HOME")) / "bin/java"), "-Xmx128m"]
    command += ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += ["-cp", f"{catalog_jars()}/*:{own_jars()}/*"]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [*command, "org.apache.iceberg.rest.RESTCatalogServer"],
            env=os.environ | given,
            stdout=log,
            stderr=log,
        )
    try:
        _wait(server, f"http://127.0.0.1:{port}/v1/config", folder / "server.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


PASSWORD = "a password of the catalog"


@contextmanager
def postgresql() -> Iterator[int]:
    """A PostgreSQL with a database `postgres`, for the user `postgres` by a password; gives its
    port. Needs root."""
    programs, port = max(Path("/usr/lib/postgresql").glob("*/bin")), free_port()
    as_user = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"]
    with tempfile.TemporaryDirectory(prefix="postgresql-") as name:
        shutil.chown(name, "postgres")
        password, data = Path(name) / "password", f"{name}/data"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        make = [f"{programs}/initdb", "-A", "scram-sha-256", f"--pwfile={password}", "-N"]
        subprocess.run([*as_user, *make, "-D", data], check=True, capture_output=True, cwd=name)
        options = f"-p {port} -k {name} -c listen_addresses=127.0.0.1 -c fsync=off"
        control = [*as_user, f"{programs}/pg_ctl", "-D", data, "-w", "-l", f"{name}/log"]
        subprocess.run([*control, "-o", options, "start"], check=True, capture_output=True)
        try:
            yield port
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], check=True, capture_output=True)


def metadata_in(port: int, table: str) -> str:
    """The file of metadata of a table, as the database of `postgresql` names it."""
    namespace, name = table.split(".")
    query = (
        f"SELECT metadata_location FROM iceberg_tables WHERE table_namespace = '{namespace}'"
        f" AND table_name = '{name}'"
    )
    found = subprocess.run(
        ["psql", "-At", "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-c", query],
        env={**os.environ, "PGPASSWORD": PASSWORD},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return found.stdout.strip()


def login_of(folder: Path) -> Path:
    """A folder with the login of `postgresql`."""
    login = folder / "login"
    login.mkdir()
    (login / "username").write_text("postgres")
    (login / "password").write_text(PASSWORD)
    return login


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(url).close()
        except OSError:
            assert server.poll() is None, log.read_text()[-2000:]
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"nothing answers at {url}")
