"""A report: one page of HTML about a queue, from the results of several jobs. Pure.

The page has its pictures and its style in itself, and no script. What clients and servers wrote
(domains, words of replies) is text in it, never markup; the page's policy allows nothing else."""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

from postroad.domain.configuration.advice import ROWS_IN_SLICE, SliceCount
from postroad.domain.values.text import escaped
from postroad.pipeline.archive.planning import Coverage
from postroad.pipeline.results.lines import AgesLine, DestinationLine, TrafficLine

SHOWN = 12
"""Destinations in the table, the busiest first."""

MISSING = "–"

DARK = "-dark"
"""The end of a picture's name for screens with light ink on dark paper."""

PAGE = "index.html"
"""The name of the page."""


@dataclass(frozen=True, slots=True)
class QueueReport:
    """Content of a report. `total`: of the whole stretch; None where nothing happened in it.
    `ages`: of the mail that waited at `made_at`; `ages` and `slices` are None of a queue in a
    directory."""

    queue: str
    made_at: datetime
    coverage: Coverage
    total: TrafficLine | None
    hours: Sequence[TrafficLine]
    destinations: Sequence[DestinationLine]
    ages: Sequence[AgesLine] | None
    slices: Sequence[SliceCount] | None


@dataclass(frozen=True, slots=True)
class _Section:
    """A part of the page. `picture`: the name of the file without its end. `shown`: what stands
    with the picture; `empty`: the sentence where there is nothing to show."""

    title: str
    picture: str
    is_there: bool
    shown: str
    empty: str


def page(report: QueueReport, pictures: Mapping[str, bytes]) -> str:
    """Return the page. `pictures`: PNGs by the names of `charts.draw`."""
    first, before = map(_minute, report.coverage.stretch)
    notes = "".join(f"<li>{_text(each)}</li>" for each in report.coverage.sentences())
    sections = "".join(_section(each, pictures) for each in _sections(report))
    queue = _text(report.queue)
    short = _text(report.queue.rsplit("/", 1)[-1])
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{short}: report</title>\n<style>{_STYLE}</style></head>\n<body>\n"
        f"<header><h1>{short}</h1><p>{queue}, {first} until {before} UTC, "
        f"made {_minute(report.made_at)}</p></header>\n{_tiles(report.total)}\n"
        f"{f'<ul class=notes>{notes}</ul>' if notes else ''}\n{sections}</body></html>\n"
    )


_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_STYLE = """
:root{color-scheme:light dark;--ink:#1d2733;--soft:#5b6673;--page:#f4f5f7;--paper:#fff;
--rule:#dde1e6;--note:#fff6dd;--bad:#fdecea}
@media screen and (prefers-color-scheme:dark){:root{--ink:#dfe5ec;--soft:#9aa6b3;--page:#0d1117;
--paper:#161c24;--rule:#313b47;--note:#3a3118;--bad:#44201f}}
@media print{body{max-width:none;padding:0}section,.tile{break-inside:avoid}}
*{box-sizing:border-box}
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--page);margin:0 auto;
max-width:1200px;padding:24px}
h1{font-size:26px;margin:0}header p{margin:2px 0 16px;color:var(--soft);overflow-wrap:anywhere}
section{background:var(--paper);border:1px solid var(--rule);border-radius:8px;
padding:16px 20px;margin:16px 0}
h2{font-size:17px;margin:0 0 8px}img{display:block;width:100%;height:auto}
p{margin:6px 0}.aside{color:var(--soft);font-size:13px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(120px,1fr));gap:12px}
.tile{background:var(--paper);border:1px solid var(--rule);border-radius:8px;padding:10px 14px}
.tile b{display:block;font-size:24px;font-weight:600}.tile span{color:var(--soft);font-size:13px}
.notes{background:var(--note);border:1px solid var(--rule);border-radius:8px;padding:10px 30px;
margin:16px 0}.table{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13px}
th{text-align:left;color:var(--soft);font-weight:600;border-bottom:2px solid var(--rule)}
th,td{padding:5px 10px 5px 0;vertical-align:top}td{border-bottom:1px solid var(--rule);
overflow-wrap:anywhere}td.n,th.n{text-align:right;white-space:nowrap}
tr.bad td{background:var(--bad)}
"""


