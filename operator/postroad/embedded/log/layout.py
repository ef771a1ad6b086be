"""Paths in a store, the names of lanes, and the places of mails in files. FORMAT.md 2 to 4."""

from bisect import bisect_left
from dataclasses import dataclass
from pathlib import PurePath

FORMAT = 2
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
FILES_PER_DIRECTORY = 1000

SpoolKind = int
"""A kind of spool file: OWN_FILE, or the index in PLACE_SIZES of the size of its places."""

OWN_FILE: SpoolKind = 0
"""The kind of a file that one mail has at a time."""

PLACE_SIZES = (0, *((4 + step % 4) << step // 4 + 6 for step in range(33)))
"""Octets of a place, by the kind of its file: four sizes from each power of two to the next, so
that a mail leaves a fifth of its place empty at most."""

MAX_PACK_BYTES = 1024 * 1024
MIN_PLACES, MAX_PLACES = 16, 256

_PACKED = 1 << 46
"""From here on, slots name a place: the kind times this, the number of the file times 256, and the
number of the place. Below it, a slot is the number of a file of its own."""


def kind_for(octets: int) -> SpoolKind:
    """Return the kind of file for a mail whose header, content and envelope have so many octets."""
    kind = bisect_left(PLACE_SIZES, octets)
    return kind if kind < len(PLACE_SIZES) else OWN_FILE


def kind_of(slot: int) -> SpoolKind:
    return slot // _PACKED


def places_of(kind: SpoolKind) -> int:
    """Return how many mails a file of this kind can have."""
    if kind == OWN_FILE:
        return 1
    return max(MIN_PLACES, min(MAX_PLACES, MAX_PACK_BYTES // PLACE_SIZES[kind]))


def first_slot(kind: SpoolKind, file_number: int) -> int:
    """Return the first slot of a file; its others follow."""
    return file_number if kind == OWN_FILE else kind * _PACKED + file_number * MAX_PLACES


def file_of(slot: int) -> int:
    """Return the first slot of the file that has a slot."""
    return slot if slot < _PACKED else slot - slot % MAX_PLACES


def offset_of(slot: int) -> int:
    """Return where a slot begins in its file."""
    return 0 if slot < _PACKED else PLACE_SIZES[slot // _PACKED] * (slot % MAX_PLACES)


def _file_number(slot: int) -> int:
    return slot if slot < _PACKED else slot % _PACKED // MAX_PLACES


_SUFFIXES = {f".{size}" if size else "": kind for kind, size in enumerate(PLACE_SIZES)}


def slots_of(directory: str, name: str) -> range:
    """Return the slots of a spool file by its name; none for any other name."""
    number, kind = name[:3], _SUFFIXES.get(name[3:])
    if kind is None or not number.isdecimal() or not directory.isdecimal():
        return range(0)
    first = first_slot(kind, int(directory) * FILES_PER_DIRECTORY + int(number))
    return range(first, first + places_of(kind))


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
        return self.mail / f"{_file_number(slot) // FILES_PER_DIRECTORY:06}"

    def spool_file(self, slot: int) -> PurePath:
        kind, name = kind_of(slot), f"{_file_number(slot) % FILES_PER_DIRECTORY:03}"
        return self.spool_directory(slot) / (f"{name}.{PLACE_SIZES[kind]}" if kind else name)


def segment_of(name: str) -> tuple[Lane, int] | None:
    """Read a segment's file name; None for any other name."""
    lane, _, sequence = name.partition(".")
    known = lane_of(lane)
    return None if known is None or not sequence.isdecimal() else (known, int(sequence))
