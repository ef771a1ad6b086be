"""Views, selectors, sizes, leased mails and outcomes as JSON and back, for all that store, send or
print them.

Views have two forms: exact, with instants in microseconds (the socket), and printed, with times as
text (`browse --json`). Source: ADR 0030.

Views of an engine's mails: one that waits, one that is leased, and how many there are."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, ClassVar, Self
from uuid import UUID

from postroad.domain.delivery.attempts import AttemptOutcomes, OutcomeCount
from postroad.domain.delivery.retries import MIN_DELAY, Endings
from postroad.domain.mail.envelope_documents import envelope_of, envelope_value
from postroad.domain.mail.mail import QUARANTINE, Envelope, OutcomeKind
from postroad.domain.mail.shapes import Shape
from postroad.domain.queues.selection import Selector, age_name
from postroad.domain.smtp.bounces import BounceClass
from postroad.domain.values import instants
from postroad.domain.values.text import to_json
from postroad.errors import PostroadError


@dataclass(frozen=True, slots=True)
class MailView:
    """A waiting mail as an administrator sees it. `due_at` is None when it is due; `reason` is a
    dead letter's. `accepted_at` is when the mail entered the queue, `enqueued_at` when this entry
    began. `place`: the id of the entry under which a listing met the mail, where that may be an
    earlier one: listings go on after it."""

    enqueue_id: UUID
    mail_id: UUID
    mail: Envelope
    accepted_at: datetime
    enqueued_at: datetime
    due_at: datetime | None
    held: bool
    attempt: int
    size_bytes: int
    last_error: str | None = None
    reason: str | None = None
    place: UUID | None = None


UNREADABLE = Envelope(sender=None, recipients=("postmaster",), name="unreadable mail")
"""Stands for the envelope of a mail that is set aside: what is stored of it cannot be read."""


@dataclass(eq=False, repr=False)
class LeasedMail(Endings):
    """Facts that every engine's `Item` knows of its mail from the lease on. `mail` has the
    recipients left for this entry, less those already recorded; `attempt` is how many attempts were
    made before this one."""

    enqueue_id: UUID
    mail_id: UUID
    mail: Envelope
    accepted_at: datetime
    enqueued_at: datetime
    attempt: int
    size_bytes: int

    def __repr__(self) -> str:
        return f"<Item {self.enqueue_id}>"  # no address: items are written into logs

    give_back: ClassVar[Callable[..., Awaitable[None]]]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if kind is not None and isinstance(error, Exception):
            with suppress(PostroadError):
                return await self.retry(MIN_DELAY, error=kind.__name__)
        return await self.give_back()

    def at_hand(self) -> tuple[bytes, Shape | None] | None:
        """See `Item`. Of an engine that fetches each content: None."""
        return None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Live mails; `delayed` and `held` are included in `size`, dead letters are not. These are None
    where they could not be counted; the number may be some time old where counting takes long.
    `at_least`: the three others may be too small, because an exact count would read too much.
    `oldest_due`: since when the mail could have been delivered that could for longest; None where
    none is due, or too much would have to be read to find it."""

    size: int
    delayed: int
    held: int
    dead_letters: int | None
    at_least: bool = False
    oldest_due: datetime | None = field(default=None, compare=False)

    @property
    def due(self) -> int:
        """Mails that wait for nothing but a worker."""
        return self.size - self.delayed - self.held


# Views, sizes, leased mails


def exact_view(view: MailView) -> dict[str, Any]:
    return {
        "enqueue_id": str(view.enqueue_id),
        "mail_id": str(view.mail_id),
        "mail": envelope_value(view.mail),
        "accepted_at": instants.microseconds(view.accepted_at),
        "enqueued_at": instants.microseconds(view.enqueued_at),
        "due_at": instants.optional_microseconds(view.due_at),
        "held": view.held,
        "attempt": view.attempt,
        "size_bytes": view.size_bytes,
        "last_error": view.last_error,
        "reason": view.reason,
    }


def view_of_exact(value: Mapping[str, Any]) -> MailView:
    return MailView(
        UUID(value["enqueue_id"]),
        UUID(value["mail_id"]),
        envelope_of(value["mail"]),
        instants.instant(value["accepted_at"]),
        instants.instant(value["enqueued_at"]),
        instants.optional_instant(value["due_at"]),
        value["held"],
        value["attempt"],
        value["size_bytes"],
        value["last_error"],
        value["reason"],
    )


def printed_view(view: MailView) -> dict[str, Any]:
    """Return a view in the printed form; only a dead letter has a `reason`, and only mail that a
    filter held `quarantine`."""
    values: dict[str, Any] = {
        "enqueue_id": str(view.enqueue_id),
        "mail_id": str(view.mail_id),
        "name": view.mail.name,
        "sender": view.mail.sender,
        "recipients": list(view.mail.recipients),
        "accepted_at": instants.rfc3339(view.accepted_at),
        "enqueued_at": instants.rfc3339(view.enqueued_at),
        "due_at": instants.rfc3339(view.due_at),
        "held": view.held,
        "attempt": view.attempt,
        "priority": view.mail.priority,
        "size_bytes": view.size_bytes,
        "last_error": view.last_error,
    }
    if view.mail.is_quarantined:
        values["quarantine"] = view.mail.attributes[QUARANTINE]
    return values if view.reason is None else values | {"reason": view.reason}


