"""View configurations, and the rules by which one may follow another.

`slice_window` and `bucket_count` decide where mails lie in the view, so a window may only be
divided and buckets may only be added: otherwise readers would not look where mails lie. Both
relations are transitive, so an allowed configuration finds what any accepted one before it stored.
Source: 000 Decision (sliceWindow, bucketCount, updateBrowseStartPace); ADR 0005."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import isqrt

from postroad.domain.values.instants import format_duration
from postroad.errors import InvalidInput

MIN_WINDOW = timedelta(seconds=1)
"""Slices are cut at whole seconds; a shorter window would round to no window at all."""


@dataclass(frozen=True, slots=True)
class ViewConfiguration:
    """Place of entries in the view. `slice_window` is whole seconds, at least 1 s; `bucket_count`
    at least 1; a browse start update is drawn once in `update_browse_start_pace` endings on
    average. The defaults are a new queue's; a queue with a history keeps the configuration accepted
    last. As many buckets as Cassandra has servers spread a slice over all of them (Source: 000
    Decision). Raises: InvalidInput for values that no history could accept."""

    slice_window: timedelta = timedelta(hours=1)
    bucket_count: int = 3
    update_browse_start_pace: int = 1000

    def __post_init__(self) -> None:
        if self.slice_window < MIN_WINDOW or self.slice_window.microseconds:
            raise InvalidInput("sliceWindow must be whole seconds, at least 1s")
        if self.bucket_count < 1:
            raise InvalidInput("bucketCount must be at least 1")
        if self.update_browse_start_pace < 1:
            raise InvalidInput("updateBrowseStartPace must be at least 1")


FIELD_NAMES = {
    "slice_window": "sliceWindow",
    "bucket_count": "bucketCount",
    "update_browse_start_pace": "updateBrowseStartPace",
}
"""Attribute → name in resources, events and messages."""


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One changed field, as people read it: names and values as in the resource."""

    field: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a wanted configuration does not hold, and what would: `reason` is the condition's (the
    first broken rule), `message` names every broken rule, `allowed` has the nearest allowed values
    by field, as the resource writes them."""

    reason: str
    message: str
    allowed: Mapping[str, tuple[str, ...]]


SLICE_WINDOW_GROWS = "SliceWindowGrows"
SLICE_WINDOW_DOES_NOT_DIVIDE = "SliceWindowDoesNotDivide"
BUCKET_COUNT_SHRINKS = "BucketCountShrinks"


def refusal_of(current: ViewConfiguration, wanted: ViewConfiguration) -> Refusal | None:
    """Return why a change would make mail invisible; None when every mail stays reachable. Source:
    000 Decision (only dividing windows, only more buckets, the pace is free)."""
    broken = [
        each
        for each in (
            _refused_window(current.slice_window, wanted.slice_window),
            _refused_buckets(current.bucket_count, wanted.bucket_count),
        )
        if each is not None
    ]
    if not broken:
        return None
    allowed = {field: values for each in broken for field, values in each.allowed.items()}
    return Refusal(broken[0].reason, "; ".join(each.message for each in broken), allowed)


def _refused_window(current: timedelta, wanted: timedelta) -> Refusal | None:
    if not current % wanted:
        return None
    before, after = format_duration(current), format_duration(wanted)
    if wanted > current:
        return Refusal(
            SLICE_WINDOW_GROWS,
            f"sliceWindow cannot grow from the accepted {before} to {after}, because waiting mail "
            f"would become invisible: keep {before} or choose a divisor of it",
            {"sliceWindow": (before,)},
        )
    below, above = map(format_duration, nearest_windows(current, wanted))
    return Refusal(
        SLICE_WINDOW_DOES_NOT_DIVIDE,
        f"sliceWindow {after} does not divide the accepted {before}, so waiting mail would become "
        f"invisible: the nearest allowed values are {below} and {above}",
        {"sliceWindow": (below, above)},
    )


def _refused_buckets(current: int, wanted: int) -> Refusal | None:
    if wanted >= current:
        return None
    return Refusal(
        BUCKET_COUNT_SHRINKS,
        f"bucketCount cannot shrink from the accepted {current} to {wanted}, because waiting mail "
        f"would become invisible: choose {current} or more",
        {"bucketCount": (str(current),)},
    )


def nearest_windows(current: timedelta, wanted: timedelta) -> tuple[timedelta, timedelta]:
    """Return the divisors of the current window next to a wanted shorter one, below and above.

    >>> [str(each) for each in nearest_windows(timedelta(hours=1), timedelta(minutes=25))]
    ['0:20:00', '0:30:00']
    """
    divisors = windows_dividing(current)
    below = max(each for each in divisors if each <= wanted)
    above = min(each for each in divisors if each >= wanted)
    return below, above


def windows_dividing(current: timedelta) -> frozenset[timedelta]:
    """Return the windows that may follow the current one, itself included."""
    seconds = current // MIN_WINDOW
    small = [each for each in range(1, isqrt(seconds) + 1) if seconds % each == 0]
    divisors = {*small, *(seconds // each for each in small)}
    return frozenset(each * MIN_WINDOW for each in divisors)


def changes_between(before: ViewConfiguration, after: ViewConfiguration) -> tuple[FieldChange, ...]:
    """Return what differs, as people read it."""
    return tuple(
        FieldChange(name, value_of(before, attribute), value_of(after, attribute))
        for attribute, name in FIELD_NAMES.items()
        if getattr(before, attribute) != getattr(after, attribute)
    )


def value_of(configuration: ViewConfiguration, attribute: str) -> str:
    """Return a field's value as the resource writes it."""
    value = getattr(configuration, attribute)
    return format_duration(value) if isinstance(value, timedelta) else str(value)
