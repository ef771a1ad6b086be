"""Results of jobs: one typed line for each thing they found, as text and as JSON; which replies of
a destination are anomalies beside the days before; advice about the view's configuration. Pure.

Window and buckets are the decision of `domain.configuration.advice`, over a longer history than the
view has. The pace follows from the window: an update every few slices. Source: ADR 0047."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from math import floor, log10, sqrt
from statistics import median
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from postroad.domain.configuration.advice import Seen, SliceCount, advise
from postroad.domain.configuration.rules import FIELD_NAMES, ViewConfiguration, value_of
from postroad.domain.delivery.attempts import OutcomeCount
from postroad.domain.queues.selection import AGES, age_name
from postroad.domain.values.instants import format_duration, rfc3339
from postroad.pipeline.archive.planning import Coverage

HISTORY = timedelta(days=7)
"""Time over which replies are compared."""

MIN_REPLIES = 20
"""Outcomes, now and before, from which on shares are compared."""

FACTOR = 2
DISTANCE = 4
"""A share is an anomaly where it has doubled, or what is beside it has halved, and where it lies
further off than chance takes one of ten thousand destinations: by four standard errors of the
difference of two shares."""

REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Tally:
    delivered: int = 0
    deferred: int = 0
    failed: int = 0

    @property
    def refused(self) -> int:
        return self.deferred + self.failed

    @property
    def total(self) -> int:
        return self.delivered + self.refused


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A share of the outcomes that has grown: of all refusals, or of one class."""

    what: str
    share: float
    share_before: float

    def __str__(self) -> str:
        return f"{self.what} {self.share:.1%} (before: {self.share_before:.1%})"


def anomalies(
    now: Tally, classes: Mapping[str, int], before: Tally, classes_before: Mapping[str, int]
) -> tuple[Anomaly, ...]:
    """Return what has grown so, the refusals as a whole first. Nothing is
    compared with fewer than 20 outcomes on either side."""
    if min(now.total, before.total) < MIN_REPLIES:
        return ()
    counts = {REFUSED: (now.refused, before.refused)}
    counts |= {each: (classes[each], classes_before.get(each, 0)) for each in sorted(classes)}
    return tuple(
        Anomaly(what, count / now.total, count_before / before.total)
        for what, (count, count_before) in counts.items()
        if _has_grown(count, now.total, count_before, before.total)
    )


def _has_grown(count: int, total: int, count_before: int, total_before: int) -> bool:
    share, share_before = count / total, count_before / total_before
    pooled = (count + count_before) / (total + total_before)
    error = sqrt(pooled * (1 - pooled) * (1 / total + 1 / total_before))
    if share - share_before <= DISTANCE * error:
        return False
    return share >= FACTOR * share_before or (1 - share_before) >= FACTOR * (1 - share)


MISSING = "-"

TRAFFIC_PARTS = ("hour", "sender_domain", "domain", "site")
"""Keys of traffic: fields of its lines."""


class Line(Protocol):
    """One line of a result. `HEAD` names its cells."""

    HEAD: ClassVar[tuple[str, ...]]

    def cells(self) -> tuple[str, ...]: ...


L = TypeVar("L", bound=Line)


@dataclass(frozen=True, slots=True)
class JobResult(Generic[L]):
    """Finding of a job. `findings`: how many lines name what an administrator should look at; None:
    of a job that looks for nothing."""

    job: str
    coverage: Coverage
    lines: Sequence[L]
    findings: int | None = None

    def documents(self) -> Iterator[dict[str, Any]]:
        """Yield the result as JSON: what it is about, then its lines."""
        stretch = self.coverage.stretch
        lacking = [_between(*each) for each in self.coverage.lacking]
        as_of = rfc3339(self.coverage.as_of)
        yield {"job": self.job, **_between(*stretch), "lacking": lacking, "as_of": as_of}
        for line in self.lines:
            yield _document(line)

    def text(self) -> str:
        """Return the lines as a table, numbers to the right, without the columns in which no line
        has anything; empty where there is no line."""
        if not self.lines:
            return ""
        found = zip(self.lines[0].HEAD, *(line.cells() for line in self.lines), strict=True)
        columns = [column for column in found if set(column[1:]) != {MISSING}]
        rows = zip(*columns, strict=True)
        widths = [max(map(len, column)) for column in columns]
        numeric = [all(map(_is_number, column[1:])) for column in columns]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(row, widths, numeric, strict=True)
            ).rstrip()
            for row in rows
        )


