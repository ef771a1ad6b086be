"""Finds Java 17, which PySpark does not bring.

Java 24 and later have no security manager, which the Hadoop of this Spark asks for.
"""

from __future__ import annotations

import re
from pathlib import Path

from postroad.errors import NotInstalled

_PACKAGED = "/usr/lib/jvm"
_HINT = "install a JRE 17 (Debian: openjdk-17-jre-headless), or set JAVA_HOME to one"


def java_home(given: str | None, packaged: str = _PACKAGED) -> Path:
    """Return the home of Java 17: the given one, else one that a package installed. Raises:
    NotInstalled."""
    homes = [Path(given)] if given else sorted(Path(packaged).glob("*17*"))
    for home in homes:
        if _version(home) == "17" and (home / "bin/java").exists():
            return home
    place = f"JAVA_HOME ({given})" if given else packaged
    raise NotInstalled(f"Spark needs Java 17, which {place} does not have", hint=_HINT)


def _version(home: Path) -> str | None:
    try:
        release = (home / "release").read_text()
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
    return found[1] if found else None
