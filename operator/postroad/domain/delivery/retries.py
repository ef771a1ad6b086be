"""When a mail is tried again, and when it is given up: outcomes and ages in, one of the four
endings of an item out. Pure.

Lanes are the steps of the schedule, by attempt; the last one repeats until the mail is too old.
Source: RFC 5321 4.5.4.1 (give up after 4 to 5 days, wait at least 30 minutes on the whole; shorter
first steps serve greylisting)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import ClassVar, Protocol, TypedDict, Unpack

from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.mail.mail import Outcome, OutcomeKind
from postroad.domain.smtp.bounces import BounceClass, bounce_of
from postroad.domain.values.domain_patterns import DomainPatterns
from postroad.domain.values.instants import format_duration
from postroad.errors import InvalidInput, InvalidSettings


@dataclass(frozen=True, slots=True)
class Done:
    """Every recipient has the mail."""

    name: ClassVar = "done"


@dataclass(frozen=True, slots=True)
class RetryItem:
    """Some recipients are to be tried again; `remaining` None: all who are left."""

    name: ClassVar = "retry"
    delay: timedelta
    remaining: tuple[str, ...] | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class DeferItem:
    """Those who are left were not attempted; `remaining` None: all who are left."""

    name: ClassVar = "defer"
    delay: timedelta
    remaining: tuple[str, ...] | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """No recipient is left to be tried, and some did not get the mail."""

    name: ClassVar = "reject"
    reason: str


ItemEnding = Done | RetryItem | DeferItem | Reject
DONE = Done()


def check_named(named: Iterable[str], recipients: Iterable[str]) -> None:
    """Check that recipients are among those left, in the same spelling: one to be tried again who
    is not named counts as delivered, one whose outcome is recorded under another name is tried
    again. Raises: InvalidInput."""
    left = set(recipients)
    unknown = sum(each not in left for each in named)
    if unknown:
        raise InvalidInput(
            f"{unknown} of those named are not among the {len(left)} recipients left",
            hint="name them as `Item.mail.recipients` does, less those recorded as delivered or"
            " failed",
        )


class Endings(Protocol):
    """The endings of an item, each by `end`, which is an engine's."""

    async def end(self, ending: ItemEnding, outcomes: AttemptOutcomes | None = None) -> None:
        """End the item as the method that the ending is named after. Raises: InvalidInput, for a
        delay or a reason that is none; the item is as before."""

    async def done(self, outcomes: AttemptOutcomes | None = None) -> None:
        """End the mail for all recipients not yet recorded. Durable when it returns. The content is
        deleted; the mail never comes again."""
        await self.end(DONE, outcomes)

    async def retry(
        self,
        delay: timedelta,
        remaining: tuple[str, ...] | None = None,
        error: str | None = None,
        outcomes: AttemptOutcomes | None = None,
    ) -> None:
        """Give the mail another entry after `delay`, for `remaining` (default: all not recorded as
        delivered or failed). With no recipient remaining this is `done`. Raises: InvalidInput when
        one of `remaining` is not among those; the item is as before. That the mail waits, and for
        whom, is durable when it returns. The embedded engine may forget the delay in a crash within
        seconds (FORMAT.md 8): the mail is then due at once."""
        await self.end(RetryItem(delay, remaining, error), outcomes)

    async def defer(
        self,
        delay: timedelta,
        remaining: tuple[str, ...] | None = None,
        reason: str | None = None,
        outcomes: AttemptOutcomes | None = None,
    ) -> None:
        """As `retry`, but no attempt is counted: for recipients to whom nothing was transmitted,
        since a site backs off or a limit is reached. The reason is shown as the last error.
        `outcomes` are of the other recipients, if there were any."""
        await self.end(DeferItem(delay, remaining, reason), outcomes)

    async def reject(self, reason: str, outcomes: AttemptOutcomes | None = None) -> None:
        """Move the mail to the dead letters with a reason. Durable when it returns. The dead
        letter's recipients are those who did not get the mail: the ones left, and the ones recorded
        as failed."""
        await self.end(Reject(reason), outcomes)


_ZERO = timedelta(0)

DEFAULT_LANES = tuple(timedelta(minutes=minutes) for minutes in (1, 5, 15, 60, 240))
"""Short steps first: most deferrals are greylisting or a moment's load."""

MIN_DELAY = timedelta(seconds=1)
"""After which a mail comes again that a limit by rate deferred."""

DEFAULT_MAX_AGE = timedelta(hours=120)