@dataclass(frozen=True, slots=True)
class TrafficLine:
    """Events in one hour to recipients of one domain, by the sender's domain and the site.

    Recipients are counted, not mails, so that the numbers add up: what was accepted is delivered,
    rejected or removed at last. `rejected`: refused for good, or given up. `site` is empty where no
    site had a part in it, as in acceptance. `attempts` and `bytes` count a mail once for each
    domain and site: `bytes` those of mails that were delivered. Seconds are from acceptance to
    delivery; None without one. A part that was not asked about is None."""

    HEAD: ClassVar[tuple[str, ...]] = (
        "hour", "from", "to", "site", "accepted", "delivered", "deferred", "rejected", "removed",
        "attempts", "bytes", "p50", "p95", "p99",
    )  # fmt: skip

    hour: datetime | None
    sender_domain: str | None
    domain: str | None
    site: str | None
    accepted: int
    delivered: int
    deferred: int
    rejected: int
    removed: int
    attempts: int
    bytes: int
    p50: float | None
    p95: float | None
    p99: float | None

    def cells(self) -> tuple[str, ...]:
        """A line by the hour takes 80 columns: attempts and the 95 % are for lines by site."""
        names = (self.sender_domain, self.domain, self.site)
        counts = (self.accepted, self.delivered, self.deferred, self.rejected, self.removed)
        has_site = self.site is not None
        return (
            MISSING if self.hour is None else f"{self.hour:%m-%d %H:%M}",
            *(each or MISSING for each in names),
            *map(str, counts),
            str(self.attempts) if has_site else MISSING,
            _size(self.bytes),
            _seconds(self.p50),
            _seconds(self.p95 if has_site else None),
            _seconds(self.p99),
        )


def _size(count: float) -> str:
    """Return bytes with three digits.

    >>> _size(999), _size(38_838_293_122)
    ('999', '38.8G')
    """
    for unit in ("", "k", "M", "G", "T"):
        if count < 999.5 or unit == "T":
            break
        count /= 1000
    return f"{count:.3g}{unit}" if unit else str(count)


def _seconds(seconds: float | None) -> str:
    """Return a duration with two digits.

    >>> _seconds(1.26), _seconds(61), _seconds(7200), _seconds(None)
    ('1.3s', '1m', '2h', '-')
    """
    if seconds is None:
        return MISSING
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if (number := seconds / size) >= 1:
            return f"{number:.2g}{unit}" if number < 10 else f"{number:.0f}{unit}"
    return f"{seconds:.2g}s"


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """Number of recipients that were refused with these words."""

    reason: str
    code: int
    words: str
    count: int

    def __str__(self) -> str:
        words = f" {self.code} {self.words}".rstrip() if self.code else f" {self.words}".rstrip()
        return f"{self.count} {self.reason}:{words}" if words else f"{self.count} {self.reason}"


