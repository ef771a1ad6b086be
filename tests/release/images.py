"""Images of a release, where a builder answers that makes them for several processors.

Docker's buildx does, with QEMU for another processor than the machine's. On a base that is named,
buildah makes the image of this machine's processor alone, without an engine. The stack's own images
(`stack.images`) are for tests: their base is made here, and is not the one that is published."""

from __future__ import annotations

import os
import platform
import subprocess
import tarfile
import tempfile
from pathlib import Path

from release.errors import ReleaseRefused
from release.source import Commit
from release.versions import Version
from stack.images import machine_settings

PLATFORMS = ("linux/amd64", "linux/arm64")
_BUILDAH = "buildah"


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


def base_of(source: Path) -> str:
    """Return the image that the Dockerfile builds on where no other is named."""
    lines = (source / "Dockerfile").read_text().splitlines()
    return next(each for each in lines if each.startswith("ARG BASE=")).removeprefix("ARG BASE=")


def build_here(
    source: Path, folder: Path, version: Version, commit: Commit, base: str
) -> dict[str, str]:
    """Build the image for this machine's processor on a base, as an OCI archive, by buildah; return
    what was skipped, with the reason. Raises: ReleaseRefused."""
    own = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}.get(platform.machine(), "")
    path = folder / f"postroad-{version.semantic}.oci.tar"
    name = f"localhost/postroad:{version.semantic}"
    with machine_settings() as mounts:
        _buildah(
            *("build", "--isolation", "chroot", "--network", "host", "--no-cache", "--pull=false"),
            *("--timestamp", str(commit.epoch), "--platform", own, *mounts),
            *("--build-arg", f"BASE={base}", "--build-arg", f"REVISION={commit.identity}"),
            *("--file", str(source / "Dockerfile"), "--tag", name, str(source)),
        )
    with tempfile.TemporaryDirectory() as layout:
        _buildah("push", "--quiet", name, f"oci:{layout}:{version.semantic}")
        _pack(Path(layout), path, commit)
    _buildah("rmi", "--force", name)
    reason = f"buildah makes {own} here: for both, use docker's buildx, without BASE"
    return {f"image {each}": reason for each in PLATFORMS if each != own}


def _pack(layout: Path, path: Path, commit: Commit) -> None:
    """Write a layout of OCI as an archive: buildah's own has the present time."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for each in sorted(each for each in layout.rglob("*") if each.is_file()):
            entry = tarfile.TarInfo(each.relative_to(layout).as_posix())
            entry.size, entry.mtime, entry.mode = each.stat().st_size, commit.epoch, 0o644
            with each.open("rb") as content:
                archive.addfile(entry, content)


def _buildah(*arguments: str) -> None:
    """Run buildah over the storage that its own settings name. Raises: ReleaseRefused."""
    try:
        done = subprocess.run([_BUILDAH, *arguments], capture_output=True, text=True)
    except OSError as error:
        raise ReleaseRefused("BASE is for buildah, which is not installed") from error
    if done.returncode:
        raise ReleaseRefused(f"buildah {arguments[0]} failed:\n{done.stderr[-2000:]}")
