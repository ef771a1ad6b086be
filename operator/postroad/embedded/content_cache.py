"""New mails that are still in memory: most are delivered at once, and need not be read back.

Oldest first, as they are delivered: when there is no more room, it is the later ones that are read
from their files. What was read back was checked; what never left the memory needs no check.
"""

from __future__ import annotations

from postroad.domain.shapes import Shape
from postroad.embedded.records import EnvelopeRecord
from postroad.embedded.segments import Entry
from postroad.embedded.spool_files import SMALL, Kept

MOST_BYTES = 16 * 1024 * 1024
"""Of content, of all new mails together."""


class ContentCache:
    """Keeps new mails at their entries until these are handed out or dropped."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.room = most_bytes

    def keep(
        self, entry: Entry, record: EnvelopeRecord, content: bytes, shape: Shape | None
    ) -> None:
        """Keep a mail as long as its entry waits, if there is room."""
        if len(content) <= min(self.room, SMALL):
            self.room -= len(content)
            entry.cached = (record, (content, shape))

    def take(self, entry: Entry) -> tuple[EnvelopeRecord, Kept] | None:
        """Return a mail that was kept, and forget it here. None: it has to be read."""
        found, entry.cached = entry.cached, None
        if found is not None:
            self.room += len(found[1][0])
        return found