MIN_DELAYS = {
    BounceClass.RATE: timedelta(minutes=15),
    BounceClass.BLOCKED: timedelta(minutes=30),
    BounceClass.AUTHENTICATION: timedelta(minutes=15),
    BounceClass.MAILBOX_FULL: timedelta(hours=1),
    BounceClass.LOOP: timedelta(hours=1),
}
"""By the reason of a deferral: when it may have passed. A site that limits the rate counts
attempts, and a mailbox is emptied, an entry in DNS changed, by people. What is not here may pass at
once, as greylisting does in the first lanes, which many sites do not name."""


@dataclass(frozen=True, slots=True)
class RetryPlan:
    """The schedule. `jitter` lengthens each delay by up to this share, so that mails deferred
    together do not come again together. `soft_bounce`: a permanent refusal defers, so that a wrong
    setting, here or at a next hop, ends no mail before its max age. `max_attempts`: after so many,
    a mail is given up before its max age."""

    lanes: tuple[timedelta, ...] = DEFAULT_LANES
    max_age: timedelta = DEFAULT_MAX_AGE
    jitter: float = 0.1
    soft_bounce: bool = False
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        if not self.lanes or not all(isinstance(e, timedelta) and e > _ZERO for e in self.lanes):
            raise InvalidSettings("retry lanes are one or more timedeltas above zero")
        if self.max_age <= _ZERO:
            raise InvalidSettings("the retry's max age is above zero")
        if self.max_attempts is not None and self.max_attempts < 1:
            raise InvalidSettings("the retry's max attempts are 1 or more")

    def delay(self, attempt: int, uniform: float) -> timedelta:
        """Return the delay after attempt number `attempt`, from 0; `uniform` is random in [0, 1).

        >>> RetryPlan(jitter=0).delay(99, 0.5)
        datetime.timedelta(seconds=14400)
        """
        return self.lanes[min(attempt, len(self.lanes) - 1)] * (1 + self.jitter * uniform)

    def delay_for(
        self, attempt: int, texts: Iterable[str], uniform: float, least: timedelta = _ZERO
    ) -> timedelta:
        """Return the delay after an attempt that was deferred with these texts: the longest of the
        lane, `least`, and the shortest of MIN_DELAYS, which is at most the last lane.

        >>> plan = RetryPlan(jitter=0)
        >>> plan.delay_for(0, ["452 4.2.2 over quota"], 0.5)
        datetime.timedelta(seconds=3600)
        """
        least = max(least, _least_delay(texts, self.lanes[-1]))
        return max(self.delay(attempt, uniform), least * (1 + self.jitter * uniform))

    def backoff(self, uniform: float, least: timedelta = _ZERO) -> timedelta:
        """Return for how long a mail is deferred that was not attempted: the second lane, since it
        is not attempted less often with time, and may be one of many; `least`, if that is more."""
        return max(self.delay(1, uniform), least * (1 + self.jitter * uniform))


@dataclass(frozen=True, slots=True)
class RetryRule:
    """A plan for recipients in `domains` (None: in all) whose first next hop is one of `servers`
    (None: any)."""

    plan: RetryPlan
    domains: DomainPatterns | None = None
    servers: DomainPatterns | None = None

    def fits(self, domain: str, servers: Iterable[str]) -> bool:
        """Return whether mail to a domain, by these servers first, goes by the plan."""
        if self.domains is not None and self.domains.match(domain) is None:
            return False
        return self.servers is None or any(map(self.servers.match, servers))


def expired(
    plans: Mapping[str, RetryPlan],
    outcomes: Mapping[str, Outcome],
    untried: Mapping[str, str],
    age: timedelta,
) -> dict[str, Outcome]:
    """Return failures for those recipients that wait and whose own plan ends at this age."""
    waiting = {**untried, **_texts_of(outcomes, OutcomeKind.DEFERRED)}
    return {
        each: Outcome.failed(f"554 5.4.7 not delivered within {format_duration(limit)}: {text}")
        for each, text in waiting.items()
        if each in plans and age >= (limit := plans[each].max_age)
    }


