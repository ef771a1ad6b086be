"""`python -m machine.unsynced nothing|spool|log COMMAND…`: postroad, with one sync undone.

What the power cuts must find: without the sync of a spool file, or of the log, acknowledged mail is
lost.
"""

from __future__ import annotations

import sys

from postroad.adapters.disk.files import DiskFile
from postroad.cli import main

SPARED = {"spool": "/mail/", "log": "/log/"}
"""What is undone, and the part of a path by which its files are known."""


def undo(part: str) -> None:
    """Let files with this part in their path be written without a sync."""
    honest = DiskFile.sync

    def sync(file: DiskFile) -> None:
        if part not in file._name:
            honest(file)

    DiskFile.sync = sync  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    what = sys.argv.pop(1)
    if what in SPARED:
        undo(SPARED[what])
    main(prog_name="postroad")
