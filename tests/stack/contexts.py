"""The content of a Dockerfile's context as a digest: the same digest means the same build.

Source: Docker's reference, "Dockerignore files".
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path


def digest(context: Path) -> str:
    """Return a digest of the names, modes and contents of all files that are not ignored."""
    total = hashlib.sha256()
    for path in sorted(files(context)):
        name = path.relative_to(context)
        content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        total.update(f"{name}\0{path.lstat().st_mode:o}\0".encode())
        total.update(hashlib.sha256(content).digest())
    return total.hexdigest()


def options(target: str | None, more: Mapping[str, Path] | None) -> list[str | Path]:
    """Return the options of a build that choose a stage of the Dockerfile (None: the last one), and
    give further contexts by their names."""
    chosen: list[str | Path] = [] if target is None else ["--target", target]
    for name, folder in (more or {}).items():
        chosen += ["--build-context", f"{name}={folder}"]
    return chosen


def files(context: Path) -> Iterator[Path]:
    """Yield the files of a context, without those that its .dockerignore excludes."""
    rules = _rules(context / ".dockerignore")
    may_prune = not any(kept for kept, _ in rules)
    for folder, folders, names in os.walk(context):
        here = Path(folder)
        for name in [*names, *(name for name in folders if (here / name).is_symlink())]:
            if not _ignored((here / name).relative_to(context).as_posix(), rules):
                yield here / name
        if may_prune:
            folders[:] = [
                name
                for name in folders
                if not _ignored((here / name).relative_to(context).as_posix(), rules)
            ]


def _rules(path: Path) -> list[tuple[bool, re.Pattern[str]]]:
    """Return (is an exception, pattern) for each line; the last line that matches a file
    decides."""
    rules = []
    lines = path.read_text().splitlines() if path.is_file() else []
    for line in lines:
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        kept = text.startswith("!")
        text = text.removeprefix("!").strip().strip("/").removeprefix("./")
        rules.append((kept, re.compile(_expression(text) + r"(/.*)?")))
    return rules


def _ignored(name: str, rules: list[tuple[bool, re.Pattern[str]]]) -> bool:
    ignored = False
    for kept, pattern in rules:
        if pattern.fullmatch(name):
            ignored = not kept
    return ignored


def _expression(pattern: str) -> str:
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    meanings = {"**/": "(.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(meanings.get(part, re.escape(part)) for part in parts)
