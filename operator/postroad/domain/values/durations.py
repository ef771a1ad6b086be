"""Durations as Kubernetes writes them: Go-style strings of hours, minutes and seconds (`1h30m`)."""

from __future__ import annotations

import re
from datetime import timedelta

from postroad.errors import InvalidInput

DURATION_PATTERN = "^([0-9]{1,6}h)?([0-9]{1,8}m)?([0-9]{1,9}s)?$"
"""The form in a resource."""

_FORM = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


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


def format_duration(duration: timedelta) -> str:
    """Write a duration of whole seconds as `parse_duration` reads it.

    >>> format_duration(timedelta(minutes=90))
    '1h30m'
    """
    minutes, seconds = divmod(round(duration.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (seconds, "s"))
    return "".join(f"{count}{unit}" for count, unit in parts if count) or "0s"
