"""Images of a release, where a builder answers that makes them for several processors.

Docker's buildx does, with QEMU for another processor than the machine's. The stack's own images
(`stack.images`) are for tests: their base is made here, and is not the one that is published."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from release.errors import ReleaseRefused
from release.source import Commit
from release.versions import Version

PLATFORMS = ("linux/amd64", "linux/arm64")


def missing_builder() -> str:
    """Return why images cannot be built here; empty where they can."""
    for command, reason in (
        (("docker", "info"), "no Docker engine answers"),
        (("docker", "buildx", "inspect", "--bootstrap"), "docker has no buildx"),
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return reason
        if done.returncode:
            return reason
    lacking = [each for each in PLATFORMS if each not in done.stdout]
    return f"buildx has no builder for {', '.join(lacking)}" if lacking else ""


def build(source: Path, folder: Path, version: Version, commit: Commit) -> Path:
    """Build the image for all platforms as one OCI archive. Raises: ReleaseRefused."""
    path = folder / f"postroad-{version.semantic}.oci.tar"
    command = [
        *("docker", "buildx", "build", "--platform", ",".join(PLATFORMS)),
        *("--build-arg", f"REVISION={commit.identity}", "--provenance=false"),
        *("--tag", f"postroad:{version.semantic}"),
        *("--output", f"type=oci,dest={path},rewrite-timestamp=true", str(source)),
    ]
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(commit.epoch)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseRefused(f"docker buildx built no image:\n{done.stderr[-2000:]}")
    return path
