"""Changes of a queue's view configuration and what every guard must say to them.

The same table is held against the decision in Python and against the rules in the CRD.
Windows are as people write them; a case without messages is accepted. A guard may put the path of
the field in front (`spec.view.`), but must say the rest as it stands here.
"""

from __future__ import annotations

from dataclasses import dataclass

View = tuple[str, int, int]
"""Slice window, bucket count, pace."""


@dataclass(frozen=True)
class Case:
    """From `before` to `after`; `allowed` are the nearest allowed values that a refusal must name,
    `reason` the condition's. `james` names the test class of Apache James with the same case."""

    name: str
    before: View
    after: View
    allowed: tuple[str, ...] = ()
    reason: str = ""
    messages: tuple[str, ...] = ()
    james: str = ""

    @property
    def accepted(self) -> bool:
        return not self.messages

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Impossible:
    """A configuration that no history could accept, and the field that is at fault."""

    name: str
    view: View
    field: str

    def __str__(self) -> str:
        return self.name


def document(view: View) -> dict[str, object]:
    """Return `spec.view`."""
    return dict(zip(("sliceWindow", "bucketCount", "updateBrowseStartPace"), view, strict=True))


def _grows(before: str, after: str) -> str:
    return (
        f"sliceWindow cannot grow from the accepted {before} to {after}, because waiting mail "
        f"would become invisible: keep {before} or choose a divisor of it"
    )


def _divides(before: str, after: str, below: str, above: str) -> str:
    return (
        f"sliceWindow {after} does not divide the accepted {before}, so waiting mail would become "
        f"invisible: the nearest allowed values are {below} and {above}"
    )


def _shrinks(before: int, after: int) -> str:
    return (
        f"bucketCount cannot shrink from the accepted {before} to {after}, because waiting mail "
        f"would become invisible: choose {before} or more"
    )


def window_grows(name: str, before: View, after: View, james: str = "") -> Case:
    message = _grows(before[0], after[0])
    return Case(name, before, after, (before[0],), "SliceWindowGrows", (message,), james)


def window_does_not_divide(
    name: str, before: View, after: View, below: str, above: str, james: str = ""
) -> Case:
    message = _divides(before[0], after[0], below, above)
    reason = "SliceWindowDoesNotDivide"
    return Case(name, before, after, (below, above), reason, (message,), james)


def buckets_shrink(name: str, before: View, after: View, james: str = "") -> Case:
    message = _shrinks(before[1], after[1])
    return Case(name, before, after, (str(before[1]),), "BucketCountShrinks", (message,), james)


CHANGE, VIEW, STORE = (
    "RabbitMQMailQueueConfigurationChangeTest",
    "CassandraMailQueueViewConfigurationTest",
    "EventsourcingConfigurationManagementTest",
)

JAMES = (
    Case("more buckets while mail waits", ("1h", 3, 1000), ("1h", 5, 1000), james=CHANGE),
    buckets_shrink("fewer buckets while mail waits", ("1h", 3, 1000), ("1h", 2, 1000), CHANGE),
    Case("half the window while mail waits", ("1h", 3, 1000), ("30m", 3, 1000), james=CHANGE),
    window_does_not_divide(
        "25 minutes while mail waits", ("1h", 3, 1000), ("25m", 3, 1000), "20m", "30m", CHANGE
    ),
    window_grows("twice the window while mail waits", ("1h", 3, 1000), ("2h", 3, 1000), CHANGE),
    Case("the same again", ("1h", 1, 1000), ("1h", 1, 1000), james=VIEW),
    Case("one bucket becomes two", ("1h", 1, 1000), ("1h", 2, 1000), james=VIEW),
    Case("a third of the window", ("1h", 1, 1000), ("20m", 1, 1000), james=VIEW),
    window_does_not_divide(
        "25 minutes of an hour", ("1h", 1, 1000), ("25m", 1, 1000), "20m", "30m", VIEW
    ),
    buckets_shrink("two buckets become one", ("1h", 2, 1000), ("1h", 1, 1000), VIEW),
    buckets_shrink("fewer buckets than are stored", ("1h", 2, 1000), ("1h", 1, 1000), STORE),
    Case("more buckets than are stored", ("1h", 2, 1000), ("1h", 3, 1000), james=STORE),
    window_grows("twice the stored window", ("1h", 2, 1000), ("2h", 2, 1000), STORE),
    window_does_not_divide(
        "three quarters of the window", ("1h", 2, 1000), ("45m", 2, 1000), "30m", "1h", STORE
    ),
    Case("half the stored window", ("1h", 2, 1000), ("30m", 2, 1000), james=STORE),
    Case("a slower pace", ("1h", 2, 1000), ("1h", 2, 5000), james=STORE),
    Case("a faster pace", ("1h", 2, 1000), ("1h", 2, 25), james=STORE),
    Case("the same twice", ("30m", 8, 10), ("30m", 8, 10), james=STORE),
)
"""18 of James' 22 cases. The other four have no configuration before (the first is accepted, an
empty history loads nothing, a longer one its last, null is none) and are tests of their own."""

