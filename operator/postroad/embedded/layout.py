"""Paths in a store, and the sizes and times that its owner uses. FORMAT.md 2, 3."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePath

from postroad.domain.retries import DEFAULT_LANES

FORMAT = 1
"""This code reads and writes this format."""

Lane = int
"""A lane as stored: the seconds of its retry step, or one of the four below."""

NEW: Lane = 0
HELD: Lane = 0xFFFF_FFFE
DEAD: Lane = 0xFFFF_FFFF
KEYS: Lane = 0xFFFF_FFFD
"""Its files are named as those of a retry step, because releases that do not know it must find
them."""

NAMES = {NEW: "new", HELD: "held", DEAD: "dead"}
SLOTS_PER_DIRECTORY = 1000
TOLERANCE = timedelta(milliseconds=100)
MIB = 1024 * 1024


def lane_name(lane: Lane) -> str:
    """Return a lane's name, which its files begin with."""
    return NAMES.get(lane, f"{lane}s")


def lane_of(name: str) -> Lane | None:
    """Read a lane's name; None for any other text."""
    for lane, known in NAMES.items():
        if name == known:
            return lane
    seconds = name.removesuffix("s")
    return int(seconds) if name.endswith("s") and seconds.isdecimal() else None


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one store."""

    root: PurePath
    mail: PurePath

    @property
    def log(self) -> PurePath:
        return self.root / "log"

    @property
    def store(self) -> PurePath:
        return self.root / "store"

    @property
    def lock(self) -> PurePath:
        return self.root / "lock"

    @property
    def socket(self) -> PurePath:
        return self.root / "socket"

    @property
    def checkpoint(self) -> PurePath:
        return self.root / "checkpoint"

    @property
    def quarantine(self) -> PurePath:
        return self.root / "quarantine"

    def segment(self, lane: Lane, sequence: int) -> PurePath:
        return self.log / f"{lane_name(lane)}.{sequence:010}"

    def spool_directory(self, slot: int) -> PurePath:
        return self.mail / f"{slot // SLOTS_PER_DIRECTORY:06}"

    def spool_file(self, slot: int) -> PurePath:
        return self.spool_directory(slot) / f"{slot % SLOTS_PER_DIRECTORY:03}"


def segment_of(name: str) -> tuple[Lane, int] | None:
    """Read a segment's file name; None for any other name."""
    lane, _, sequence = name.partition(".")
    known = lane_of(lane)
    return None if known is None or not sequence.isdecimal() else (known, int(sequence))


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
    """Below this free space the store refuses new mail, because the log needs some to end mails."""

    least_free_inodes: int = 1000

    pool_files: int = 2048
    """Free spool files kept at most."""

    pool_file_bytes: int = 256 * 1024
    """The pool removes larger files, so that its space is bounded."""

    largest_mail: int | None = None
    """Bytes of content; None: no limit but the disk's."""

    largest_envelope: int = 4 * MIB
    """Bytes of one ENVELOPE; it must fit into a segment."""

    compact_below: float = 0.25
    """Compaction rewrites the oldest segment of a lane when a smaller share of it is live."""

    def lane_for(self, delay: timedelta) -> Lane:
        """Return the lane of a delay: the longest step that is not longer (AMB-9). TOLERANCE covers
        the time that passes between the consumer's call and the write."""
        fitting = [step for step in self.steps if step <= delay + TOLERANCE]
        return int(max(fitting).total_seconds()) if fitting else NEW
