"""Frames and checkpoints are read whole or not at all, wherever bytes are missing or wrong."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from crash.lossy import LossyFiles
from postroad.embedded.log.frames import (
    HEAD,
    encode,
    frame_at,
    frame_size,
    frames,
    stray_frames,
)
from postroad.embedded.log.slots import (
    SLOT_BYTES,
    Checkpoint,
    LaneState,
    decode,
    read_checkpoint,
    write_checkpoint,
)
from postroad.errors import StoreDamaged, StoreFailed
from postroad.ports.files import File

SEED = 77
ONE, TWO = encode(SEED, 1, 5, 900, b"first"), encode(SEED, 2, 0, 901, b"x" * 16)


def test_frames_begin_at_multiples_of_eight() -> None:
    assert HEAD.size == 24
    assert [frame_size(each) for each in (0, 1, 7, 8, 9)] == [24, 32, 32, 32, 40]
    assert (len(ONE), frame_size(5)) == (32, 32)
    assert (len(TWO), frame_size(16)) == (40, 40)


def test_a_frame_comes_back_with_all_that_it_wraps() -> None:
    data = bytes(8) + ONE + TWO

    found = list(frames(data, SEED, 8))

    assert found == [
        (8, 40, 1, 5, 900, b"first"),
        (40, 80, 2, 0, 901, b"x" * 16),
    ]
    assert list(frames(ONE + TWO, SEED)) == [
        (0, 32, 1, 5, 900, b"first"),
        (32, 72, 2, 0, 901, b"x" * 16),
    ]


@pytest.mark.parametrize("length", [0, HEAD.size - 1, HEAD.size, HEAD.size + 4])
def test_a_frame_that_is_cut_is_none(length: int) -> None:
    assert frame_at(ONE[:length], 0, SEED) is None


def test_a_frame_needs_no_padding_and_may_be_empty() -> None:
    whole = frame_at(ONE[: HEAD.size + 5], 0, SEED)
    empty = frame_at(encode(SEED, 3, 0, 0, b""), 0, SEED)

    assert whole is not None
    assert whole.payload == b"first"
    assert empty is not None
    assert (empty.payload, empty.end) == (b"", HEAD.size)


@pytest.mark.parametrize("place", [0, 3, 4, 7, 8, 11, 12, 13, 14, 15, 16, 23, 24, 28])
def test_a_frame_with_a_wrong_octet_or_of_another_segment_is_none(place: int) -> None:
    damaged = bytearray(ONE)
    damaged[place] ^= 1

    assert frame_at(bytes(damaged), 0, SEED) is None
    assert frame_at(ONE, 0, SEED + 1) is None


def test_frames_behind_a_gap_are_found_where_frames_may_begin() -> None:
    gap = b"PRf1" + bytes(3) + b"PRf1" + bytes(5)
    data = ONE[:30] + bytes(2) + gap + ONE + TWO + b"\0" + ONE

    found = [(each.offset, each.payload) for each in stray_frames(data, SEED, 1)]

    assert found == [(48, b"first"), (80, b"x" * 16)]
    assert next(stray_frames(data, SEED, 0)).offset == 0
    assert list(stray_frames(b"PRf1", SEED, 0)) == []


CHECKPOINT = Checkpoint(
    7, 1_000, 2_000, 1_500, {0: LaneState(3, 2_000), 60: LaneState(1, 9)}, (1_500, 1_600, 1_700)
)


def test_a_checkpoint_comes_back() -> None:
    assert decode(CHECKPOINT.encode()) == CHECKPOINT
    assert decode(CHECKPOINT.encode() + bytes(100)) == CHECKPOINT
    assert decode(Checkpoint(1).encode()) == Checkpoint(1)


@pytest.mark.parametrize("length", [0, 7, 8, 12, 55, 56, 64, 87, 88, 111])
def test_a_checkpoint_that_is_cut_is_none(length: int) -> None:
    assert decode(CHECKPOINT.encode()[:length]) is None


@pytest.mark.parametrize("place", range(0, 112, 5))
def test_a_checkpoint_with_a_wrong_octet_is_none(place: int) -> None:
    encoded = bytearray(CHECKPOINT.encode())
    assert len(encoded) == 112
    encoded[place] ^= 1

    assert decode(bytes(encoded)) is None


@pytest.fixture
def file() -> File:
    files = LossyFiles()
    root = PurePosixPath("/store")
    files.make_directory(root)
    return files.open(root / "checkpoint", create=True)


def test_checkpoints_are_written_alternately_and_the_later_one_counts(file: File) -> None:
    for number in (1, 2, 3):
        write_checkpoint(file, Checkpoint(number))
        assert read_checkpoint(file).number == number

    file.pwrite(SLOT_BYTES, bytes(8))
    assert read_checkpoint(file).number == 2
    file.pwrite(0, bytes(8))
    with pytest.raises(StoreDamaged, match="neither copy"):
        read_checkpoint(file)


def test_a_checkpoint_that_would_reach_into_the_other_one_is_refused(file: File) -> None:
    head = len(Checkpoint(1).encode())
    largest = (SLOT_BYTES - head) // 8
    write_checkpoint(file, Checkpoint(1, working=(0,) * largest))
    assert len(read_checkpoint(file).working) == largest

    with pytest.raises(StoreFailed, match="too many"):
        write_checkpoint(file, Checkpoint(2, working=(0,) * (largest + 1)))
    assert read_checkpoint(file).number == 1
