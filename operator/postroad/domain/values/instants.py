"""Instants and durations as numbers and as text: microseconds since 1970, and RFC 3339. Pure.

Durations as Kubernetes writes them: Go-style strings of hours, minutes and seconds (`1h30m`).

Time that most of several hosts agree on, when their clocks are read.

One wrong clock among three neither becomes the time nor stops the right ones from being it. Where
no majority agrees, no clock can be shown to be right, and none is used. Source: ADR 0016."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter

from postroad.domain.values.identifiers import EPOCH
from postroad.errors import InvalidInput

LATEST = datetime(9999, 1, 1, tzinfo=UTC)
"""No mail is due later; a delay beyond it ends here."""

MICROSECOND = timedelta(microseconds=1)


def microseconds(moment: datetime) -> int:
    """Return an instant as microseconds since 1970."""
    return (moment - EPOCH) // MICROSECOND


def instant(us: int) -> datetime:
    """Return the instant that is so many microseconds after 1970 began."""
    return EPOCH + us * MICROSECOND


def optional_microseconds(moment: datetime | None) -> int | None:
    return None if moment is None else microseconds(moment)


def optional_instant(us: int | None) -> datetime | None:
    return None if us is None else instant(us)


def duration_us(duration: timedelta) -> int:
    return duration // MICROSECOND


def duration(us: int) -> timedelta:
    """Return a duration of so many microseconds."""
    return us * MICROSECOND


def moment_after(now: datetime, delay: timedelta) -> datetime | None:
    """Return when a delay is over; None when it is none. Centuries are capped at LATEST.

    >>> moment_after(EPOCH, timedelta(days=1)).isoformat()
    '1970-01-02T00:00:00+00:00'
    >>> moment_after(EPOCH, timedelta.max) == LATEST
    True
    """
    if delay <= timedelta(0):
        return None
    return LATEST if delay >= LATEST - now else now + delay


def rfc3339(moment: datetime | None) -> str | None:
    """Return an instant as text in UTC, to the millisecond. Source: RFC 3339 5.6.

    >>> rfc3339(EPOCH)
    '1970-01-01T00:00:00.000Z'
    """
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


DURATION_PATTERN = "^([0-9]{1,6}h)?([0-9]{1,8}m)?([0-9]{1,9}s)?$"
"""The form in a resource."""

_FORM = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)


def parse_duration(text: str) -> timedelta:
    """Read `90s`, `30m`, `1h30m`. Raises: InvalidInput.

    >>> parse_duration("1h30m")
    datetime.timedelta(seconds=5400)
    """
    found = _FORM.fullmatch(text)
    if not text or found is None:
        raise InvalidInput(f"{text!r} is not a duration: write hours, minutes, seconds as in 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    try:
        return timedelta(hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError as error:
        raise InvalidInput(f"{text!r} is too long a duration") from error


def parse_period(text: str) -> timedelta:
    """Read a duration that may begin with days: `4d`, `1d12h`. Raises: InvalidInput.

    >>> parse_period("1d12h") == timedelta(hours=36)
    True
    """
    days, is_given, rest = text.rpartition("d")
    if not is_given:
        return parse_duration(rest)
    if not (days.isascii() and days.isdigit() and len(days) < 7):
        raise InvalidInput(f"{text!r} is not a duration: write it as in 90s, 1h30m, 4d, 1d12h")
    return timedelta(days=int(days)) + (parse_duration(rest) if rest else timedelta(0))


def parse_moment(text: str, now: datetime) -> datetime:
    """Read a moment as people write it: RFC 3339, a date, `now`, `today`, `yesterday`, or a
    duration, for so long ago. In UTC where it has no zone. Raises: InvalidInput.

    >>> rfc3339(parse_moment("yesterday", datetime(2026, 11, 27, 9, tzinfo=UTC)))
    '2026-11-26T00:00:00.000Z'
    """
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    named = {"now": now, "today": today, "yesterday": today - timedelta(days=1)}
    try:
        if text in named:
            return named[text]
        if text[-1:] in ("d", "h", "m", "s"):
            return now - parse_period(text)
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError, InvalidInput) as error:
        raise InvalidInput(
            f"{text!r} is not a moment: write it as 2026-11-26, 2026-11-26T10:00Z, yesterday, or 4d"
            " for so long ago"
        ) from error


def format_duration(duration: timedelta) -> str:
    """Write a duration of whole seconds as `parse_duration` reads it.

    >>> format_duration(timedelta(minutes=90))
    '1h30m'
    """
    minutes, seconds = divmod(round(duration.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (seconds, "s"))
    return "".join(f"{count}{unit}" for count, unit in parts if count) or "0s"


AGREEING = timedelta(seconds=5)
"""Difference by which two right clocks may be apart, beyond what reading them leaves open."""


@dataclass(frozen=True, slots=True)
class HostTime:
    """One host's clock: `time`, give or take `doubt`, at the moment the reading was handed over."""

    host: str
    time: datetime
    doubt: timedelta = timedelta(0)

    def agrees_with(self, other: HostTime) -> bool:
        return abs(self.time - other.time) <= AGREEING + self.doubt + other.doubt


@dataclass(frozen=True, slots=True)
class Readings:
    """The clocks that were read, all as of one moment. `hosts` counts the hosts that were asked: a
    host that did not reply in time still has its vote, or a quick wrong one would decide alone."""

    times: tuple[HostTime, ...]
    hosts: int

    def later(self, passed: timedelta) -> Readings:
        """Return what the clocks show when some time has passed."""
        times = (HostTime(each.host, each.time + passed, each.doubt) for each in self.times)
        return Readings(tuple(times), self.hosts)


@dataclass(frozen=True, slots=True)
class AgreedTime:
    """The time that most hosts agree on, and the hosts that disagree with it."""

    time: datetime
    doubt: timedelta
    votes: int
    wrong: tuple[HostTime, ...]


def agreed_time(readings: Readings) -> AgreedTime | None:
    """Return the median of the largest group of clocks that agree with one of them; None when that
    group is no majority of the hosts that were asked."""
    groups = (_agreeing(each, readings.times) for each in readings.times)
    largest = max(groups, key=len, default=[])
    if 2 * len(largest) <= readings.hosts:
        return None
    middle = largest[(len(largest) - 1) // 2]
    wrong = tuple(each for each in readings.times if each not in largest)
    return AgreedTime(middle.time, middle.doubt, len(largest), wrong)


def _agreeing(one: HostTime, times: Sequence[HostTime]) -> list[HostTime]:
    """Return the clocks that agree with one of them, in order."""
    return sorted((each for each in times if each.agrees_with(one)), key=attrgetter("time"))
