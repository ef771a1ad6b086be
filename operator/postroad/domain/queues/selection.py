"""Selectors of mails. Equality is exact; the fields are joined by *and*.

The age limits of `ages`: doubling, as in Postfix' qshape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from postroad.domain.mail.mail import Envelope, check_address, domain_of
from postroad.domain.values.instants import format_duration
from postroad.errors import InvalidInput


class Selectable(Protocol):
    """Fields that a selector compares: an entry of either engine."""

    @property
    def enqueue_id(self) -> UUID: ...

    @property
    def envelope(self) -> Envelope: ...

    @property
    def accepted_at(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """Fields that a selector compares, of what has them otherwise."""

    enqueue_id: UUID
    envelope: Envelope
    accepted_at: datetime


@dataclass(frozen=True, slots=True)
class Selector:
    """Selects mails. `Selector()` selects nothing, so that an accident does; `Selector.all()`
    selects all. `older_than` is the age since acceptance; `attribute` is a (name, value) pair;
    `sender=""` is the null reverse-path; `domain` is compared in lower case; of `domains`, in lower
    case, one must be that of a recipient. With `accepted_before`, an operation that is repeated
    changes no mail that came after its first time. `after` and `last` bound the enqueue ids, the
    latter included: a page of a listing, or a portion of an operation. A listing that yielded
    nothing for `pulse` yields a waiting mail that is not selected, by which its caller knows how
    far it is; an operation changes none of these. Raises: InvalidInput."""

    enqueue_id: UUID | None = None
    name: str | None = None
    sender: str | None = None
    recipient: str | None = None
    domain: str | None = None
    older_than: timedelta | None = None
    attribute: tuple[str, str] | None = None
    everything: bool = False
    domains: frozenset[str] | None = None
    accepted_before: datetime | None = None
    after: UUID | None = None
    last: UUID | None = None
    pulse: timedelta | None = None

    def __post_init__(self) -> None:
        for name, (kind, form) in _KINDS.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                found = type(value).__name__
                raise InvalidInput(f"a selector's {name} is {form}, not {found}")
        if self.accepted_before is not None and self.accepted_before.tzinfo is None:
            raise InvalidInput("a selector's accepted_before has no zone: datetime.now(UTC) has")
        pair: tuple[object, ...] = self.attribute or ("", "")
        if len(pair) != 2 or not all(isinstance(each, str) for each in pair):
            raise InvalidInput("a selector's attribute is a pair of strings: (name, value)")

    @classmethod
    def all(cls) -> Selector:
        """Select every mail, on purpose."""
        return cls(everything=True)

    @property
    def is_empty(self) -> bool:
        """True if no field was given."""
        return replace(self, pulse=None) == _NOTHING

    @property
    def is_everything(self) -> bool:
        """True if every mail is selected whose id and acceptance are within the bounds."""
        unbounded = replace(self, accepted_before=None, after=None, last=None, pulse=None)
        return unbounded == _EVERYTHING

    @property
    def bounds(self) -> tuple[UUID | None, UUID | None]:
        """The ids between which the selected mails lie: after the first, up to the second."""
        if self.enqueue_id is None or not self.within(self.enqueue_id):
            return self.after, self.last
        return UUID(int=max(0, self.enqueue_id.int - 1)), self.enqueue_id

    def within(self, enqueue_id: UUID) -> bool:
        """Return whether an id is within the bounds."""
        return (self.after is None or enqueue_id > self.after) and (
            self.last is None or enqueue_id <= self.last
        )

    def require_purpose(self) -> Selector:
        """Return self. Raises: InvalidInput when nothing was selected by any field."""
        if self.is_empty:
            raise InvalidInput("the selector is empty: name a field, or Selector.all() on purpose")
        return self

    def matches(self, entry: Selectable, now: datetime) -> bool:
        """Return whether an entry is selected at `now`. An empty selector matches nothing."""
        envelope = entry.envelope
        return (
            not self.is_empty
            and (self.enqueue_id is None or self.enqueue_id == entry.enqueue_id)
            and self.within(entry.enqueue_id)
            and (self.name is None or self.name == envelope.name)
            and (self.sender is None or self.sender == (envelope.sender or ""))
            and (self.recipient is None or self.recipient in envelope.recipients)
            and (
                self.domain is None
                or any(domain_of(each) == self.domain.lower() for each in envelope.recipients)
            )
            and (
                self.domains is None
                or not self.domains.isdisjoint(map(domain_of, envelope.recipients))
            )
            and (self.older_than is None or now - entry.accepted_at > self.older_than)
            and (self.accepted_before is None or entry.accepted_at < self.accepted_before)
            and (
                self.attribute is None
                or envelope.attributes.get(self.attribute[0]) == self.attribute[1]
            )
        )


def check_selected(field: str, value: str) -> None:
    """Refuse a sender, recipient or domain that no mail has, so that it would select none; `<>` is
    the null reverse-path. Raises: InvalidInput."""
    if field == "domain":
        if "@" in value:
            raise InvalidInput("a domain has no '@'")
    elif (field, value) != ("sender", "<>"):
        check_address(value)


_KINDS: dict[str, tuple[type, str]] = {
    **dict.fromkeys(("name", "sender", "recipient", "domain"), (str, "a string")),
    **dict.fromkeys(("enqueue_id", "after", "last"), (UUID, "a UUID")),
    **dict.fromkeys(("older_than", "pulse"), (timedelta, "a timedelta")),
    "accepted_before": (datetime, "a datetime"),
    "attribute": (tuple, "a pair of strings"),
    "domains": (frozenset, "a frozenset of strings"),
}
"""The type of each field, and its name in an error."""

_NOTHING = Selector()
_EVERYTHING = Selector.all()


class Pulse:
    """Tells a listing when the mail at hand is to be yielded though it is not selected."""

    def __init__(self, every: timedelta | None, elapsed: Callable[[], timedelta]) -> None:
        self._every, self._elapsed = every, elapsed
        self._last = elapsed()

    @property
    def is_due(self) -> bool:
        return self._every is not None and self._elapsed() - self._last > self._every

    def note(self) -> None:
        """Note that a mail was yielded."""
        self._last = self._elapsed()


AGES: tuple[timedelta, ...] = (
    *(timedelta(minutes=5 << step) for step in range(9)),
    timedelta.max,
)
"""5, 10, 20, … 1280 minutes, and everything older."""


def age_name(limit: timedelta) -> str:
    return "older" if limit == timedelta.max else format_duration(limit)
