"""What arrives on the socket of a store, cut into frames."""

from __future__ import annotations

import pytest

from postroad.embedded.rpc import rpc
from postroad.embedded.rpc.rpc import FrameKind, FrameReader
from postroad.errors import EntryLost, InvalidInput, PostroadError, StoreFull

SENT = [(1, FrameKind.CALL, b"{}"), (2, FrameKind.DATA, bytes(5000)), (1, FrameKind.END, b"")]
OCTETS = b"".join(rpc.frame(*each) for each in SENT)


@pytest.mark.parametrize("step", [1, 4, 9, 10, 4096, len(OCTETS)])
def test_frames_are_the_same_however_they_arrive(step: int) -> None:
    frames = FrameReader()

    found = [
        frame
        for start in range(0, len(OCTETS), step)
        for frame in frames.feed(OCTETS[start : start + step])
    ]

    assert found == SENT


@pytest.mark.parametrize("length", [0, 4, rpc.MAX_FRAME + 1])
def test_a_length_that_no_frame_has_is_refused(length: int) -> None:
    with pytest.raises(InvalidInput):
        list(FrameReader().feed(rpc.HEAD.pack(length, 1, FrameKind.DATA)))


@pytest.mark.parametrize(
    ("error", "name"),
    [(EntryLost(), "EntryLost"), (StoreFull("full"), "StoreFull")],
)
def test_errors_are_sent_by_the_names_of_their_classes(error: PostroadError, name: str) -> None:
    value = rpc.error_value(error)

    assert value["type"] == name
    assert type(rpc.error_from(value)) is type(error)


def unfinished(kind: FrameKind, length: int) -> bytes:
    return rpc.HEAD.pack(length + 5, 1, kind)


@pytest.mark.parametrize(
    ("kind", "longest"),
    [(FrameKind.DATA, rpc.MAX_DATA), (FrameKind.CALL, rpc.MAX_FRAME - 5)],
)
def test_a_frame_is_at_most_as_long_as_the_protocol_says(kind: FrameKind, longest: int) -> None:
    reader = rpc.FrameReader()
    assert list(reader.feed(unfinished(kind, longest))) == []

    with pytest.raises(InvalidInput, match="no frame"):
        list(rpc.FrameReader().feed(unfinished(kind, longest + 1)))


def test_frames_that_are_not_whole_take_bounded_memory_over_all_connections() -> None:
    readers = [rpc.FrameReader() for _ in range(5)]
    try:
        for each in readers[:4]:
            list(each.feed(unfinished(FrameKind.CALL, rpc.MAX_FRAME - 5)))
            list(each.feed(bytes(rpc.MAX_FRAME - 100)))
        list(readers[4].feed(unfinished(FrameKind.CALL, rpc.MAX_FRAME - 5)))
        with pytest.raises(InvalidInput, match="not whole yet"):
            list(readers[4].feed(bytes(rpc.READ + 1000)))
        readers[4].close()

        readers[0].close()
        reader = rpc.FrameReader()
        list(reader.feed(unfinished(FrameKind.CALL, rpc.MAX_FRAME - 5) + bytes(rpc.READ + 1000)))
        reader.close()
    finally:
        for each in readers:
            each.close()
