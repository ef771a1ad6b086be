"""Checks a cron expression as the API server does, so that a bad one is named by its field.

Source: Kubernetes documentation (CronJob, Schedule syntax).
"""

from __future__ import annotations

import re

from postroad.errors import InvalidInput

_MONTHS = (
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 6, _DAYS),
)
_MACROS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
_PART = re.compile(r"(?:(\*|\?)|(\w+)(?:-(\w+))?)(?:/(\d{1,9}))?", re.ASCII)


def check_schedule(text: str, field: str) -> None:
    """Raises: InvalidInput, with the name of the field, for a text that is no schedule.

    >>> check_schedule("7,37 */2 * * mon-fri", "schedule")
    >>> check_schedule("7 25 * * *", "schedule")
    Traceback (most recent call last):
    postroad.errors.InvalidInput: schedule: the hour '25' is not between 0 and 23
    """
    if text in _MACROS:
        return
    parts = text.split()
    if len(parts) != len(_FIELDS):
        raise InvalidInput(
            f"{field}: {text!r} is no cron expression: write minute, hour, day of the month, "
            "month and day of the week, such as `7 * * * *`"
        )
    for part, (name, least, most, names) in zip(parts, _FIELDS, strict=True):
        for each in part.split(","):
            _check(each, f"{field}: the {name}", least, most, names)


def _check(text: str, what: str, least: int, most: int, names: tuple[str, ...]) -> None:
    found = _PART.fullmatch(text)
    if found is None:
        raise InvalidInput(f"{what} {text!r} is no number, range or step")
    _, first, last, step = found.groups()
    numbers = [
        least + names.index(each.lower()) if each.lower() in names else each
        for each in (first, last)
        if each is not None
    ]
    if not all(str(each).isdigit() and least <= int(each) <= most for each in numbers):
        raise InvalidInput(f"{what} {text!r} is not between {least} and {most}")
    if numbers and int(numbers[-1]) < int(numbers[0]):
        raise InvalidInput(f"{what} {text!r} ends before it begins")
    if step is not None and int(step) == 0:
        raise InvalidInput(f"{what} {text!r} has a step of 0")
