"""How much is free where the store lies: asked of the file system once a second, counted between.

Asking costs as much as everything else that is done for a small mail (45 us on ext4).
"""

from __future__ import annotations

from collections.abc import Callable

from postroad.embedded.layout import Layout
from postroad.ports.files import DiskSpace, Files

FRESH_SECONDS = 1.0


class FreeSpace:
    """The smaller of what is free for the log and for the mails."""

    def __init__(self, files: Files, layout: Layout, elapsed: Callable[[], float]) -> None:
        self._files, self._layout, self._elapsed = files, layout, elapsed
        self._room = DiskSpace(0, None)
        self._asked_at = float("-inf")
        self._used = 0

    def after(self, size: int) -> DiskSpace:
        """Return what is free once `size` more bytes are stored; they count from now on. Raises:
        StoreFailed."""
        now = self._elapsed()
        if now - self._asked_at >= FRESH_SECONDS:
            self._room, self._asked_at, self._used = self._ask(), now, 0
        self._used += size
        return self._left()

    def if_stored(self, size: int) -> DiskSpace:
        """Return what would be free then; nothing is counted. Raises: StoreFailed."""
        left = self.after(0)
        return DiskSpace(left.bytes - size, left.inodes)

    def _left(self) -> DiskSpace:
        return DiskSpace(self._room.bytes - self._used, self._room.inodes)

    def _ask(self) -> DiskSpace:
        rooms = [self._files.room(path) for path in (self._layout.mail, self._layout.log)]
        inodes = [room.inodes for room in rooms if room.inodes is not None]
        return DiskSpace(min(room.bytes for room in rooms), min(inodes, default=None))
