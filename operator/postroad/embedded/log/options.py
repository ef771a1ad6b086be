"""What can be set of a store: sizes of segments, waits before syncs and between checkpoints, and
the free space it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from postroad.domain.delivery.retries import DEFAULT_LANES
from postroad.domain.queues.lifetimes import DEAD_LETTER_LIFETIME
from postroad.embedded.log.layout import NEW, Lane

MIB = 1024 * 1024
TOLERANCE = timedelta(milliseconds=100)

KEPT_OPEN = 256
"""Idle spool files that stay open, at most."""

LONGEST_LEASE = timedelta(minutes=25)
"""How long an item may be in hand, as in the distributed engine: recovery reads the log from the
START of the oldest one."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How the owner runs a store. The store file keeps `segment_bytes` and `segment_envelopes`."""

    segment_bytes: int = 16 * MIB
    """Size at which a segment is full."""

    segment_envelopes: int = 65_536
    """ENVELOPEs in a segment at most; the format allows 65,536."""

    steps: tuple[timedelta, ...] = DEFAULT_LANES
    """The retry steps, a lane each. Empty: lane `new` takes all mail that is not held. The store
    file does not keep them: a lane whose step is gone drains, and gets no more records."""

    checkpoint_every: timedelta = timedelta(seconds=15)
    """Less makes recovery shorter, more saves syncs. Every retry step should be longer, because a
    checkpoint makes a retried mail durable before it is due."""

    sync_wait: timedelta = timedelta(milliseconds=2)
    """How long a record waits for others to share its sync, while mail is arriving."""

    free_wait: timedelta = timedelta(milliseconds=20)
    """How long the slot of a finished mail waits for others that are freed with it."""

    least_free_bytes: int = 64 * MIB
    """Below this free space the store refuses new mail, because the log needs some to end mails. On
    a small volume it is a quarter of the volume."""

    least_free_inodes: int = 1000

    kept_open: int = KEPT_OPEN
    """Idle spool files that stay open."""

    pool_files: int = 2048
    """Free spool files kept at most."""

    pool_file_bytes: int = 256 * 1024
    """The pool removes larger files, so that its space is bounded."""

    largest_mail: int | None = None
    """Bytes of content; None: no limit but the disk's."""

    largest_envelope: int = 4 * MIB
    """Bytes of one ENVELOPE; it must fit into a segment."""

    dead_letter_lifetime: timedelta = DEAD_LETTER_LIFETIME
    """From the death of a mail until maintenance discards it."""

    compact_below: float = 0.25
    """Compaction rewrites the oldest segment of a lane when a smaller share of it is live."""

    def lane_for(self, delay: timedelta) -> Lane:
        """Return the lane of a delay: the longest step that is not longer (AMB-9). TOLERANCE covers
        the time that passes between the consumer's call and the write."""
        fitting = [step for step in self.steps if step <= delay + TOLERANCE]
        return int(max(fitting).total_seconds()) if fitting else NEW
