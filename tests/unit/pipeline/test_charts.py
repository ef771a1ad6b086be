"""The pictures of a report: what there is to show is drawn, whatever clients wrote."""

from __future__ import annotations

import struct
from dataclasses import replace
from math import isnan

import pytest
from matplotlib import dates
from matplotlib.figure import Figure

from postroad.domain.configuration.advice import SliceCount
from postroad.pipeline.results import charts
from postroad.pipeline.results.charts import draw
from unit.pipeline.report_cases import EMPTY, HOUR, NOON, full, traffic

PNG = b"\x89PNG\r\n\x1a\n"


def size(picture: bytes) -> tuple[int, int]:
    assert picture.startswith(PNG)
    width, height = struct.unpack(">II", picture[16:24])
    return width, height


def test_each_part_has_its_picture() -> None:
    found = draw(full())

    names = ["ages", "destinations", "slices", "traffic", "waits"]
    assert sorted(found) == sorted([*names, *(f"{each}-dark" for each in names)])
    assert all(found[each] != found[f"{each}-dark"] for each in names)
    assert all(width == 1300 and height > 200 for width, height in map(size, found.values()))


def test_more_destinations_make_a_higher_picture_up_to_a_dozen_and_the_others() -> None:
    only = replace(full(), hours=(), ages=(), slices=())
    heights = [
        size(draw(replace(only, destinations=full(lines).destinations))["destinations"])[1]
        for lines in (2, 13, 400)
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


def test_a_year_has_no_more_objects_to_draw_than_a_day() -> None:
    """Each object costs milliseconds, and kilobytes."""
    day = full()
    hours = [traffic(NOON + n * HOUR, 2000, 1.5) for n in range(8760)]
    slices = [SliceCount(NOON + n * HOUR, HOUR, n) for n in range(8760)]
    year = replace(day, hours=hours, slices=slices)

    for picture in (charts._traffic, charts._waits, charts._slices):
        drawn = []
        for report in (day, year):
            axes = Figure().subplots()
            picture(report, axes)
            drawn.append(len(axes.get_children()))
        assert drawn[0] == drawn[1]


def test_bars_are_where_the_hours_are_and_deferrals_below() -> None:
    axes = Figure().subplots()
    charts._traffic(full(), axes)
    named = {each.get_label(): each for each in axes.collections}
    delivered, rejected, deferred = (
        named[each].get_paths()[1].get_extents() for each in ("delivered", "rejected", "deferred")
    )
    line = full().hours[1]

    assert (delivered.x0, delivered.x1) == tuple(dates.date2num([NOON + HOUR, NOON + 2 * HOUR]))
    assert (delivered.y0, delivered.y1) == (0, line.delivered)
    assert (rejected.y0, rejected.y1) == (line.delivered, line.delivered + line.rejected)
    assert (deferred.y0, deferred.y1) == (-line.deferred, 0)
    assert axes.get_ylim()[1] >= 2000
    assert named["rejected"].get_hatch() != named["deferred"].get_hatch()


def test_lines_break_at_what_the_lake_lacks_and_fall_to_0_without_mail() -> None:
    """The lake lacks the first two hours; of the fourth, no line says anything."""
    hours = [each for each in full().hours if each.hour != NOON + 3 * HOUR]
    axes = Figure().subplots()

    charts._traffic(replace(full(), hours=hours), axes)

    lines = {each.get_label(): list(each.get_ydata()) for each in axes.lines}
    assert all(map(isnan, lines["accepted"][:2]))
    assert lines["accepted"][2:5] == [2000, 0, 2000]
    assert lines["part of an hour"] == [2000, 2000]
    (shade,) = (each for each in axes.collections if each.get_label() == "not in the lake")
    extents = shade.get_paths()[0].get_extents()
    assert (extents.x0, extents.x1) == tuple(dates.date2num([NOON, NOON + 2 * HOUR]))
    opacities = [each[3] for each in axes.collections[0].get_facecolor()]
    assert opacities[:3] == [charts._PARTIAL, charts._PARTIAL, 1]


def test_the_picture_alone_names_queue_and_zone() -> None:
    axes = Figure().subplots()

    charts._traffic(full(), axes)

    title = axes.figure.get_suptitle()
    assert title.endswith("mail.outgoing, 2026-03-02 12:00 until 2026-03-03 12:00 UTC")
