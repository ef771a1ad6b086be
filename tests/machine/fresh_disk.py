"""The disk of a machine that was just installed: Debian 12 with systemd, and this project's source.

Beyond a minimal system it has what README asks for: Python, git and make. A service runs a script
at the first start, whose output is the console's, and turns the machine off. Package clients there
use the registries as those of this machine do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from machine import uml
from stack import debian
from stack.cache import Entry
from stack.engine import SLIRP_DNS

PACKAGES = (
    *("udev", "dbus", "iproute2", "ca-certificates", "procps"),
    *("python3", "git", "make"),
)
BYTES = 8 << 30
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PERSON = "person"
"""A user who may not be root."""

SOURCE = Path(f"/home/{PERSON}/postroad")
"""That user's clone of this project."""

SCRIPT = "usr/local/sbin/first-steps"
UNIT = "first-steps.service"
SERVICE = f"""\
[Unit]
Description=The first steps of a person
DefaultDependencies=no
After=sysinit.target systemd-udev-settle.service
Wants=systemd-udev-settle.service

[Service]
Type=oneshot
ExecStart=/bin/sh /{SCRIPT}
ExecStopPost=/bin/systemctl --no-block poweroff
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console

[Install]
WantedBy=multi-user.target
"""

NETWORK = f"""\
card=$(ls /sys/class/net | grep -v -e '^lo$' -e '^sit' -e '^tunl' | head -n 1)
ip link set lo up
ip link set "$card" up
ip address add {uml.INSIDE}/24 dev "$card"
ip route add default via {uml.OUTSIDE}
set -a
. /etc/environment
set +a
"""


def system() -> Entry:
    """Return the cache entry of the system."""
    return debian.installed("systemd-sysv", "bookworm", "252", *PACKAGES)


def make(image: Path, project: Path, script: str) -> None:
    """Make the disk. What is not committed in the project is not on it.

    Raises:
        CalledProcessError: a command failed; its output is this process's.
    """
    with tempfile.TemporaryDirectory(dir=image.parent) as temporary:
        root = Path(temporary) / "root"
        subprocess.run(["cp", "-a", system().path / "root", root], check=True)
        (root / "usr/sbin/policy-rc.d").unlink(missing_ok=True)
        _use_the_registries(root)
        subprocess.run(["chroot", root, "useradd", "-m", "-s", "/bin/sh", PERSON], check=True)
        source = root / SOURCE.relative_to("/")
        subprocess.run(["git", "clone", "-q", "--no-hardlinks", project, source], check=True)
        own = ("chown", "-R", f"{PERSON}:", SOURCE)
        subprocess.run(["chroot", root, *own], check=True)
        (root / "etc/fstab").write_text("/dev/root / ext4 errors=remount-ro 0 1\n")
        (root / "etc/hosts").write_text("127.0.0.1 localhost\n127.0.1.1 machine\n")
        (root / "etc/hostname").write_text("machine\n")
        (root / SCRIPT).write_text(f"{NETWORK}{script}")
        units = root / "etc/systemd/system"
        (units / UNIT).write_text(SERVICE)
        (units / "multi-user.target.wants").mkdir(exist_ok=True)
        (units / "multi-user.target.wants" / UNIT).symlink_to(f"/etc/systemd/system/{UNIT}")
        with image.open("wb") as file:
            file.truncate(BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-d", root, image], check=True)


def _use_the_registries(root: Path) -> None:
    """Give the machine certificates and settings of this one's package clients."""
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    (root / "etc/resolv.conf").write_text(f"nameserver {SLIRP_DNS}\n")
    shutil.copyfile(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
    named = {name: value for name, value in os.environ.items() if value == str(CERTIFICATES)}
    lines = [f"{name}={value}\n" for name, value in sorted(named.items())]
    (root / "etc/environment").write_text("".join(lines))
    if (settings := Path("/etc/pip.conf")).exists():
        shutil.copyfile(settings, root / "etc/pip.conf")