CASES = (
    *JAMES,
    Case("the same, spelled differently", ("1h", 3, 1000), ("60m", 3, 1000)),
    Case("the same, in seconds", ("30m", 3, 1000), ("1800s", 3, 1000)),
    Case("one second", ("1h", 3, 1000), ("1s", 3, 1000)),
    Case("a divisor of hours and minutes", ("3h", 1, 1000), ("1h30m", 1, 1000)),
    Case("a divisor of a window of odd seconds", ("35s", 1, 1000), ("7s", 1, 1000)),
    Case("a shorter window and more buckets", ("1h", 1, 1000), ("15m", 3, 1000)),
    Case("everything at once", ("1h", 1, 1000), ("10m", 12, 1)),
    window_does_not_divide(
        "a little less than the window", ("1h", 3, 1000), ("59m59s", 3, 1000), "30m", "1h"
    ),
    window_does_not_divide(
        "between two divisors of a minute", ("1m", 3, 1000), ("7s", 3, 1000), "6s", "10s"
    ),
    window_does_not_divide("a prime window", ("7s", 1, 1000), ("5s", 1, 1000), "1s", "7s"),
    window_grows("a second more than the window", ("1h", 3, 1000), ("1h1s", 3, 1000)),
    window_grows("more than the shortest window", ("1s", 3, 1000), ("2s", 3, 1000)),
    window_grows("back to a window before", ("30m", 3, 1000), ("1h", 3, 1000)),
    buckets_shrink("one bucket", ("1h", 8, 1000), ("1h", 1, 1000)),
    buckets_shrink("a good window and fewer buckets", ("1h", 3, 1000), ("30m", 1, 1000)),
    window_does_not_divide(
        "a bad window and more buckets", ("1h", 3, 1000), ("50m", 9, 1000), "30m", "1h"
    ),
    Case(
        "a longer window and fewer buckets",
        ("1h", 3, 5),
        ("2h", 2, 5),
        ("1h", "3"),
        "SliceWindowGrows",
        (_grows("1h", "2h"), _shrinks(3, 2)),
    ),
    Case(
        "a window that does not divide and fewer buckets",
        ("1h", 3, 5),
        ("25m", 2, 5),
        ("20m", "30m", "3"),
        "SliceWindowDoesNotDivide",
        (_divides("1h", "25m", "20m", "30m"), _shrinks(3, 2)),
    ),
)

IMPOSSIBLE = (
    Impossible("no window", ("0s", 1, 1000), "sliceWindow"),
    Impossible("half a second", ("500ms", 1, 1000), "sliceWindow"),
    Impossible("a window without its unit", ("3600", 1, 1000), "sliceWindow"),
    Impossible("an empty window", ("", 1, 1000), "sliceWindow"),
    Impossible("a negative window", ("-1h", 1, 1000), "sliceWindow"),
    Impossible("no buckets", ("1h", 0, 1000), "bucketCount"),
    Impossible("fewer than no buckets", ("1h", -1, 1000), "bucketCount"),
    Impossible("no pace", ("1h", 1, 0), "updateBrowseStartPace"),
)
