"""A newer Debian in a folder of the cache, for servers that this machine's own release has older.

Its programs run in a chroot, in a mount namespace of their own, with loopback's network. Packages
come from the mirror that this machine's apt uses; nothing on this machine changes.
"""

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from stack import cache, packages
from stack.cache import Entry
from stack.errors import MissingRequirement
from stack.progress import Progress

RECIPE = "1"
"""Counts the changes of the way in which a folder is made."""

POLICY = "#!/bin/sh\nexit 101\n"
"""A policy that forbids services to start while packages are installed."""

REQUIRED = ("debootstrap", "util-linux")

ENTER = (
    # `cd` fails where the folder is missing; mkdir would make a cache entry without Debian.
    'cd "$1" && root="$1" && shift'
    ' && while [ "$1" != -- ]; do'
    ' mkdir -p "$root$1" && mount --rbind "$1" "$root$1" && shift || exit; done'
    ' && shift && mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev"'
    ' && exec chroot "$root" "$@"'
)


def installed(package: str, suite: str, minimum: str, *more: str) -> Entry:
    """Return the cache entry of a suite of Debian with a package in it, and with `more` packages
    beside it.

    The packages of a suite get newer with time. The cache keeps the entry under the `minimum` that
    the caller asked for, until the caller raises that.
    """

    def make(folder: Path, log: Path) -> None:
        packages.ensure(REQUIRED, Progress())
        root = folder / "root"
        scripts = Path("/usr/share/debootstrap/scripts")
        script = scripts / (suite if (scripts / suite).exists() else "sid")
        cache.run(["debootstrap", "--variant=minbase", suite, root, _mirror(), script], log)
        policy = root / "usr/sbin/policy-rc.d"
        policy.write_text(POLICY)
        policy.chmod(0o755)
        (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
        install = ["apt-get", "install", "-yq", "--no-install-recommends", package, *more]
        cache.run(
            ["chroot", root, *install], log, environment={"DEBIAN_FRONTEND": "noninteractive"}
        )
        cache.run(
            ["chroot", root, "dpkg", "--compare-versions", version(root, package), "ge", minimum],
            log,
        )

    key = cache.key_of(package, suite, minimum, RECIPE, *more)
    return Entry(
        f"debian/{suite}-{package}", key, f"{package} of {suite}: download (a minute)", make
    )


def check() -> None:
    """Raises: MissingRequirement where such a folder can be neither made nor entered."""
    if not packages.may_install():
        raise MissingRequirement(
            "a server of a newer Debian runs as root on Debian only: name one of yours by its"
            " variable, as POSTROAD_RABBITMQ_URI with POSTROAD_RABBITMQ_MANAGEMENT_URL"
        )


def version(root: Path, package: str) -> str:
    """Return the version of a package in such a folder."""
    command = ["chroot", str(root), "dpkg-query", "-W", "-f", "${Version}", package]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def entering(
    root: Path, visible: Iterable[Path], command: Sequence[str | Path]
) -> Sequence[str | Path]:
    """Return the command that runs another command in such a folder, with folders of this
    machine."""
    return ["unshare", "--mount", "sh", "-ec", ENTER, "sh", root, *visible, "--", *command]


def _mirror() -> str:
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
    for uri in found:
        if not uri.rstrip("/").endswith("-security"):
            return uri
    raise MissingRequirement("apt names no mirror: run apt-get update once")
