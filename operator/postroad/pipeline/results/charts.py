"""The pictures of a report, drawn by matplotlib."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from io import BytesIO
from math import nan
from typing import Any

from matplotlib import dates, rc_context, rcParams
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba, to_rgba_array
from matplotlib.figure import Figure

from postroad.domain.configuration.advice import ROWS_IN_SLICE
from postroad.domain.queues.entries import slice_of
from postroad.domain.values.text import escaped
from postroad.pipeline.archive.planning import Coverage
from postroad.pipeline.results.lines import Tally
from postroad.pipeline.results.report import DARK, QueueReport, duration_text

MAX_BARS = 12
"""Domains or destinations in a picture, those with most mail first."""

_HOUR = timedelta(hours=1)

MAX_NAME = 40

MAX_EDGED = 400
"""Bars in a picture that have edges."""

COLORS = {
    "delivered": "#2a9d6f",
    "deferred": "#e9a23b",
    "rejected": "#c8403a",
    "failed": "#c8403a",
    "removed": "#8b95a1",
}
_HATCHES = {"deferred": "\\\\", "rejected": "////", "failed": "////", "removed": "...."}
"""Outcomes have a hatch too: for print, and for eyes that see no colour."""

_PARTIAL = 0.45
"""Opacity of an hour of which the lake, or the stretch, has a part."""

_STYLE = {
    "font.size": 10, "axes.grid": True, "axes.spines.top": False, "axes.spines.right": False,
    "grid.alpha": 0.25, "axes.axisbelow": True, "legend.frameon": False, "hatch.linewidth": 0.6,
    "text.parse_math": False,  # a domain may have the signs of formulas
    "figure.titleweight": "bold", "grid.color": "#8b95a1",
}  # fmt: skip
_SCHEMES = {"": ("#1d2733", "#ffffff"), DARK: ("#dfe5ec", "#161c24")}
"""Ink and paper, by the end of a picture's name."""

_INKED = (
    *("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"),
    "lines.color",
)
_SHARES = {
    "p50": ("half", "#3f86cc", "o", "-"),
    "p95": ("95 %", "#9277c9", "s", "--"),
    "p99": ("99 %", "#c8403a", "^", ":"),
}
_TIMES = (0.1, 1, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400)


def draw(report: QueueReport) -> Mapping[str, bytes]:
    """Return the pictures of what a report has, as PNGs by their names without the end: each light,
    and dark under the name that ends so."""
    drawn = {
        "traffic": (_traffic, bool(report.hours)),
        "waits": (_waits, any(each.p50 is not None for each in report.hours)),
        "destinations": (_destinations, bool(report.destinations)),
        "ages": (_ages, bool(report.ages)),
        "slices": (_slices, bool(report.slices)),
    }
    found = {}
    for end, (ink, paper) in _SCHEMES.items():
        papers = dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), paper)
        with rc_context(_STYLE | dict.fromkeys(_INKED, ink) | papers), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of dead letters that no font has
            for name, (picture, is_there) in drawn.items():
                if is_there:
                    found[name + end] = _png(report, picture)
    return found


_Picture = Callable[[QueueReport, Any], float]
"""Draws into axes; returns the height of the picture in inches."""


def _png(report: QueueReport, picture: _Picture) -> bytes:
    figure = Figure(figsize=(10, 3.4), dpi=130, layout="constrained")
    figure.set_figheight(picture(report, figure.subplots()))
    file = BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _traffic(report: QueueReport, axes: Any) -> float:
    hours = [(each.hour, each) for each in report.hours if each.hour is not None]
    spans = [(start, start + _HOUR) for start, _ in hours]
    opacity = [_PARTIAL if _is_partial(report, start) else 1.0 for start, _ in hours]
    below = [0] * len(hours)
    for name in ("delivered", "rejected", "removed"):
        counts = [getattr(each, name) for _, each in hours]
        _bars(axes, spans, counts, below, color=COLORS[name], label=name, opacity=opacity)
        below = [one + other for one, other in zip(below, counts, strict=True)]
    # A recipient may be deferred many times before one of the others: below, not upon them.
    deferred = [-each.deferred for _, each in hours]
    zeros = [0] * len(hours)
    _bars(axes, spans, deferred, zeros, color=COLORS["deferred"], label="deferred", opacity=opacity)
    _line(axes, report, {start: each.accepted for start, each in hours})
    axes.axhline(0, color=rcParams["axes.edgecolor"], linewidth=0.8)
    axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):,.0f}")
    axes.set_ylabel("recipients an hour")
    _along_time(axes, report, "Traffic by hour")
    _legend(axes, 7)
    return 3.8


