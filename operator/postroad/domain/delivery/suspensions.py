"""Sites that get no mail for a time, because an administrator or their answers ask for it. Pure."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from postroad.domain.delivery.reasons import reason_of
from postroad.domain.mail.mail import Outcome, OutcomeKind
from postroad.domain.smtp.bounces import Bounce, BounceClass, bounce_of, is_about_mailbox
from postroad.domain.values.instants import rfc3339
from postroad.errors import InvalidInput

LONGEST_SUSPENSION = timedelta(days=30)

MOST_SITES = 10_000
"""Whose last answers are counted."""


class SuspendedBy(StrEnum):
    """What suspended a site. The values are stored."""

    ADMINISTRATOR = "administrator"
    ANSWERS = "answers"


@dataclass(frozen=True, slots=True)
class Suspension:
    """One site, with why and until when."""

    site: str
    until: datetime
    reason: str
    by: SuspendedBy

    def text(self) -> str:
        """Return the form in which it is posted."""
        return json.dumps({"until": rfc3339(self.until), "reason": self.reason, "by": self.by})

    @classmethod
    def of(cls, site: str, text: str) -> Suspension:
        """Read the posted form. Raises: InvalidInput."""
        try:
            found = json.loads(text)
            # One that a later release knows is ended by an administrator at least.
            by = found.get("by")
            known = by if by in {*SuspendedBy} else SuspendedBy.ADMINISTRATOR
            until = datetime.fromisoformat(found["until"]).astimezone(UTC)
            reason = str(found["reason"])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise InvalidInput(f"the suspension of {site} cannot be read") from error
        return cls(site, until, reason, SuspendedBy(known))


@dataclass(frozen=True, slots=True)
class AnswerRule:
    """So many answers of this reason in succession, with no delivery between them, suspend a site
    for so long. `code`: those with this basic code alone; 0: with any."""

    code: int
    reason: BounceClass
    answers: int
    duration: timedelta


ANSWER_RULES = (
    AnswerRule(421, BounceClass.RATE, 1, timedelta(minutes=10)),
    AnswerRule(421, BounceClass.POLICY, 2, timedelta(minutes=10)),
    AnswerRule(421, BounceClass.BLOCKED, 2, timedelta(minutes=30)),
    AnswerRule(0, BounceClass.RATE, 5, timedelta(minutes=15)),
    AnswerRule(0, BounceClass.BLOCKED, 3, timedelta(minutes=30)),
)
"""The first row that fits decides. `421 4.7.0` is how large sites ask for less; a block list
refuses whatever comes next, and counts it. The longest rests are those after which a site is likely
to have changed its mind (`retries.LEAST_DELAYS`)."""


class AnswerCounts:
    """Counts the answers of sites that a rule is about."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, dict[AnswerRule, int]] = OrderedDict()

    def heard(self, site: str, outcomes: Iterable[Outcome], now: datetime) -> Suspension | None:
        """Count what one transmission came to; return the suspension that it leads to. What a
        server of the site did not answer itself, and what is about one mailbox, does not count."""
        answered = [each for each in outcomes if each.responder is not None]
        if any(each.kind is OutcomeKind.DELIVERED for each in answered):
            self._counts.pop(site, None)
            return None
        rules = dict[AnswerRule, Bounce]()
        for text in {each.text for each in answered if not is_about_mailbox(each.text)}:
            bounce = bounce_of(text)
            if (rule := _rule_for(bounce)) is not None:
                rules.setdefault(rule, bounce)
        for rule, bounce in rules.items():
            counts = self._counts.setdefault(site, {})
            self._counts.move_to_end(site)
            counts[rule] = counts.get(rule, 0) + 1
            if counts[rule] >= rule.answers:
                del self._counts[site]
                until, reason = now + rule.duration, reason_of(bounce)
                return Suspension(site, until, reason, SuspendedBy.ANSWERS)
        while len(self._counts) > MOST_SITES:
            self._counts.popitem(last=False)
        return None


def _rule_for(bounce: Bounce) -> AnswerRule | None:
    return next(
        (
            rule
            for rule in ANSWER_RULES
            if rule.reason is bounce.reason and rule.code in (0, bounce.code)
        ),
        None,
    )
