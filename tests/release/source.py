"""The commit that a release is made of. What is built comes from git, not from the work tree."""

from __future__ import annotations

import io
import subprocess
import tarfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from release.errors import ReleaseRefused


@dataclass(frozen=True)
class Commit:
    """A commit, and its date in seconds since 1970, which all that is built has."""

    identity: str
    epoch: int

    @property
    def date(self) -> str:
        """The date as SPDX and in-toto have it."""
        return datetime.fromtimestamp(self.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def head(repository: Path) -> Commit:
    """Return the commit that is checked out. Raises: ReleaseRefused where files differ from it, or
    there is no git."""
    try:
        changed = _git(repository, "status", "--porcelain").decode().splitlines()
        identity, epoch = _git(repository, "log", "-1", "--format=%H %ct").decode().split()
    except (OSError, subprocess.CalledProcessError) as error:
        raise ReleaseRefused(f"{repository} is no clone of git with a commit: {error}") from error
    if changed:
        first = "\n".join(changed[:5])
        raise ReleaseRefused(f"commit or remove what differs from the commit first:\n{first}")
    return Commit(identity, int(epoch))


def export(repository: Path, commit: Commit, folder: Path) -> None:
    """Write the files of a commit into a folder."""
    archive = _git(repository, "archive", "--format=tar", commit.identity)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")


def _git(repository: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, capture_output=True, check=True).stdout
