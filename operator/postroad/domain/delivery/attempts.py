"""Record of an attempt: its outcomes, counted by destination domain, site and reason, and how long
it took. No address is in it. Pure.

It lies in the mark that ends the attempt's entry, or beside it in the log of a store, so that
keeping it costs no request of its own. Source: ADR 0033.

Why something is kept from its usual way, as it is stored and shown. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from postroad.domain.mail.mail import Outcome, OutcomeKind, domain_of
from postroad.domain.smtp.bounces import Bounce, BounceClass, bounce_of, code_of
from postroad.errors import InvalidInput

MAX_COUNTS = 20
"""Counts of one attempt. The others are added up, those of each kind, as one more."""


@dataclass(frozen=True, slots=True)
class OutcomeCount:
    """Number of recipients that had this outcome.

    `code` is the basic code of the reply, 0 where there was none. A delivery needs no reason: it
    has neither class nor words, which hold little but a queue id of the next hop. What was added up
    has neither domain nor site, and the class `other`.
    """

    domain: str
    site: str
    kind: OutcomeKind
    code: int
    reason: BounceClass | None
    words: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class AttemptOutcomes:
    """The outcomes of one attempt, the most frequent first, and its seconds."""

    counts: tuple[OutcomeCount, ...]
    seconds: float

    @classmethod
    def of(
        cls, outcomes: Mapping[str, Outcome], seconds: float, sender: str | None = None
    ) -> AttemptOutcomes:
        """Return what is kept of the outcomes by recipient. Each refusal is classified here, once.
        Of the sender too the local part is masked where a reply quotes it."""
        if len(outcomes) == 1:
            ((recipient, outcome),) = outcomes.items()
            return cls((_count_of(recipient, outcome, sender),), seconds)
        found = Counter(
            _count_of(recipient, outcome, sender) for recipient, outcome in outcomes.items()
        )
        return cls(_limited(replace(each, count=number) for each, number in found.items()), seconds)

    @property
    def reasons(self) -> list[str]:
        """The classes of the refusals, each once, sorted."""
        return sorted({each.reason.value for each in self.counts if each.reason is not None})


def _count_of(recipient: str, outcome: Outcome, sender: str | None) -> OutcomeCount:
    domain = domain_of(recipient)
    if outcome.kind is OutcomeKind.DELIVERED:
        return _delivery(domain, outcome.site, outcome.text[:4])
    code, reason, words = bounce_of(outcome.text, (recipient, sender))
    return OutcomeCount(domain, outcome.site, outcome.kind, code, reason, words)


@lru_cache(maxsize=1024)  # most mails are delivered, to few domains
def _delivery(domain: str, site: str, code: str) -> OutcomeCount:
    return OutcomeCount(domain, site, OutcomeKind.DELIVERED, code_of(code), None, "")


def _place(count: OutcomeCount) -> tuple[object, ...]:
    return (-count.count, count.domain, count.site, count.kind, count.code, count.words)


def _limited(counts: Iterable[OutcomeCount]) -> tuple[OutcomeCount, ...]:
    """Return the most frequent counts, and one more for each kind of the others."""
    ordered = sorted(counts, key=_place)
    others: Counter[OutcomeKind] = Counter()
    for each in ordered[MAX_COUNTS:]:
        others[each.kind] += each.count
    rest = (
        OutcomeCount("", "", kind, 0, BounceClass.OTHER, "", number)
        for kind, number in sorted(others.items())
    )
    return (*ordered[:MAX_COUNTS], *rest)


MAX_REASON = 200
"""Characters."""


def checked_reason(text: str) -> str:
    """Return a reason with single spaces. Raises: InvalidInput."""
    reason = " ".join(text.split())
    if not reason or len(reason) > MAX_REASON or not reason.isprintable():
        raise InvalidInput(f"a reason has 1 to {MAX_REASON} printable characters")
    return reason


def reason_of(bounce: Bounce) -> str:
    """Return the reason that a refusal gives; it names no address."""
    return f"{bounce.code} {bounce.reason}: {bounce.words}"[:MAX_REASON]
