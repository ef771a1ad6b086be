"""Java 17 is found where it is installed, and its absence is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroad.errors import NotInstalled
from postroad.pipeline.java.jars import java_home


def install(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin/java").touch()
    (home / "release").write_text(f'IMPLEMENTOR="Debian"\nJAVA_VERSION="{version}"\n')
    return home


def test_the_package_of_java_17_is_found_beside_others(tmp_path: Path) -> None:
    install(tmp_path / "temurin-25-jdk-amd64", "25.0.1")
    (tmp_path / "openjdk-17").mkdir()  # what only has the sources
    home = install(tmp_path / "openjdk-17-jdk", "17.0.15")

    assert java_home(None, str(tmp_path)) == home


def test_a_given_home_is_used_only_if_it_is_java_17(tmp_path: Path) -> None:
    home = install(tmp_path / "any", "17.0.1")
    newer = install(tmp_path / "java-17-in-name", "25")

    assert java_home(str(home)) == home
    with pytest.raises(NotInstalled, match="JAVA_HOME") as error:
        java_home(str(newer))
    assert "\n" not in error.value.explain()


def test_without_java_17_the_error_names_its_package(tmp_path: Path) -> None:
    with pytest.raises(NotInstalled) as error:
        java_home(None, str(tmp_path))

    assert "openjdk-17-jre-headless" in error.value.explain()
