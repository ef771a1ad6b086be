"""Caches the content of new mails, because consumers lease most of them at once.

It keeps the oldest, because they are leased first: when it is full, later ones are read from their
files. Reading checks the checksum; content that never left memory needs no check.
"""

from __future__ import annotations

from postroad.domain.shapes import Shape
from postroad.embedded.envelope_records import EnvelopeRecord
from postroad.embedded.segments import LiveEntry
from postroad.embedded.spool_files import SMALL, Kept

MOST_BYTES = 16 * 1024 * 1024
"""Bytes of content of all cached mails together."""


class ContentCache:
    """Keeps new mails at their entries until these are leased or end."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.room = most_bytes

    def keep(
        self, entry: LiveEntry, record: EnvelopeRecord, content: bytes, shape: Shape | None
    ) -> None:
        """Keep a mail while its entry waits, if there is room."""
        if len(content) <= min(self.room, SMALL):
            self.room -= len(content)
            entry.cached = (record, (content, shape))

    def take(self, entry: LiveEntry) -> tuple[EnvelopeRecord, Kept] | None:
        """Return a cached mail, and drop it from the cache; None when it is not cached."""
        found, entry.cached = entry.cached, None
        if found is not None:
            self.room += len(found[1][0])
        return found
