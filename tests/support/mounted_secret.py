"""A folder as the kubelet mounts a Secret: all files are swapped at once, by a link."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from itertools import count
from pathlib import Path


class MountedSecret:
    """The mounted Secret, in `folder`."""

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        self.folder = folder
        self._numbers = count()
        self._current: Path | None = None
        folder.mkdir(parents=True)
        self.renew(files)
        for name in files:
            (folder / name).symlink_to(Path("..data") / name)

    def renew(self, files: Mapping[str, str]) -> None:
        """Swap the files, and remove those of before, in the kubelet's order."""
        number = next(self._numbers)
        written, link = self.folder / f"..{number}", self.folder / "..data_tmp"
        written.mkdir()
        for name, text in files.items():
            (written / name).write_text(text)
        link.symlink_to(written.name)
        link.rename(self.folder / "..data")
        before, self._current = self._current, written
        if before is not None:
            shutil.rmtree(before)