def _line(axes: Any, report: QueueReport, accepted: Mapping[datetime, int]) -> None:
    """Draw a line that breaks where the lake lacks an hour; an hour of which it has a part is a
    mark beside it, and one without mail is 0."""
    known = {each: accepted.get(each, 0) for each in _hours(report.coverage)}
    whole = [nan if _is_partial(report, each) else count for each, count in known.items()]
    parts = {each: n for each, n in accepted.items() if _is_partial(report, each)}
    ink = rcParams["lines.color"]
    axes.plot(
        _middles(report, known), whole, marker=".", color=ink, linewidth=1.2, label="accepted"
    )
    axes.plot(
        _middles(report, parts), [*parts.values()], marker="o", fillstyle="none", linestyle="none",
        color=ink, label="part of an hour",
    )  # fmt: skip


def _hours(coverage: Coverage) -> list[datetime]:
    first, before = coverage.stretch
    start = slice_of(first, _HOUR)
    return [start + n * _HOUR for n in range(-((start - before) // _HOUR))]


def _middles(report: QueueReport, hours: Iterable[datetime]) -> list[datetime]:
    """Return the middle of each hour, or of what the stretch has of it."""
    first, before = report.coverage.stretch
    spans = ((max(first, each), min(before, each + _HOUR)) for each in hours)
    return [start + (end - start) / 2 for start, end in spans]


def _is_partial(report: QueueReport, hour: datetime) -> bool:
    """True if the stretch, or what the lake has of it, has not all of an hour."""
    (first, before), end = report.coverage.stretch, hour + _HOUR
    lacks = any(each.first < end and hour < each.before for each in report.coverage.lacking)
    return lacks or hour < first or before < end


def _waits(report: QueueReport, axes: Any) -> float:
    hours = {each.hour: each for each in report.hours if each.p50 is not None}
    every = _hours(report.coverage)
    for name, (label, color, marker, style) in _SHARES.items():
        seconds = [
            nan if each not in hours else max(getattr(hours[each], name), _TIMES[0])
            for each in every
        ]
        axes.plot(
            _middles(report, every), seconds, marker=marker, markersize=4, linestyle=style,
            color=color, label=f"{label} within",
        )  # fmt: skip
    axes.set_yscale("log")
    axes.set_yticks(_TIMES, [duration_text(each) for each in _TIMES])
    axes.minorticks_off()
    most = max(each.p99 or 0 for each in hours.values())
    axes.set_ylim(_TIMES[0] * 0.8, max(2 * most, 20))
    _along_time(axes, report, "Time from acceptance to delivery")
    _legend(axes, 4)
    return 3.4


def _destinations(report: QueueReport, axes: Any) -> float:
    shown, more = report.destinations[:MAX_BARS], report.destinations[MAX_BARS:]
    named = [(f"{each.domain or '-'} at {each.site or '-'}", each.outcomes) for each in shown]
    if more:
        kinds = ("delivered", "deferred", "failed")
        sums = {kind: sum(getattr(each.outcomes, kind) for each in more) for kind in kinds}
        named.append((f"{len(more):,} others", Tally(**sums)))
    names, tallies = _distinct([name for name, _ in named]), [each for _, each in named]
    left = [0] * len(named)
    for name in ("delivered", "deferred", "failed"):
        counts = [getattr(each, name) for each in tallies]
        axes.barh(
            names, counts, left=left, color=COLORS[name], label=name, hatch=_HATCHES.get(name),
            edgecolor=rcParams["axes.facecolor"], linewidth=0.4,
        )  # fmt: skip
        left = [one + other for one, other in zip(left, counts, strict=True)]
    for place, each in enumerate(tallies):
        if each.total:
            text = f" {each.delivered / each.total:.1%} of {each.total:,}"
            axes.text(each.total, place, text, va="center", fontsize=8.5)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(each.total for each in tallies) or 1)
    axes.set_xlabel("recipients; how many of them were delivered")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(visible=False, axis="y")
    _titled(axes, report, "Destinations")
    _legend(axes, 3)
    return 1.6 + 0.3 * len(named)


def _ages(report: QueueReport, axes: Any) -> float:
    lines = (report.ages or ())[:MAX_BARS]
    counts = [list(each.ages.values()) for each in lines]
    shades = [[(each or nan) ** 0.5 for each in row] for row in counts]
    axes.imshow(shades, cmap="Oranges", aspect="auto", vmin=0)
    most = max(max(row) for row in counts) ** 0.5
    for y, row in enumerate(counts):
        for x, count in enumerate(row):
            if count:
                color = "white" if shades[y][x] > most * 0.6 else "#1d2733"
                axes.text(x, y, f"{count:,}", ha="center", va="center", color=color)
    axes.set_yticks(range(len(lines)), _distinct([each.domain or "-" for each in lines]))
    limits = list(lines[0].ages)
    names = [name if name == "older" else f"< {name}" for name in limits]
    axes.set_xticks(range(len(limits)), names, fontsize=8.5)
    axes.grid(visible=False)
    _titled(axes, report, "Waiting mail by domain and age", report.made_at)
    return 1.3 + 0.34 * len(lines)


def _slices(report: QueueReport, axes: Any) -> float:
    slices = report.slices or ()
    spans = [(each.start, each.start + each.window) for each in slices]
    _bars(axes, spans, [each.rows for each in slices], [0] * len(slices), color="#3f86cc")
    axes.axhline(
        ROWS_IN_SLICE, color=COLORS["rejected"], linestyle="--", linewidth=1.2,
        label=f"target of the busiest: {ROWS_IN_SLICE:,}",
    )  # fmt: skip
    axes.set_ylabel("mails a slice")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    _along_time(axes, report, "Mails a slice")
    _legend(axes, 2)
    return 3.3


def _bars(
    axes: Any, spans: Sequence[tuple[datetime, datetime]], heights: Sequence[int],
    below: Sequence[int], color: str, label: str | None = None,
    opacity: Sequence[float] | None = None,
) -> None:  # fmt: skip
    """Draw bars as one object: a year has thousands of them."""
    lefts, rights = (dates.date2num(each) for each in zip(*spans, strict=True))
    corners = [
        ((left, low), (left, low + height), (right, low + height), (right, low))
        for left, right, low, height in zip(lefts, rights, below, heights, strict=True)
    ]
    is_wide = len(corners) <= MAX_EDGED  # edges and hatches would hide narrow bars
    bars = PolyCollection(
        corners, facecolors=to_rgba_array(color, opacity or 1.0), label=label,
        edgecolors=rcParams["axes.facecolor"], linewidths=0.4 if is_wide else 0.0,
        hatch=_HATCHES.get(label or "") if is_wide else None,
    )  # fmt: skip
    axes.xaxis_date()
    axes.add_collection(bars)
    axes.autoscale_view()


def _along_time(axes: Any, report: QueueReport, title: str) -> None:
    axes.set_xlim(*report.coverage.stretch)
    is_above_zero = axes.get_yscale() == "linear" and axes.get_ylim()[1] > 0 <= axes.dataLim.y0
    axes.set_ylim(bottom=0 if is_above_zero else None)
    _lacking(axes, report)
    locator = dates.AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC))
    _titled(axes, report, title)


