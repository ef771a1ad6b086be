"""A small filesystem for each node, so that a test can fill the disk of a node and not the
machine's."""

import os
import subprocess
import time
from pathlib import Path

BALLAST = "ballast"
BLOCK_BYTES = 4096
BUSY_SECONDS = 20


class Volume:
    """An ext4 filesystem in a sparse file, mounted on a folder."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        """Take the folder where it is mounted; its file lies beside that folder."""
        self.folder = folder
        self._image = folder.with_name(f"{folder.name}.img")
        self._size_bytes = size_bytes

    def mount(self) -> None:
        """Make and mount it unless that is done."""
        if self.folder.is_mount():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._image.exists():
            partial = self._image.with_suffix(".partial")
            with partial.open("wb") as file:
                file.truncate(self._size_bytes)
            # -m 0: no blocks reserved for root, because the nodes run as root
            _run("mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=1", str(partial))
            partial.rename(self._image)
        _run("mount", "-o", "loop", str(self._image), str(self.folder))

    def fill(self) -> None:
        """Leave no free block."""
        with (self.folder / BALLAST).open("ab") as ballast:
            step = 2**30
            while step >= BLOCK_BYTES:
                try:
                    os.posix_fallocate(ballast.fileno(), ballast.seek(0, 2), step)
                except OSError:
                    step //= 2

    def free(self) -> bool:
        """Remove the ballast file; return whether there was one."""
        was_filled = (self.folder / BALLAST).exists()
        (self.folder / BALLAST).unlink(missing_ok=True)
        return was_filled


def unmount_below(folder: Path) -> None:
    """Unmount all that is mounted in a folder, the innermost first."""
    mounts = [Path(line.split()[1]) for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in sorted(mounts, reverse=True):
        if mount.is_relative_to(folder):
            _unmount(mount)


def _unmount(mount: Path) -> None:
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            _run("umount", str(mount))
            return
        except OSError:  # the last thread of a killed process may hold a file for a moment
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
