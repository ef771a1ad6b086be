"""The enqueue keys of a store: in memory those of the last day, in the log a lane of KEYs.

A KEY is durable before the ENVELOPE of its mail is written; when that is durable, and before a
consumer gets the mail, a second KEY follows, which needs no sync of its own. Recovery takes a mail
for accepted that has the second KEY, or that it finds in what it reads of the other lanes: until a
checkpoint made the second KEY durable, no checkpoint lets recovery pass over the mail's records.
Source: FORMAT.md 6; ADR 0045.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from uuid import UUID

from postroad.domain.queues.references import KEY_LIFETIME
from postroad.embedded.log.lanes import LaneLog
from postroad.embedded.log.records import KeyRecord, encode

LIFETIME_US = round(KEY_LIFETIME.total_seconds() * 1e6)


class KeyIndex:
    """The keys of one store. `under_way` are the enqueues that have a key and have not ended."""

    def __init__(self) -> None:
        self.under_way: dict[bytes, asyncio.Task[UUID]] = {}
        self._accepted: dict[bytes, KeyRecord] = {}
        self._open: dict[bytes, KeyRecord] = {}
        """By mail id: keys that recovery found, whose mails it has not found yet."""
        self._found: list[KeyRecord] = []
        self._latest: dict[int, int] = {}
        """When the latest key of each segment began, by the segment's number."""

    def standing(self, token: bytes, now_us: int) -> KeyRecord | None:
        """Return what a key stands for. Keys that are over are dropped, the oldest first."""
        while self._accepted:
            oldest = next(iter(self._accepted.values()))
            if not _is_over(oldest.accepted_us, now_us):
                break
            del self._accepted[oldest.token]
        return self._accepted.get(token)

    def append(self, lane: LaneLog, record: KeyRecord) -> int:
        """Append a KEY; return the position up to which its lane must be durable for it."""
        written = lane.append(*encode(record))
        self._note(written.segment.sequence, record)
        return written.end

    def _note(self, sequence: int, record: KeyRecord) -> None:
        self._latest[sequence] = max(self._latest.get(sequence, 0), record.accepted_us)
        if record.is_accepted:
            self._accepted[record.token] = record

    def first_needed(self, sequences: Iterable[int], now_us: int) -> int | None:
        """Return the first of these segments that has a key of the last day; None without one."""
        return next(
            (each for each in sequences if not _is_over(self._latest.get(each, 0), now_us)), None
        )

    # -- recovery --------------------------------------------------------------------------------

    def read(self, sequence: int, record: KeyRecord, now_us: int) -> None:
        """Take in a KEY of the log, in their order."""
        self._note(sequence, record)
        if record.is_accepted:
            self._open.pop(record.mail_id, None)
        elif not _is_over(record.accepted_us, now_us):
            self._open[record.mail_id] = record

    def see(self, mail_id: bytes) -> None:
        """Note that the log has a record of this mail, so that it was queued."""
        if (record := self._open.pop(mail_id, None)) is not None:
            self._found.append(record._replace(is_accepted=True))

    def settle(self) -> list[KeyRecord]:
        """Forget the keys whose mails were not found; return the second KEYs of the others."""
        self._open.clear()
        found, self._found = self._found, []
        return found


def _is_over(began_us: int, now_us: int) -> bool:
    return now_us - began_us >= LIFETIME_US
