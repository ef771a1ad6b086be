"""The pictures of a report, drawn by matplotlib."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from io import BytesIO
from typing import Any

from matplotlib import dates, rc_context
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from postroad.domain.configuration.advice import ROWS_IN_SLICE
from postroad.domain.values.text import escaped
from postroad.pipeline.results.report import QueueReport, duration_text

MAX_BARS = 12
"""Domains or destinations in a picture, those with most mail first."""

MAX_NAME = 40

MAX_EDGED = 400
"""Bars in a picture that have edges."""

COLORS = {
    "delivered": "#2a9d6f",
    "deferred": "#e9a23b",
    "rejected": "#c8403a",
    "failed": "#c8403a",
    "removed": "#8b95a1",
    "accepted": "#1d2733",
}
_STYLE = {
    "font.size": 10, "axes.grid": True, "axes.spines.top": False, "axes.spines.right": False,
    "grid.alpha": 0.25, "axes.axisbelow": True, "legend.frameon": False,
    "text.parse_math": False,  # a domain may have the signs of formulas
}  # fmt: skip
_SHARES = {"p50": ("half", "#2f6fb0"), "p95": ("95 %", "#7a5ea8"), "p99": ("99 %", "#c8403a")}
_TIMES = (0.1, 1, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400)


def draw(report: QueueReport) -> Mapping[str, bytes]:
    """Return the pictures of what a report has, as PNGs by their names without the end."""
    drawn = {
        "traffic": (_traffic, bool(report.hours)),
        "waits": (_waits, any(each.p50 is not None for each in report.hours)),
        "destinations": (_destinations, bool(report.destinations)),
        "ages": (_ages, bool(report.ages)),
        "slices": (_slices, bool(report.slices)),
    }
    with rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of dead letters that no font has
        return {
            name: _png(report, picture) for name, (picture, is_there) in drawn.items() if is_there
        }


_Picture = Callable[[QueueReport, Any], float]
"""Draws into axes; returns the height of the picture in inches."""


def _png(report: QueueReport, picture: _Picture) -> bytes:
    figure = Figure(figsize=(10, 3.4), dpi=130, layout="constrained")
    figure.set_figheight(picture(report, figure.subplots()))
    file = BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _traffic(report: QueueReport, axes: Any) -> float:
    starts = [each.hour for each in report.hours if each.hour is not None]
    spans = [(each, each + timedelta(hours=1)) for each in starts]
    below = [0] * len(starts)
    for name in ("delivered", "deferred", "rejected", "removed"):
        counts = [getattr(each, name) for each in report.hours]
        _bars(axes, spans, counts, below, color=COLORS[name], label=name)
        below = [one + other for one, other in zip(below, counts, strict=True)]
    middles = [each + timedelta(minutes=30) for each in starts]
    axes.plot(
        middles, [each.accepted for each in report.hours], color=COLORS["accepted"], marker=".",
        linewidth=1.2, label="accepted",
    )  # fmt: skip
    axes.set_ylabel("recipients an hour")
    _along_time(axes, report)
    _legend(axes, 5)
    return 3.4


def _waits(report: QueueReport, axes: Any) -> float:
    hours = [each for each in report.hours if each.p50 is not None]
    middles = [each.hour and each.hour + timedelta(minutes=30) for each in hours]
    for name, (label, color) in _SHARES.items():
        seconds = [max(getattr(each, name), _TIMES[0]) for each in hours]
        axes.plot(middles, seconds, marker=".", color=color, label=f"{label} within")
    axes.set_yscale("log")
    axes.set_yticks(_TIMES, [duration_text(each) for each in _TIMES])
    axes.minorticks_off()
    most = max(each.p99 or 0 for each in hours)
    axes.set_ylim(_TIMES[0] * 0.8, max(2 * most, 20))
    _along_time(axes, report)
    _legend(axes, 3)
    return 3.0


def _destinations(report: QueueReport, axes: Any) -> float:
    lines = report.destinations[:MAX_BARS][::-1]
    names = _distinct([f"{each.domain or '-'} at {each.site or '-'}" for each in lines])
    left = [0] * len(lines)
    for name in ("delivered", "deferred", "failed"):
        counts = [getattr(each.outcomes, name) for each in lines]
        axes.barh(names, counts, left=left, color=COLORS[name], label=name)
        left = [one + other for one, other in zip(left, counts, strict=True)]
    axes.set_xlabel("recipients")
    axes.grid(visible=False, axis="y")
    _legend(axes, 3)
    return 1.3 + 0.3 * len(lines)


def _ages(report: QueueReport, axes: Any) -> float:
    lines = (report.ages or ())[:MAX_BARS]
    counts = [list(each.ages.values()) for each in lines]
    shades = [[(each + 0.0) ** 0.5 for each in row] for row in counts]
    axes.imshow(shades, cmap="Oranges", aspect="auto", vmin=0)
    most = max(max(row) for row in shades)
    for y, row in enumerate(counts):
        for x, count in enumerate(row):
            if count:
                color = "white" if shades[y][x] > most * 0.6 else "#1d2733"
                axes.text(x, y, f"{count:,}", ha="center", va="center", color=color)
    axes.set_yticks(range(len(lines)), _distinct([each.domain or "-" for each in lines]))
    limits = list(lines[0].ages)
    names = [name if name == "older" else f"< {name}" for name in limits]
    axes.set_xticks(range(len(limits)), names)
    axes.grid(visible=False)
    return 1.0 + 0.34 * len(lines)


def _slices(report: QueueReport, axes: Any) -> float:
    slices = report.slices or ()
    spans = [(each.start, each.start + each.window) for each in slices]
    _bars(axes, spans, [each.rows for each in slices], [0] * len(slices), color="#2f6fb0")
    axes.axhline(
        ROWS_IN_SLICE, color=COLORS["rejected"], linestyle="--", linewidth=1.2,
        label=f"target of the busiest: {ROWS_IN_SLICE:,}",
    )  # fmt: skip
    axes.set_ylabel("mails a slice")
    _along_time(axes, report)
    _legend(axes, 1)
    return 3.0


def _bars(
    axes: Any, spans: Sequence[tuple[datetime, datetime]], heights: Sequence[int],
    below: Sequence[int], color: str, label: str | None = None,
) -> None:  # fmt: skip
    """Draw bars as one object: a year has thousands of them."""
    lefts, rights = (dates.date2num(each) for each in zip(*spans, strict=True))
    corners = [
        ((left, low), (left, low + height), (right, low + height), (right, low))
        for left, right, low, height in zip(lefts, rights, below, heights, strict=True)
    ]
    edge = 0.4 if len(corners) <= MAX_EDGED else 0.0  # white edges would hide narrow bars
    bars = PolyCollection(
        corners, facecolors=color, edgecolors="white", linewidths=edge, label=label
    )
    axes.xaxis_date()
    axes.add_collection(bars)
    axes.autoscale_view()


def _along_time(axes: Any, report: QueueReport) -> None:
    axes.set_xlim(*report.coverage.stretch)
    axes.set_ylim(bottom=None if axes.get_yscale() == "log" else 0)
    locator = dates.AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))


def _legend(axes: Any, columns: int) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2)


def _distinct(names: Sequence[str]) -> list[str]:
    """Return names that can be read, each different from the others: two bars of one name would lie
    upon each other."""
    found: list[str] = []
    for each in map(escaped, names):
        name = each if len(each) <= MAX_NAME else each[: MAX_NAME - 1] + "…"
        while name in found:
            name += " "
        found.append(name)
    return found