def _sections(report: QueueReport) -> Iterable[_Section]:
    total = report.total
    yield _Section(
        title="Traffic by hour and outcome",
        picture="traffic",
        is_there=bool(report.hours),
        shown=_aside("Recipients, not mails, so that the numbers add up."),
        empty="The lake has nothing that happened in this time.",
    )
    yield _Section(
        title="Time to delivery",
        picture="waits",
        is_there=total is not None and total.p50 is not None,
        shown=_aside("From acceptance to delivery, of the recipients delivered in each hour."),
        empty="Nothing was delivered in this time.",
    )
    yield _Section(
        title="Destinations",
        picture="destinations",
        is_there=bool(report.destinations),
        shown=_destinations(report.destinations),
        empty="No destination was tried in this time.",
    )
    yield _Section(
        title="Waiting mail by domain and age",
        picture="ages",
        is_there=bool(report.ages),
        shown=_aside(f"Mails that waited at {_minute(report.made_at)} UTC."),
        empty="No mail waits."
        if report.ages is not None
        else "<code>postroad ages</code> counts the mail that waits in a directory.",
    )
    if report.slices is None:
        return
    yield _Section(
        title="Mails a slice",
        picture="slices",
        is_there=bool(report.slices),
        shown=_aside(
            f"The busiest slice should have about {ROWS_IN_SLICE:,} mails: "
            "<code>postroad pipeline advise</code> names the settings."
        ),
        empty="No slice of this time is in the lake.",
    )


def _section(section: _Section, pictures: Mapping[str, bytes]) -> str:
    picture = pictures.get(section.picture) if section.is_there else None
    image = ""
    if picture is not None:
        image = f'<img alt="{section.title}" src="{_data(picture)}">'
        if (dark := pictures.get(section.picture + DARK)) is not None:
            media = "screen and (prefers-color-scheme:dark)"
            source = f'<source media="{media}" srcset="{_data(dark)}">'
            image = f"<picture>{source}{image}</picture>"
    body = image + section.shown if section.is_there else f"<p>{section.empty}</p>"
    return f"<section><h2>{section.title}</h2>{body}</section>\n"


def _data(picture: bytes) -> str:
    return f"data:image/png;base64,{b64encode(picture).decode('ascii')}"


def _tiles(total: TrafficLine | None) -> str:
    if total is None:
        return ""
    counts = ("accepted", "delivered", "deferred", "rejected", "removed")
    tiles = [(f"{getattr(total, name):,}", name) for name in counts]
    tiles += [
        (MISSING if seconds is None else duration_text(seconds), name)
        for seconds, name in ((total.p50, "median time"), (total.p99, "99 % within"))
    ]
    inside = "".join(
        f"<div class=tile><b>{value}</b><span>{name}</span></div>" for value, name in tiles
    )
    return f"<div class=tiles>{inside}</div>"


def duration_text(seconds: float) -> str:
    """Return a duration as people read it: two digits, the unit that suits.

    >>> duration_text(0.42), duration_text(75), duration_text(7200)
    ('0.42 s', '1.2 min', '2 h')
    """
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            number = seconds / size
            return f"{number:.2g} {unit}" if number < 10 else f"{number:.0f} {unit}"
    return f"{seconds:.2g} s"


_DESTINATION_HEAD = (
    *("to", "site", "recipients", "delivered", "deferred", "failed", "recovered"),
    *("commonest reasons", "anomalies"),
)


def _destinations(lines: Sequence[DestinationLine]) -> str:
    rows = [(_destination(each), bool(each.anomalies)) for each in lines[:SHOWN]]
    more = len(lines) - SHOWN
    rest = _aside(f"and {more:,} more: <code>postroad pipeline destinations</code> lists all.")
    return _table(_DESTINATION_HEAD, rows, numbers=range(2, 7)) + (rest if more > 0 else "")


def _destination(line: DestinationLine) -> tuple[str, ...]:
    domain, site, total, delivered, deferred, failed, recovered, _, reasons, anomalies = (
        line.cells()
    )
    return (domain, site, f"{int(total):,}", delivered, deferred, failed, recovered, reasons,
            anomalies)  # fmt: skip


_Row = tuple[Sequence[str], bool]
"""Cells, and whether the row stands out."""


def _table(head: Sequence[str], rows: Iterable[_Row], numbers: Iterable[int]) -> str:
    right = frozenset(numbers)

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if place in right else ''}>{_text(value)}</{tag}>"
            for place, value in enumerate(values)
        )

    body = "".join(
        f"<tr{' class=bad' if stands_out else ''}>{cells('td', values)}</tr>"
        for values, stands_out in rows
    )
    return f"<div class=table><table><tr>{cells('th', head)}</tr>{body}</table></div>"


def _text(text: str) -> str:
    return escape(escaped(text))


def _aside(markup: str) -> str:
    return f"<p class=aside>{markup}</p>"


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"