@dataclass(frozen=True, slots=True)
class DestinationLine:
    """Answers of one site about the recipients of one domain. `outcomes` counts recipients;
    `classes` the refusals among them, by class. `deferred_mails`: those of the domain that this
    site was the first to defer; `recovered`: those of them that were delivered later, as far as the
    lake knows."""

    HEAD: ClassVar[tuple[str, ...]] = (
        "to", "site", "outcomes", "delivered", "deferred", "failed", "recovered", "classes",
        "commonest reasons", "anomalies",
    )  # fmt: skip

    domain: str
    site: str
    outcomes: Tally
    classes: Mapping[str, int]
    reasons: tuple[ReasonCount, ...]
    deferred_mails: int
    recovered: int
    anomalies: tuple[Anomaly, ...]

    def cells(self) -> tuple[str, ...]:
        tally, mails = self.outcomes, self.deferred_mails
        rates = (tally.delivered, tally.deferred, tally.failed)
        by_frequency = sorted(self.classes.items(), key=lambda each: (-each[1], each[0]))
        return (
            self.domain or MISSING,
            self.site or MISSING,
            str(tally.total),
            *(f"{each / tally.total:.1%}" if tally.total else MISSING for each in rates),
            f"{self.recovered} of {mails}" if mails else MISSING,
            ", ".join(f"{name} {count}" for name, count in by_frequency) or MISSING,
            "; ".join(map(str, self.reasons)) or MISSING,
            "; ".join(map(str, self.anomalies)) or MISSING,
        )


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One entry of a mail, and what came of it. The addresses are as the lake keeps them; None: it
    has none, or has forgotten this one."""

    HEAD: ClassVar[tuple[str, ...]] = (
        "mail", "queued", "from", "to", "bytes", "attempt", "state", "ended", "s", "outcomes",
    )  # fmt: skip

    mail_id: str
    enqueue_id: str
    sender: str | None
    sender_domain: str
    recipients: tuple[str | None, ...]
    domains: tuple[str, ...]
    size_bytes: int
    attempt: int
    accepted_at: datetime
    enqueued_at: datetime
    due_at: datetime | None
    state: str
    delivered_at: datetime | None
    ended_at: datetime | None
    successor: str | None
    seconds: float | None
    outcomes: tuple[OutcomeCount, ...]

    def cells(self) -> tuple[str, ...]:
        to = self.recipients if any(self.recipients) else self.domains
        return (
            self.mail_id,
            _moment(self.enqueued_at),
            self.sender or self.sender_domain or "<>",
            ", ".join(each or MISSING for each in to),
            str(self.size_bytes),
            str(self.attempt),
            self.state,
            _moment(self.delivered_at or self.ended_at),
            MISSING if self.seconds is None else f"{self.seconds:.1f}",
            "; ".join(map(_outcome_text, self.outcomes)) or MISSING,
        )


@dataclass(frozen=True, slots=True)
class AgesLine:
    """Number of waiting mails for one domain, each under the first limit that its age is below."""

    HEAD: ClassVar[tuple[str, ...]] = ("domain", "total", *map(age_name, AGES))

    domain: str
    total: int
    ages: Mapping[str, int]

    def cells(self) -> tuple[str, ...]:
        return (self.domain or MISSING, str(self.total), *map(str, self.ages.values()))


def _outcome_text(count: OutcomeCount) -> str:
    place = " at ".join(each for each in (count.domain, count.site) if each)
    reply = " ".join(
        str(each) for each in (count.code, count.reason and count.reason.value, count.words) if each
    )
    return " ".join(each for each in (str(count.count), count.kind.value, place, reply) if each)


def _document(line: Any) -> dict[str, Any]:
    return {each.name: _value(getattr(line, each.name)) for each in fields(line)}


def _value(value: Any) -> Any:
    if is_dataclass(value):
        return _document(value)
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, tuple):
        return [_value(each) for each in value]
    return value


def _between(first: datetime, before: datetime) -> dict[str, Any]:
    return {"first": rfc3339(first), "before": rfc3339(before)}


def _moment(moment: datetime | None) -> str:
    return MISSING if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_number(cell: str) -> bool:
    return cell == MISSING or cell.rstrip("%kMGTsmhd").replace(".", "", 1).isdigit()


MIN_UPDATES = 0.5
MAX_UPDATES = 10
"""Updates of browse start while as many mails end as the median slice has: between them, a pace is
left as it is. With more, slices are checked in vain that have not drained; with fewer, readers go
through slices that have."""


@dataclass(frozen=True, slots=True)
class AdviceLine:
    """Advice for one field of the configuration, and why."""

    HEAD: ClassVar[tuple[str, ...]] = ("field", "present", "advised", "reason")

    field: str
    present: str
    advised: str
    reason: str

    def cells(self) -> tuple[str, ...]:
        return self.field, self.present, self.advised, self.reason


def sizing(
    present: ViewConfiguration, slices: Iterable[SliceCount], hosts: int, row_bytes: int | None
) -> tuple[AdviceLine, ...]:
    """Return what suits the slices, which need no order. `hosts` are Cassandra's; `row_bytes`: how
    large a row is on average, None where that is unknown."""
    counts = sorted(slices, key=lambda each: each.start)
    seen = Seen(hosts=hosts, row_bytes=row_bytes)
    for each in counts:
        seen = seen.with_slice(each)
    advice = advise(present, seen)
    window = advice.configuration.slice_window
    pace, pace_reason = _pace(present.update_browse_start_pace, window, counts)
    advised = ViewConfiguration(window, advice.configuration.bucket_count, pace)
    reasons = (advice.window_reason, advice.buckets_reason, pace_reason)
    return tuple(
        AdviceLine(name, value_of(present, attribute), value_of(advised, attribute), reason)
        for (attribute, name), reason in zip(FIELD_NAMES.items(), reasons, strict=True)
    )


def _pace(present: int, window: timedelta, slices: Sequence[SliceCount]) -> tuple[int, str]:
    rows = median([float(each.rows_in(window)) for each in slices if each.rows] or [0.0])
    if not rows:
        return present, "no slice has rows, so there is too little history to judge the pace"
    typical = f"the median slice of {format_duration(window)} has about {round(rows):,} rows"
    if MIN_UPDATES <= rows / present <= MAX_UPDATES:
        return present, f"{typical}; browse start is updated often enough, and not too often"
    return _rounded(rows), f"{typical}; so browse start is updated about once a slice"


def _rounded(number: float) -> int:
    """Return a number with one significant digit, at least 1."""
    unit: int = 10 ** floor(log10(max(number, 1)))
    return max(1, round(number / unit) * unit)
