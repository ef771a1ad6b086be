"""What a release is made of in a test: the files of this clone in a repository of their own, and a
key that signs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.repository import ROOT, tracked_files

COMMITTED = "2026-01-02T03:04:05+00:00"
EPOCH = 1767323045


def git(folder: Path, *arguments: str) -> None:
    """Run git in a folder, at a known date."""
    same = {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "a"), ("EMAIL", "a@example.org"), ("DATE", COMMITTED))
    }
    options = ("-c", "init.defaultBranch=main", "-c", "commit.gpgsign=false")
    command = ["git", *options, "-C", str(folder), *arguments]
    subprocess.run(command, env=os.environ | same, check=True, capture_output=True)


def committed(folder: Path) -> Path:
    """Make a folder a repository with the files of this one in one commit of a known date."""
    for each in tracked_files():
        place = folder / each.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(each.read_bytes())
        place.chmod(each.stat().st_mode & 0o755)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "release")
    return folder


def signing_key(folder: Path) -> Path:
    """Make a key as docs/contributing/release.md does, without a password."""
    path = folder / "key.pem"
    curve = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
    subprocess.run(["openssl", "genpkey", *curve, "-out", path], check=True, capture_output=True)
    return path
