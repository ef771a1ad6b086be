"""What arrives on the socket of a store, cut into frames."""

from __future__ import annotations

import pytest

from postroad.embedded import wire
from postroad.embedded.wire import FrameKind, FrameReader
from postroad.errors import EntryEnded, EntryLost, InvalidInput, PostroadError, StoreFull

SENT = [(1, FrameKind.CALL, b"{}"), (2, FrameKind.DATA, bytes(5000)), (1, FrameKind.END, b"")]
OCTETS = b"".join(wire.frame(*each) for each in SENT)


@pytest.mark.parametrize("step", [1, 4, 9, 10, 4096, len(OCTETS)])
def test_frames_are_the_same_however_they_arrive(step: int) -> None:
    frames = FrameReader()

    found = [
        frame
        for start in range(0, len(OCTETS), step)
        for frame in frames.feed(OCTETS[start : start + step])
    ]

    assert found == SENT


def test_kinds_have_the_numbers_that_earlier_releases_know() -> None:
    names = ["CALL", "DATA", "END", "CANCEL", "MORE", "ELEMENT", "RESULT", "ERROR", "STORED"]

    assert [(each.name, each.value) for each in FrameKind] == [
        *zip(names, range(1, 10), strict=True)
    ]


@pytest.mark.parametrize("length", [0, 4, wire.LONGEST + 1])
def test_a_length_that_no_frame_has_is_refused(length: int) -> None:
    with pytest.raises(InvalidInput):
        list(FrameReader().feed(wire.HEAD.pack(length, 1, FrameKind.DATA)))


@pytest.mark.parametrize(
    ("error", "name"),
    [(EntryEnded(), "TurnEnded"), (EntryLost(), "TurnLost"), (StoreFull("full"), "StoreFull")],
)
def test_errors_are_sent_by_the_names_that_earlier_releases_know(
    error: PostroadError, name: str
) -> None:
    value = wire.error_value(error)

    assert value["type"] == name
    assert type(wire.error_from(value)) is type(error)
