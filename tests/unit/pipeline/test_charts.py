"""The pictures of a report: what there is to show is drawn, whatever clients wrote."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from postroad.pipeline.charts import draw
from unit.pipeline.report_cases import EMPTY, full

PNG = b"\x89PNG\r\n\x1a\n"


def size(picture: bytes) -> tuple[int, int]:
    assert picture.startswith(PNG)
    width, height = struct.unpack(">II", picture[16:24])
    return width, height


def test_each_part_has_its_picture() -> None:
    found = draw(full())

    assert sorted(found) == ["ages", "destinations", "slices", "traffic", "waits"]
    assert all(width == 1300 and height > 200 for width, height in map(size, found.values()))


def test_more_destinations_make_a_higher_picture_up_to_a_dozen() -> None:
    only = replace(full(), hours=(), ages=(), slices=())
    heights = [
        size(draw(replace(only, destinations=full(lines).destinations))["destinations"])[1]
        for lines in (2, 12, 400)
    ]

    assert heights[0] < heights[1] == heights[2]


def test_destinations_of_one_name_are_two_bars() -> None:
    line = full().destinations[1]
    both = replace(full(), hours=(), ages=(), slices=(), destinations=[line, line])
    one = replace(both, destinations=[line])

    assert size(draw(both)["destinations"])[1] > size(draw(one)["destinations"])[1]


def test_nothing_is_drawn_of_what_is_not_there() -> None:
    assert draw(EMPTY) == {}


@pytest.mark.parametrize("delivered", [True, False])
def test_without_a_delivery_there_is_no_time_to_it(delivered: bool) -> None:
    hours = [each for each in full().hours if (each.p50 is not None) == delivered]
    only = replace(full(), hours=hours, destinations=(), ages=(), slices=())

    assert ("waits" in draw(only)) == delivered