def _lacking(axes: Any, report: QueueReport) -> None:
    """Shade what the lake lacks: nothing is known of it, where a white hour had no mail."""
    spans = [dates.date2num(each) for each in report.coverage.lacking]
    corners = [((a, 0), (a, 1), (b, 1), (b, 0)) for a, b in spans]
    axes.add_collection(
        PolyCollection(
            corners, transform=axes.get_xaxis_transform(), facecolors=to_rgba("#8b95a1", 0.18),
            edgecolors=to_rgba("#8b95a1", 0.6), linewidths=0, hatch="xx", zorder=0.5,
            label="not in the lake" if spans else None,
        ),
        autolim=False,
    )  # fmt: skip


def _titled(axes: Any, report: QueueReport, title: str, at: datetime | None = None) -> None:
    """Say what a picture shows, of which queue and when: it may be sent without the page."""
    first, before = report.coverage.stretch
    when = f"{first:%Y-%m-%d %H:%M} until {before:%Y-%m-%d %H:%M}"
    when = when if at is None else f"at {at:%Y-%m-%d %H:%M}"
    (queue,) = _distinct([report.queue])
    axes.figure.suptitle(f"{title}: {queue}, {when} UTC", x=0.01, ha="left", fontsize=11)


def _legend(axes: Any, columns: int) -> None:
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2,
        columnspacing=1.2, handlelength=1.5, fontsize=9,
    )  # fmt: skip


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
