"""Frames wrap records, so that a reader finds loss, damage and bytes of an older segment.

FORMAT.md 5. Pure: bytes in, bytes out."""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from google_crc32c import extend, value

MAGIC = b"PRf1"
HEAD = Struct("<4sIIBBHQ")
ALIGNMENT = 8
_CRC = Struct("<I")
_REST = Struct("<IBBHQ")

checksum = value
"""CRC-32C of bytes."""

extended = extend
"""CRC-32C of what was summed before and more bytes."""


class Frame(NamedTuple):
    """A valid frame. `offset` and `end` are relative to what was read; `durable` is a position."""

    offset: int
    end: int
    type: int
    ordinal: int
    durable: int
    payload: bytes


def frame_size(payload_length: int) -> int:
    """Return how many bytes a frame takes in a segment, up to where the next one may begin."""
    return (HEAD.size + payload_length + ALIGNMENT - 1) & -ALIGNMENT


def encode(seed: int, record_type: int, ordinal: int, durable: int, payload: bytes) -> bytes:
    """Wrap a record. `seed` is the checksum of its segment's header."""
    body = _REST.pack(len(payload), record_type, 0, ordinal, durable) + payload
    frame = MAGIC + _CRC.pack(extend(seed, body)) + body
    return frame + bytes(-len(frame) % ALIGNMENT)


def frame_at(data: bytes, offset: int, seed: int) -> Frame | None:
    """Return the frame at `offset`, or None when there is no valid and whole one."""
    start = offset + HEAD.size
    if start > len(data):
        return None
    magic, crc, length, record_type, _, ordinal, durable = HEAD.unpack_from(data, offset)
    stop = start + length
    if magic != MAGIC or stop > len(data) or extend(seed, data[offset + 8 : stop]) != crc:
        return None
    end = offset + frame_size(length)
    return Frame(offset, end, record_type, ordinal, durable, data[start:stop])


def frames(data: bytes, seed: int, offset: int = 0) -> Iterator[Frame]:
    """Yield the frames from `offset` up to the first that is not valid."""
    while (frame := frame_at(data, offset, seed)) is not None:
        yield frame
        offset = frame.end


def stray_frames(data: bytes, seed: int, offset: int) -> Iterator[Frame]:
    """Yield every valid frame behind a gap, wherever it begins."""
    while (found := data.find(MAGIC, offset)) >= 0:
        frame = frame_at(data, found, seed) if found % ALIGNMENT == 0 else None
        if frame is None:
            offset = found + 1
        else:
            yield frame
            offset = frame.end
