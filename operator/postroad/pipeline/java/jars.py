"""Finds Java 17 and the jars that Spark needs beside PySpark's. These are pinned by coordinates and
checksum in `jars.txt`, fetched once by Maven, never by a job. Source: ADR 0047.

Java 24 and later have no security manager, which the Hadoop of this Spark asks for."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from postroad.errors import NotInstalled

_PACKAGED = "/usr/lib/jvm"
_JAVA_HINT = "install a JRE 17 (Debian: openjdk-17-jre-headless), or set JAVA_HOME to one"


def java_home(given: str | None, packaged: str = _PACKAGED) -> Path:
    """Return the home of Java 17: the given one, else a package's. Raises: NotInstalled."""
    homes = [Path(given)] if given else sorted(Path(packaged).glob("*17*"))
    for home in homes:
        if _version(home) == "17" and (home / "bin/java").exists():
            return home
    place = f"JAVA_HOME ({given})" if given else packaged
    raise NotInstalled(f"Spark needs Java 17, which {place} does not have", hint=_JAVA_HINT)


def _version(home: Path) -> str | None:
    try:
        release = (home / "release").read_text()
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
    return found[1] if found else None


_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_HINT = "fetch them once with `postroad pipeline fetch`"


class Jar(NamedTuple):
    """A jar by its coordinates, and the checksum of its content."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    def is_in(self, folder: Path) -> bool:
        """Return whether the folder has this jar, whole."""
        try:
            with (folder / self.file_name).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
        except FileNotFoundError:
            return False


def pinned() -> tuple[Jar, ...]:
    """Return all jars. Those that PySpark brings are not among them."""
    lines = files("postroad.pipeline.java").joinpath("jars.txt").read_text().splitlines()
    return tuple(Jar(*re.split("[: ]", line)) for line in lines)


def default_folder() -> Path:
    """Return where the jars lie unless settings name another folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "postroad/jars"


def jars_in(folder: Path, jars: Iterable[Jar] | None = None) -> list[Path]:
    """Return the files of all jars. Raises: NotInstalled where one is missing or another."""
    jars = pinned() if jars is None else tuple(jars)
    missing = [jar.file_name for jar in jars if not jar.is_in(folder)]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise NotInstalled(f"{folder} does not have the jar {missing[0]}{more}", hint=_HINT)
    return [folder / jar.file_name for jar in jars]


def fetch(folder: Path, jars: Sequence[Jar] | None = None) -> int:
    """Fetch what the folder lacks; return how many jars. Each appears whole and checked, or not at
    all. Raises: NotInstalled without Maven, or when what came is not what was pinned."""
    missing = [jar for jar in (pinned() if jars is None else jars) if not jar.is_in(folder)]
    if not missing:
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        part = Path(name)
        _copy(missing, part)
        wrong = [jar.file_name for jar in missing if not jar.is_in(part)]
        if wrong:
            raise NotInstalled(
                f"the registry's {wrong[0]} is not the one that postroad was tested with",
                hint="its checksum differs from that in jars.txt",
            )
        for jar in missing:
            (part / jar.file_name).rename(folder / jar.file_name)
    return len(missing)


def _copy(jars: Iterable[Jar], folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NotInstalled(
            "Maven fetches the jars, and is missing", hint="install it (Debian: maven)"
        )
    project = folder / "pom.xml"
    project.write_text(_project(jars))
    command = [maven, "-B", "-q", "-ntp", f"{_PLUGIN}:copy-dependencies", "-f", str(project)]
    wanted = ["-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    done = subprocess.run(  # noqa: S603
        [*command, *wanted], check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if "ERROR" in line] or ["no output"]
        raise NotInstalled(f"Maven could not fetch the jars: {lines[0][:300]}", hint=_HINT)


def _project(jars: Iterable[Jar]) -> str:
    """Return a project that needs these jars and, as all are pinned, none of what they need."""
    dependencies = "".join(
        f"<dependency><groupId>{jar.group}</groupId><artifactId>{jar.artifact}</artifactId>"
        f"<version>{jar.version}</version><exclusions><exclusion><groupId>*</groupId>"
        "<artifactId>*</artifactId></exclusion></exclusions></dependency>"
        for jar in jars
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>dev.postroad</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>\n"
    )
