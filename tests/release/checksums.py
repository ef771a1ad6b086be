"""Digests of files, and the file that `sha256sum --check` reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

NAME = "SHA256SUMS"


def sha256(path: Path) -> str:
    """Return the digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(files: Iterable[Path], folder: Path) -> Path:
    """Write the digests of files of a folder."""
    path = folder / NAME
    path.write_text("".join(f"{sha256(each)}  {each.name}\n" for each in sorted(files)))
    return path
