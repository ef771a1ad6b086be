"""The stack's folders: the state of one stack, and the cache that all stacks share."""

import hashlib
import os
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
"""The package's own folder, with the files the servers are built from."""


def state_directory() -> Path:
    """Return the folder of this stack: $POSTROAD_STACK_DIR, else under the user's state folder."""
    chosen = os.environ.get("POSTROAD_STACK_DIR")
    if chosen:
        return Path(chosen).expanduser().resolve()
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home).resolve() / "postroad" / "stack"


def cache_directory() -> Path:
    """Return the folder of what is built or downloaded once."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home).resolve() / "postroad"


def log(name: str) -> Path:
    """Return the log of a build that is no entry of the cache."""
    place = cache_directory() / "logs" / f"{name}.log"
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def fingerprint(directory: Path) -> str:
    """Return eight hexadecimal digits that differ between stacks' folders."""
    return hashlib.sha256(str(directory).encode()).hexdigest()[:8]
