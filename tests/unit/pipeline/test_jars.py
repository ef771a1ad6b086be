"""Jars are the pinned ones, or the error names what to do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from postroad.errors import NotInstalled
from postroad.pipeline.java.jars import Jar, default_folder, fetch, jars_in, pinned

CONTENT = b"a jar"
JAR = Jar("org.example", "one", "1.0", hashlib.sha256(CONTENT).hexdigest())
OTHER = Jar("org.example", "two", "2.0", hashlib.sha256(CONTENT).hexdigest())

MAVEN = """#!/bin/sh
for each in "$@"; do case "$each" in
    -DoutputDirectory=*) folder="${each#*=}";;
    -f) ;;
    *pom.xml) pom="$each";;
esac; done
echo run >>"$RECORD"
sed 's/<dependency>/\\n&/g' "$pom" | sed -n \\
    's|.*<artifactId>\\([a-z]*\\)</artifactId><version>\\([0-9.]*\\)<.*|\\1-\\2.jar|p' |
while read -r name; do printf '%s' "$CONTENT" >"$folder/$name"; done
echo "[ERROR] no such host"
exit "$STATUS"
"""

FakeMaven = Callable[..., Path]


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMaven:
    """Puts a Maven onto the path that gives every jar the same content; returns its record."""

    def install(content: bytes = CONTENT, status: int = 0) -> Path:
        program = tmp_path / "bin/mvn"
        program.parent.mkdir(exist_ok=True)
        program.write_text(MAVEN)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        monkeypatch.setenv("RECORD", str(tmp_path / "record"))
        monkeypatch.setenv("CONTENT", content.decode())
        monkeypatch.setenv("STATUS", str(status))
        return tmp_path / "record"

    return install


def test_each_pinned_jar_has_coordinates_and_a_checksum() -> None:
    jars = pinned()

    assert "iceberg-spark-runtime-3.5_2.12-1.10.0.jar" in {jar.file_name for jar in jars}
    assert len({jar.file_name for jar in jars}) == len(jars) > 10
    assert {len(jar.sha256) for jar in jars} == {64}


def test_jars_are_fetched_once(tmp_path: Path, maven: FakeMaven) -> None:
    record, folder = maven(), tmp_path / "cache/jars"

    assert fetch(folder, [JAR]) == 1
    assert fetch(folder, [JAR, OTHER]) == 1
    assert fetch(folder, [JAR, OTHER]) == 0

    assert jars_in(folder, [JAR, OTHER]) == [folder / "one-1.0.jar", folder / "two-2.0.jar"]
    assert sorted(each.name for each in folder.iterdir()) == ["one-1.0.jar", "two-2.0.jar"]
    assert record.read_text().count("run") == 2


def test_a_jar_with_another_content_is_kept_out(tmp_path: Path, maven: FakeMaven) -> None:
    maven(content=b"another jar")

    with pytest.raises(NotInstalled, match=r"one-1\.0\.jar"):
        fetch(tmp_path / "jars", [JAR])

    assert list((tmp_path / "jars").iterdir()) == []


def test_a_jar_that_changed_on_disk_is_missing(tmp_path: Path) -> None:
    (tmp_path / "one-1.0.jar").write_bytes(b"another jar")

    with pytest.raises(NotInstalled) as error:
        jars_in(tmp_path, [JAR, OTHER])
    assert "one-1.0.jar and 1 more (fetch them once with `postroad pipeline fetch`)" in (
        error.value.explain()
    )


def test_why_maven_failed_is_one_line(tmp_path: Path, maven: FakeMaven) -> None:
    maven(status=1)

    with pytest.raises(NotInstalled, match="no such host") as error:
        fetch(tmp_path / "jars", [JAR])
    assert "\n" not in error.value.explain()


def test_without_maven_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(NotInstalled, match="Maven"):
        fetch(tmp_path, [JAR])


def test_the_default_folder_is_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")

    assert default_folder() == Path("/cache/postroad/jars")
