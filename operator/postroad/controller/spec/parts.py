"""Types and checks that the models of both specs share.

Namespaces that a QueueCluster allows: the part of its spec, and what follows from labels.

Checks a cron expression as the API server does, so that a bad one is named by its field.

Source: Kubernetes documentation (CronJob, Schedule syntax)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic.alias_generators import to_camel

from postroad.domain.mail.mail import MAILBOX_PATTERN
from postroad.domain.smtp.next_hops import HOSTNAME_PATTERN
from postroad.domain.values.instants import format_duration
from postroad.errors import InvalidInput

HOST_PATTERN = "^([A-Za-z0-9_][-A-Za-z0-9_.]*|[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)$"
"""A host name (A-labels), an IPv4 or an IPv6 address."""


def _alias(name: str) -> str:
    return to_camel(name).replace("Url", "URL")


def at_least(shortest: timedelta) -> AfterValidator:
    """Refuse shorter durations."""

    def check(value: timedelta) -> timedelta:
        if value < shortest:
            raise ValueError(f"must be at least {format_duration(shortest)}")
        return value

    return AfterValidator(check)


def holds(condition: Callable[[Any], bool], message: str) -> AfterValidator:
    """Refuse a value for which a condition does not hold. A rule of the CRD has the same
    message."""

    def check(value: Any) -> Any:
        if not condition(value):
            raise ValueError(message)
        return value

    return AfterValidator(check)


MAX_LEVELS = 64
"""Levels of a partial pod template; a pod has no twenty."""


def nests_little(value: Any) -> bool:
    """True if JSON has no more levels than `MAX_LEVELS`, each of which is a call where it is
    merged, written or compared."""
    level = [value]
    for _ in range(MAX_LEVELS):
        parts = [each.values() if isinstance(each, dict) else each for each in level]
        level = [inner for each in parts for inner in each if isinstance(inner, dict | list)]
    return not level


Host = Annotated[str, Field(min_length=1, max_length=253, pattern=HOST_PATTERN)]
Hostname = Annotated[str, Field(min_length=1, max_length=253, pattern=HOSTNAME_PATTERN)]
MailboxText = Annotated[str, Field(min_length=3, max_length=254, pattern=MAILBOX_PATTERN)]
Replicas = Annotated[int, Field(ge=0, le=1000)]
Schedule = Annotated[str, Field(min_length=1, max_length=100)]
Anything = Annotated[
    dict[str, Any],
    holds(nests_little, f"must not nest deeper than {MAX_LEVELS} levels"),
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]


class Model(BaseModel):
    """A part of a spec: immutable, with the API's names as aliases."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",  # the API server prunes; a newer CRD may have more fields than this release
        alias_generator=_alias,
        populate_by_name=True,
        use_attribute_docstrings=True,
        ser_json_timedelta="iso8601",
    )


class LabelRequirement(Model):
    """A requirement on one label."""

    key: Annotated[str, Field(min_length=1, max_length=317)]
    """Name of the label."""

    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """Relation of the label to the values."""

    values: list[Annotated[str, Field(max_length=63)]] = Field(default=[], max_length=64)
    """Values for In and NotIn; empty for Exists and DoesNotExist."""


class LabelSelector(Model):
    """Selects by labels; all requirements must hold."""

    match_labels: dict[str, Annotated[str, Field(max_length=63)]] = Field(default={}, max_length=64)
    """Labels that must have exactly these values."""

    match_expressions: list[LabelRequirement] = Field(default=[], max_length=64)
    """Further requirements."""


class AllowedNamespaces(Model):
    """Namespaces whose MailQueues may use this cluster."""

    from_: Annotated[Literal["Same", "All", "Selector"], Field(alias="from")] = "Same"
    """Same: only the QueueCluster's own namespace. All: every namespace. Selector: the namespaces
    that `selector` selects, and its own."""

    selector: LabelSelector | None = None
    """Selects namespaces by their labels; with `from: Selector` only."""


def allowed_by(cluster: Mapping[str, Any]) -> AllowedNamespaces:
    """Return the namespaces that a QueueCluster allows: only its own where its spec is invalid."""
    try:
        return AllowedNamespaces.model_validate(cluster["spec"].get("allowedNamespaces") or {})
    except ValidationError:
        return AllowedNamespaces()


def allows(allowed: AllowedNamespaces, own: str, asking: str, labels: Mapping[str, str]) -> bool:
    """Return whether a QueueCluster in namespace `own` allows MailQueues of namespace `asking`,
    which has these labels."""
    if asking == own or allowed.from_ == "All":
        return True
    return (
        allowed.from_ == "Selector"
        and allowed.selector is not None
        and selects(allowed.selector, labels)
    )


def selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Return whether all requirements hold. As in Kubernetes, no requirement selects everything."""
    return all(labels.get(name) == value for name, value in selector.match_labels.items()) and all(
        _meets(each, labels) for each in selector.match_expressions
    )


def _meets(requirement: LabelRequirement, labels: Mapping[str, str]) -> bool:
    present = requirement.key in labels
    match requirement.operator:
        case "In":
            return present and labels[requirement.key] in requirement.values
        case "NotIn":
            return not present or labels[requirement.key] not in requirement.values
        case "Exists":
            return present
        case "DoesNotExist":
            return not present


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
_DAYS_OF_MONTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
"""Days of the months, of February in a leap year."""
_EVERY_DAY = re.compile(r"[*?](/0*1)?")
_PART = re.compile(r"(?:(\*|\?)|(\w+)(?:-(\w+))?)(?:/(\d{1,9}))?", re.ASCII)


def check_schedule(text: str, field: str) -> None:
    """Raises: InvalidInput, with the name of the field, for a text that is no schedule, or one of
    days that there are not.

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
    if not _comes(*(part.split(",") for part in parts[2:])):
        raise InvalidInput(f"{field}: {text!r} never comes: none of its months has such a day")


def _comes(days: list[str], months: list[str], weekdays: list[str]) -> bool:
    """Return whether parts without a fault name a day that there is. Next to a day of the month, a
    day of the week is another day on which a schedule comes."""
    if not any(map(_EVERY_DAY.fullmatch, weekdays)):
        return True
    first = min(_check(each, "day", 1, 31, ())[0] for each in days)
    named = {month for each in months for month in _check(each, "month", 1, 12, _MONTHS)}
    return any(first <= _DAYS_OF_MONTHS[month - 1] for month in named)


def _check(text: str, what: str, least: int, most: int, names: tuple[str, ...]) -> range:
    """Return the values of a part. Raises: InvalidInput."""
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
    start, *end = [int(each) for each in numbers] or [least, most]
    if not end:  # N/step goes on to the most
        end = [start if step is None else most]
    return range(start, end[0] + 1, int(step or 1))
