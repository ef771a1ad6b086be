"""The files of this repository, for the tests that guard them."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

needs_a_clone = pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="only a clone knows its files"
)


@cache
def tracked_files() -> tuple[Path, ...]:
    """Return the files of the clone that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    return tuple(ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file())


@cache
def _all_texts() -> tuple[tuple[str, str], ...]:
    kinds = {".py", ".md", ".cql", ".yaml", ".sh", ".toml"}
    return tuple(
        (f"{path.relative_to(ROOT)}", path.read_text())
        for path in tracked_files()
        if path.suffix in kinds
    )


def texts(*folders: str, without: str = "") -> list[tuple[str, str]]:
    """Return the names and the contents of texts under these folders; `without`: the file of a
    test whose examples are wrong on purpose."""
    return [
        (name, text)
        for name, text in _all_texts()
        if name.startswith(folders) and ROOT / name != Path(without)
    ]