def sizes_value(sizes: Sizes) -> dict[str, Any]:
    """Return sizes by name, sent and printed alike; `at_least` only where it holds."""
    values = asdict(sizes) | {"oldest_due": instants.rfc3339(sizes.oldest_due)}
    if not sizes.at_least:
        del values["at_least"]
    return values


def ages_value(ages: Mapping[str, Mapping[timedelta, int]]) -> list[dict[str, Any]]:
    """Return mails by destination domain and age, the largest domain first."""
    rows: list[dict[str, Any]] = [
        {"domain": domain, "total": sum(counts.values()), "ages": _by_name(counts)}
        for domain, counts in ages.items()
    ]
    return sorted(rows, key=lambda row: (-row["total"], row["domain"]))


def _by_name(counts: Mapping[timedelta, int]) -> dict[str, int]:
    return {age_name(limit): count for limit, count in counts.items()}


def sizes_of(value: Mapping[str, Any]) -> Sizes:
    oldest = value["oldest_due"]
    return Sizes(**{**value, "oldest_due": oldest and datetime.fromisoformat(oldest)})


def leased_value(leased: LeasedMail) -> dict[str, Any]:
    return {
        "enqueue_id": str(leased.enqueue_id),
        "mail_id": str(leased.mail_id),
        "mail": envelope_value(leased.mail),
        "accepted_at": instants.microseconds(leased.accepted_at),
        "enqueued_at": instants.microseconds(leased.enqueued_at),
        "attempt": leased.attempt,
        "size_bytes": leased.size_bytes,
    }


def leased_fields(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the LeasedMail that `leased_value` wrote, by name."""
    return {
        "enqueue_id": UUID(value["enqueue_id"]),
        "mail_id": UUID(value["mail_id"]),
        "mail": envelope_of(value["mail"]),
        "accepted_at": instants.instant(value["accepted_at"]),
        "enqueued_at": instants.instant(value["enqueued_at"]),
        "attempt": value["attempt"],
        "size_bytes": value["size_bytes"],
    }


# What is kept of an attempt


def outcomes_value(outcomes: AttemptOutcomes | None) -> dict[str, Any] | None:
    """Return what is kept of an attempt: seconds, and counts as lists in the order of fields."""
    if outcomes is None:
        return None
    return {"seconds": outcomes.seconds, "counts": _counts_value(outcomes.counts)}


def _counts_value(counts: Iterable[OutcomeCount]) -> list[list[Any]]:
    return [
        [each.domain, each.site, each.kind, each.code, each.reason, each.words, each.count]
        for each in counts
    ]


@lru_cache(maxsize=1024)  # most mails are delivered, to few domains
def _counts_json(counts: tuple[OutcomeCount, ...]) -> str:
    return to_json(_counts_value(counts)).decode()


def outcomes_json(outcomes: AttemptOutcomes, at_us: int) -> bytes:
    """Return `outcomes_value` as JSON, with when the entry ends."""
    counts = _counts_json(outcomes.counts)
    return f'{{"seconds":{outcomes.seconds!r},"counts":{counts},"at":{at_us}}}'.encode()


def outcomes_of(value: Any) -> AttemptOutcomes | None:
    """Return what `outcomes_value` wrote, in this or a later release; None for what cannot be read,
    because nothing depends on it."""
    try:
        counts = tuple(_count(*each) for each in value["counts"])
        return AttemptOutcomes(counts, float(value["seconds"]))
    except (TypeError, ValueError, LookupError):
        return None


def _count(
    domain: str,
    site: str,
    kind: str,
    code: int,
    reason: str | None,
    words: str,
    count: int,
    *_: object,
) -> OutcomeCount:
    known = None if reason is None else BounceClass.known(reason)
    return OutcomeCount(
        *(str(domain), str(site), OutcomeKind(kind), int(code), known, str(words), int(count))
    )


# Selectors


def selector_value(selector: Selector | None) -> dict[str, Any] | None:
    """Return a selector with its age in microseconds; None stands for no selector at all."""
    if selector is None:
        return None
    age, enqueue_id = selector.older_than, selector.enqueue_id
    value = asdict(selector) | {
        "enqueue_id": None if enqueue_id is None else str(enqueue_id),
        "older_than": None if age is None else instants.duration_us(age),
    }
    domains, before = value.pop("domains"), value.pop("accepted_before")
    if (pulse := value.pop("pulse")) is not None:
        value["pulse"] = instants.duration_us(pulse)
    bounds = {name: value.pop(name) for name in ("after", "last")}
    value |= {name: str(each) for name, each in bounds.items() if each is not None}
    if domains is not None:
        value["domains"] = sorted(domains)
    if before is not None:
        value["accepted_before"] = instants.microseconds(before)
    return value


def selector_of(value: Mapping[str, Any] | None) -> Selector | None:
    """Return the selector that `selector_value` wrote. Raises: TypeError, ValueError."""
    if value is None:
        return None
    fields = dict(value)
    for name in ("enqueue_id", "after", "last"):
        if fields.get(name) is not None:
            fields[name] = UUID(fields[name])
    if fields["older_than"] is not None:
        fields["older_than"] = instants.duration(fields["older_than"])
    if fields["attribute"] is not None:
        name, text = fields["attribute"]
        fields["attribute"] = (name, text)
    if "domains" in fields:
        fields["domains"] = frozenset(map(str, fields["domains"]))
    if "pulse" in fields:
        fields["pulse"] = instants.duration(fields["pulse"])
    if "accepted_before" in fields:
        fields["accepted_before"] = instants.instant(fields["accepted_before"])
    return Selector(**fields)
