"""Caches new mails, because consumers lease most of them at once: records, and contents that this
process received.

It keeps the oldest, because they are leased first: when it is full, later ones are read from their
files. Reading checks the checksum; what never left memory needs no check.
"""

from __future__ import annotations

from postroad.embedded.log.envelope_records import EnvelopeRecord
from postroad.embedded.log.segments import LiveEntry
from postroad.embedded.log.spool_files import SMALL, Kept

MOST_BYTES = 16 * 1024 * 1024
"""Bytes of all cached mails together."""

RECORD_TIMES = 5
"""A record takes three to five times as many bytes as its ENVELOPE."""


class ContentCache:
    """Keeps new mails at their entries until these are leased or end."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.room = most_bytes

    def keep(self, entry: LiveEntry, record: EnvelopeRecord, kept: Kept | None) -> None:
        """Keep a mail while its entry waits, if there is room; its record alone where this process
        does not have the content."""
        size = _size_of(entry, kept)
        if size <= self.room and (kept is None or len(kept[0]) <= SMALL):
            self.room -= size
            entry.cached = (record, kept)

    def take(self, entry: LiveEntry) -> tuple[EnvelopeRecord, Kept | None] | None:
        """Return a cached mail, and drop it from the cache; None when it is not cached."""
        found, entry.cached = entry.cached, None
        if found is not None:
            self.room += _size_of(entry, found[1])
        return found


def _size_of(entry: LiveEntry, kept: Kept | None) -> int:
    return RECORD_TIMES * entry.length + (0 if kept is None else len(kept[0]))
