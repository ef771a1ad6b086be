"""Debian packages that the native servers need: looked for, and installed where the stack may.

The stack needs only the files of the packages. Their services must not start: Debian's RabbitMQ
would bring an epmd that listens to the whole network. A `policy-rc.d` forbids that while packages
are installed.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from stack import cache, folders, locks
from stack.errors import MissingRequirement, StepFailed
from stack.progress import Progress

PROOFS = {
    "buildah": "buildah",
    "ca-certificates": "/etc/ssl/certs/ca-certificates.crt",
    "chromium": "chromium",
    "containerd": "containerd",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "debootstrap": "debootstrap",
    "docker.io": "dockerd",
    "e2fsprogs": "mkfs.ext4",
    "ethtool": "ethtool",
    "gcc": "gcc",
    "git": "git",
    "golang-go": "go",
    "iproute2": "ip",
    "iptables": "iptables",
    "mount": "mount",
    "libc6-dev": "/usr/lib/*/libc.a",
    "lua5.4": "lua5.4",
    "maven": "mvn",
    "nftables": "nft",
    "openjdk-17-jre-headless": "/usr/lib/jvm/java-17-openjdk-*/bin/java",
    "openssl": "openssl",
    "postgresql": "/usr/lib/postgresql/*/bin/postgres",
    "prometheus": "promtool",
    "rabbitmq-server": "/usr/lib/rabbitmq/bin/rabbitmq-server",
    "runc": "runc",
    "slirp4netns": "slirp4netns",
    "strace": "strace",
    "util-linux": "nsenter",
}
"""For each package a program in PATH, or a file, by which it is known to be installed."""

POLICY = Path("/usr/sbin/policy-rc.d")
POLICY_TEXT = "#!/bin/sh\n# of the postroad stack, while it installs packages\nexit 101\n"


def check(names: Iterable[str]) -> Sequence[str]:
    """Return those of the packages whose files are missing.

    Raises:
        MissingRequirement: some are, and this is no Debian, or not our right; the message has the
            command.
    """
    absent = missing(sorted(set(names)))
    if not absent or may_install():
        return absent
    if shutil.which("apt-get"):
        raise MissingRequirement(
            "packages are missing; as root: apt-get install --no-install-recommends "
            + " ".join(absent)
        )
    raise MissingRequirement(
        f"not found: {', '.join(PROOFS[name] for name in absent)} (this is no Debian, which has"
        f" them in the packages {' '.join(absent)}: install what has them here)"
    )


def ensure(names: Iterable[str], progress: Progress) -> None:
    """Install those of the packages whose files are missing.

    Raises:
        MissingRequirement: as `check`.
        StepFailed: the installation failed.
    """
    absent = check(names)
    if not absent:
        return
    with locks.held(folders.cache_directory() / "locks" / "packages"):
        if absent := missing(absent):
            with progress.step(f"Debian packages {' '.join(absent)}"):
                _install(absent)


def may_install() -> bool:
    """Tell whether missing packages can be installed: on Debian, by root."""
    return shutil.which("apt-get") is not None and os.geteuid() == 0


def missing(names: Iterable[str]) -> list[str]:
    """Return those of the packages whose files are missing, however the other files were
    installed."""
    return [name for name in names if not _is_found(PROOFS[name])]


def _is_found(proof: str) -> bool:
    if proof.startswith("/"):
        return any(Path("/").glob(proof.lstrip("/")))
    return shutil.which(proof) is not None


def _install(names: Sequence[str]) -> None:
    log = folders.cache_directory() / "logs" / "packages.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    options = ["-o", "DPkg::Lock::Timeout=600"]
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        with _no_services():
            cache.run(["apt-get", "update", "-q", *options], log, environment=quiet)
            cache.run(
                ["apt-get", "install", "-yq", "--no-install-recommends", *options, *names],
                log,
                environment=quiet,
            )
    except subprocess.CalledProcessError as error:
        raise StepFailed("installing Debian packages", log) from error


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    if POLICY.exists() and POLICY.read_text() != POLICY_TEXT:
        yield
        return
    POLICY.write_text(POLICY_TEXT)
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)
