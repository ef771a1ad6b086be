"""Paths in a store, and the names of lanes. FORMAT.md 2, 3."""

from dataclasses import dataclass
from pathlib import PurePath

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
    def incoming(self) -> PurePath:
        return self.mail / "incoming"

    @property
    def archive(self) -> PurePath:
        return self.root / "archive"

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