def softened(outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """Return outcomes with permanent refusals deferred."""
    return {
        recipient: replace(outcome, kind=OutcomeKind.DEFERRED)
        if outcome.kind is OutcomeKind.FAILED
        else outcome
        for recipient, outcome in outcomes.items()
    }


class AttemptAt(TypedDict):
    """Facts of an attempt that decide beside its outcomes."""

    attempt: int
    age: timedelta
    uniform: float
    backoff: timedelta
    is_paced: bool


def decide(
    plan: RetryPlan,
    outcomes: Mapping[str, Outcome],
    failures: Mapping[str, str],
    untried: Mapping[str, str],
    *,
    attempt: int,
    age: timedelta,
    uniform: float,
    backoff: timedelta = _ZERO,
    is_paced: bool = False,
) -> ItemEnding:
    """Return how an entry ends after an attempt.

    `outcomes` are this attempt's, `failures` the texts of recipients that failed in earlier
    entries, `untried` the reasons why recipients were not attempted; `attempt` counts the attempts
    before this one, `age` is the time since acceptance. Of recipients that wait on, one that was
    attempted makes it an attempt for all of them, because an entry has one due time: that of the
    recipient whose reason passes first. `backoff` is how long the next hops of those that were not
    attempted back off yet, or ask to be left alone where all were; `is_paced`: limits by rate let
    them go then, so that they wait for no lane."""
    deferred = _texts_of(outcomes, OutcomeKind.DEFERRED)
    failed = [outcome.text for outcome in outcomes.values() if outcome.kind is OutcomeKind.FAILED]
    waiting = {**deferred, **untried}
    if waiting and age >= plan.max_age:
        limit = format_duration(plan.max_age)
        return Reject(f"not delivered within {limit}: {_joined(waiting.values())}")
    if deferred and plan.max_attempts is not None and attempt + 1 >= plan.max_attempts:
        return Reject(f"not delivered in {attempt + 1} attempts: {_joined(waiting.values())}")
    if deferred:
        error = _joined(deferred.values())
        if untried:
            return RetryItem(plan.delay(attempt, uniform), tuple(waiting), error)
        delay = plan.delay_for(attempt, dict.fromkeys(deferred.values()), uniform, backoff)
        return RetryItem(delay, tuple(waiting), error)
    if untried:
        delay = max(backoff, MIN_DELAY) if is_paced else plan.backoff(uniform, backoff)
        return DeferItem(delay, tuple(untried), _joined(untried.values()))
    if failed or failures:
        return Reject(_joined([*failed, *failures.values()]))
    return DONE


def decide_each(
    plan: RetryPlan,
    plans: Mapping[str, RetryPlan],
    outcomes: Mapping[str, Outcome],
    failures: Mapping[str, str],
    untried: Mapping[str, str],
    **others: Unpack[AttemptAt],
) -> ItemEnding:
    """Return the same where recipients have `plans` of their own, none of which is `expired`: those
    that wait on come again when the plan of the first of them has it."""
    waiting = {**_texts_of(outcomes, OutcomeKind.DEFERRED), **untried}
    by_plan: dict[RetryPlan, dict[str, str]] = {}
    for recipient, text in waiting.items():
        by_plan.setdefault(plans.get(recipient, plan), {})[recipient] = text
    if not by_plan:
        return decide(plan, outcomes, failures, untried, **others)
    found = [
        decide(
            each,
            {name: outcome for name, outcome in outcomes.items() if name in texts},
            {},
            {name: reason for name, reason in untried.items() if name in texts},
            **others,
        )
        for each, texts in by_plan.items()
    ]
    delays = [each.delay for each in found if isinstance(each, RetryItem | DeferItem)]
    if not delays:
        return found[0]
    kind = RetryItem if any(isinstance(each, RetryItem) for each in found) else DeferItem
    return kind(min(delays), tuple(waiting), _joined(waiting.values()))


def _texts_of(outcomes: Mapping[str, Outcome], kind: OutcomeKind) -> dict[str, str]:
    return {name: outcome.text for name, outcome in outcomes.items() if outcome.kind is kind}


def _joined(texts: Iterable[str]) -> str:
    """Join the first three distinct texts: a mail to a thousand may fail in a thousand ways."""
    distinct = list(dict.fromkeys(texts))
    more = f"; and {len(distinct) - 3} more" if len(distinct) > 3 else ""
    return "; ".join(distinct[:3]) + more


def _least_delay(texts: Iterable[str], longest: timedelta) -> timedelta:
    """Return the shortest delay that a reason asks for; none without texts. Ends at the first one
    that asks for none, because a mail to a thousand may be deferred in a thousand ways."""
    shortest = None
    for text in texts:
        least = min(MIN_DELAYS.get(bounce_of(text).reason, _ZERO), longest)
        shortest = least if shortest is None else min(shortest, least)
        if shortest == _ZERO:
            break
    return shortest or _ZERO
