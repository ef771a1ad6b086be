"""Jars from Maven Central, through Maven itself."""

from pathlib import Path

from stack import cache

DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"


def copy_jars(pom: Path, folder: Path, log: Path, **properties: str) -> None:
    """Put the jars that a project runs with, theirs included, into a folder. The properties are
    those that the project leaves open."""
    cache.run(
        [
            *("mvn", "-B", "-ntp", f"{DEPENDENCY_PLUGIN}:copy-dependencies", "-f", pom),
            *("-DincludeScope=runtime", f"-DoutputDirectory={folder}"),
            *(f"-D{name}={value}" for name, value in properties.items()),
        ],
        log,
        directory=folder,
    )
