"""One item: transmit, record, report, end.

This order keeps duplicates few: the worker records a delivery as soon as it is known, and ends the
item only then. Only a crash between the next hop's reply and the record causes a second copy.
A failure is recorded behind its report to the sender: a crash between the two repeats the attempt,
and never loses the report (ADR 0052)."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from typing import NamedTuple

from postroad.domain.delivery.attempts import Attempted, AttemptOutcomes
from postroad.domain.delivery.retries import (
    DONE,
    AttemptAt,
    DeferItem,
    Done,
    ItemEnding,
    Reject,
    RetryItem,
    RetryPlan,
    decide,
    decide_each,
    expired,
    softened,
)
from postroad.domain.mail.mail import TRACEPARENT, Outcome, OutcomeKind
from postroad.domain.smtp.bounces import bounce_of
from postroad.errors import (
    StoreFull,
)
from postroad.handling import insist, must_be_recorded
from postroad.ports.clock import Clock, Randomness
from postroad.ports.delivery import AttemptLog
from postroad.ports.events import EventLog
from postroad.ports.mail_queue import Item
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import ATTEMPTS, DELIVERY_SECONDS, of_queue
from postroad.telemetry.tracing import MailSpan, MailTracer, mail_attributes
from postroad.worker.reporting import DueReport, Reporting
from postroad.worker.sites.shown_outcomes import ShownOutcomes
from postroad.worker.sites.suppressing import Suppressing

_log = logger("worker")
_CODES = re.compile(r"[2-5][0-9]{2}(?: [245]\.[0-9]{1,3}\.[0-9]{1,3})?\b")

UNEXPECTED = "451 4.3.5 unexpected error in the worker"
NO_ROOM_FOR_REPORT = "452 4.3.1 there is no room for the report to the sender"


class Took(NamedTuple):
    """Seconds of a transmission; those of them before a connection took the mail."""

    seconds: float
    connect_seconds: float = 0.0


NO_TIME = Took(0.0)


@dataclass(frozen=True, slots=True)
class Deliverer:
    """Parts that all deliveries of a worker share."""

    queue: str
    plan: RetryPlan
    clock: Clock
    randomness: Randomness
    attempt_log: AttemptLog | None = None
    reporting: Reporting | None = None
    """Reports to senders; None: none are made."""

    suppressing: Suppressing | None = None
    """Recipients that are not mailed any more; None: nothing is learnt of that."""

    events: EventLog | None = None
    """Events for programs outside; None: there are none."""

    tracer: MailTracer | None = None
    """Begins the spans of mails; None: there are none."""

    shown: ShownOutcomes | None = None
    """Outcomes that consoles show as they happen; None: they are not shown."""

    def begin_span(self, item: Item) -> MailSpan:
        """Begin the span of an item that was leased, below that of its acceptance."""
        assert self.tracer is not None
        mail = item.mail
        attributes = mail_attributes(self.queue, item.size_bytes, len(mail.recipients))
        attributes["messaging.message.id"] = str(item.enqueue_id)
        attributes["postroad.attempt"] = item.attempt + 1
        return self.tracer.begin("dequeue", mail.attributes.get(TRACEPARENT), attributes)

    @property
    def is_logging(self) -> bool:
        """True if attempts are written somewhere."""
        return (
            self.attempt_log is not None
            or (self.events is not None and self.events.is_on)
            or (self.shown is not None and self.shown.is_watched)
        )

    async def end(
        self,
        item: Item,
        outcomes: Mapping[str, Outcome],
        untried: Mapping[str, str],
        unrecorded: Mapping[str, Outcome],
        duration: timedelta,
        backoff: timedelta = timedelta(0),
        *,
        is_paced: bool = False,
        plans: Mapping[str, RetryPlan] | None = None,
    ) -> str:
        """Report to the sender what the outcomes of an attempt ask for, then end the item by them,
        and return how it ended: delivered, deferred or rejected;
        `unrecorded` are those of them that `record` has not had, `untried` the reasons why other
        recipients were not attempted. They are not to come again before a `backoff` is over;
        `is_paced`: they come then, because limits by rate are why. `plans`: of recipients that have
        their own. Repeated until it succeeds. Raises: QueueClosed, EntryLost."""
        if self.plan.soft_bounce:
            outcomes, unrecorded = softened(outcomes), softened(unrecorded)
        seconds = duration.total_seconds()
        if plans:
            over = self._expired(item, plans, outcomes, untried, seconds)
            outcomes, unrecorded = {**outcomes, **over}, {**unrecorded, **over}
            untried = {each: reason for each, reason in untried.items() if each not in over}
        attempt = AttemptOutcomes.of(outcomes, seconds, item.mail.sender) if outcomes else None
        ending = self._ending(item, outcomes, untried, backoff, plans, is_paced=is_paced)
        if self.suppressing is not None:
            # Before the end: behind it, a crash would lose what the refusal teaches.
            await self.suppressing.learn(item.mail, outcomes)
        left = {**_of_kind(outcomes, OutcomeKind.FAILED), **unrecorded}
        reporting = self.reporting
        report = reporting and reporting.prepare(item, outcomes, untried, ending)
        if reporting and report and await self._is_suppressed(report.address, item):
            reporting.leave_out(report)
            report = None
        if reporting and report:
            early = [each for each in _of_kind(left, _DELIVERED) if each not in report.addresses]
            # Before the report, which may wait for long: a kill meanwhile would send to them again.
            await self.record(item, {each: left.pop(each) for each in early})
            # Before the record of failures: a kill in between repeats the report, and its key makes
            # one of both; the other way round, the sender would never hear of them.
            if not await self._is_queued(reporting, report):
                left = _of_kind(left, _DELIVERED)
                ending = self._defer(item, outcomes) or ending
        if isinstance(ending, Reject) and (given_up := _given_up(outcomes, untried)):
            self.log_attempt(item, given_up, Took(seconds), given_up=True)
        await self._publish()
        # Before the end: a retry would send to those who have the mail, a dead letter name them.
        if must_be_recorded(left, ending):
            await self._record(item, left)
        await self._insist("end", partial(item.end, ending, attempt))
        if self.shown is not None and isinstance(ending, Done | Reject):
            self.shown.left += 1
        reasons = set(attempt.reasons) if attempt else set[str]()
        reasons |= {bounce_of(each).reason.value for each in set(untried.values())}
        self._report(item, outcomes, sorted(reasons), ending, duration)
        return _ENDINGS[type(ending)]

    def _ending(
        self,
        item: Item,
        outcomes: Mapping[str, Outcome],
        untried: Mapping[str, str],
        backoff: timedelta,
        plans: Mapping[str, RetryPlan] | None = None,
        *,
        is_paced: bool = False,
    ) -> ItemEnding:
        failures = item.failures
        if not (failures or untried) and all(
            outcome.kind is _DELIVERED for outcome in outcomes.values()
        ):
            return DONE  # as `decide` would, without reading the clock for each mail
        attempt: AttemptAt = {
            "attempt": item.attempt,
            "age": self.clock.now() - item.accepted_at,
            "uniform": self.randomness.uniform(),
            "backoff": backoff,
            "is_paced": is_paced,
        }
        if plans:
            return decide_each(self.plan, plans, outcomes, failures, untried, **attempt)
        return decide(self.plan, outcomes, failures, untried, **attempt)

    def _expired(
        self,
        item: Item,
        plans: Mapping[str, RetryPlan],
        outcomes: Mapping[str, Outcome],
        untried: Mapping[str, str],
        seconds: float,
    ) -> dict[str, Outcome]:
        """Return the failures of recipients whose own plan is over, and log them."""
        over = expired(plans, outcomes, untried, self.clock.now() - item.accepted_at)
        if over:
            known = _given_up(outcomes, untried)
            self.log_attempt(item, {e: known[e] for e in over}, Took(seconds), given_up=True)
        return over

    def _defer(self, item: Item, outcomes: Mapping[str, Outcome]) -> DeferItem | None:
        """Return the ending of an item whose report cannot be queued: all that were not delivered
        wait on, so that the item leaves the worker to those whose delivery makes room. None: all
        were delivered."""
        delay = self.plan.backoff(self.randomness.uniform())
        delivered = _of_kind(outcomes, _DELIVERED)
        remaining = tuple(each for each in item.mail.recipients if each not in delivered)
        return DeferItem(delay, remaining, NO_ROOM_FOR_REPORT) if remaining else None

    async def defer(self, item: Item, outcomes: Mapping[str, Outcome], reason: str) -> None:
        """End an item for all who are not recorded, behind a record of those who were delivered: no
        attempt is counted. Repeated until it succeeds. Raises: QueueClosed, EntryLost."""
        await self._publish()
        await self.record(item, outcomes)  # first: who has the mail would get it again
        delay = self.plan.backoff(self.randomness.uniform())
        await self._insist("end", partial(item.end, DeferItem(delay, None, reason)))

    async def _is_suppressed(self, address: str, item: Item) -> bool:
        """Return whether an address is not mailed."""
        suppressing = self.suppressing
        return suppressing is not None and await suppressing.has(address, item.mail.tenant)

    async def _is_queued(self, reporting: Reporting, report: DueReport) -> bool:
        """Queue a report; return False where the store has no room for it. Raises: QueueClosed,
        EntryLost."""
        try:
            await self._insist("report", partial(reporting.send, report), StoreFull)
        except StoreFull:
            return False
        return True

    def note(
        self,
        item: Item,
        outcomes: Mapping[str, Outcome],
        took: Took,
        message_id: str | None = None,
    ) -> None:
        """Count the outcomes of a transmission, and write them into the attempt log: called before
        `record` and `end`. No seconds: there was none, because no route was found."""
        self.log_attempt(item, outcomes, took, message_id)
        if took.seconds:
            _seconds_of(*of_queue(self.queue)).observe(took.seconds)
        for outcome in outcomes.values():
            _attempts_of(*of_queue(self.queue), outcome.kind).inc()

    def log_attempt(
        self,
        item: Item,
        outcomes: Mapping[str, Outcome],
        took: Took,
        message_id: str | None = None,
        *,
        given_up: bool = False,
    ) -> None:
        """Write the outcomes of a transmission into the attempt log: called before `record` and
        `end`."""
        if not self.is_logging:
            return
        attempted = Attempted(
            queue=self.queue,
            mail_id=item.mail_id,
            enqueue_id=item.enqueue_id,
            number=item.attempt + 1,
            sender=item.mail.sender,
            size_bytes=item.size_bytes,
            accepted_at=item.accepted_at,
            ended_at=self.clock.now(),
            seconds=took.seconds,
            connect_seconds=took.connect_seconds,
            message_id=message_id,
        )
        if self.attempt_log is not None:
            self.attempt_log.write(attempted, outcomes, given_up=given_up)
        if self.shown is not None:
            self.shown.note(attempted, outcomes, given_up=given_up)
        if self.events is not None:
            if self.plan.soft_bounce:
                outcomes = softened(outcomes)
            self.events.note(attempted, item.mail, outcomes, given_up=given_up)

    async def _publish(self) -> None:
        """Let all events be durable, before what they are about is recorded: a crash in between
        repeats them. Repeated until it succeeds. Raises: QueueClosed, EntryLost."""
        if self.events is not None:
            await self._insist("events", self.events.flush)

    async def record(self, item: Item, outcomes: Mapping[str, Outcome]) -> None:
        """Record those that were delivered. `end` records failures, behind their report; deferred
        ones need no record: they stay in the envelope. Repeated until it succeeds. Raises:
        QueueClosed, EntryLost."""
        await self._record(item, _of_kind(outcomes, _DELIVERED))

    async def _record(self, item: Item, outcomes: Mapping[str, Outcome]) -> None:
        finished = {
            recipient: outcome
            for recipient, outcome in outcomes.items()
            if outcome.kind is not OutcomeKind.DEFERRED
        }
        if finished:
            await self._publish()
            await self._insist("record", partial(item.record, finished))

    async def _insist(
        self,
        step: str,
        operation: Callable[[], Awaitable[None]],
        *final: type[Exception],
    ) -> None:
        """Repeat an operation until it succeeds. A report that is lost leaves its sender without
        notice, and a worker whose queue is away soon dequeues no more. Raises: as `insist`."""

        def failed(error: Exception) -> None:
            _log.warning("outcome not recorded yet", queue=self.queue, step=step, error=str(error))

        await insist(self.clock, operation, failed, *final)

    def _report(
        self,
        item: Item,
        outcomes: Mapping[str, Outcome],
        reasons: list[str],
        ending: ItemEnding,
        duration: timedelta,
    ) -> None:
        _log.info(
            f"mail {_ENDINGS[type(ending)]}",
            **ids_of(self.queue, item),
            attempt=item.attempt + 1,  # as the attempt log counts
            **counts_of(outcomes),
            replies=replies_of(outcomes),
            reasons=reasons,
            duration=round(duration.total_seconds(), 3),
        )


# Cached, because `labels` costs more than counting.
_seconds_of, _attempts_of = lru_cache(DELIVERY_SECONDS.labels), lru_cache(ATTEMPTS.labels)

_DELIVERED = OutcomeKind.DELIVERED
_ENDINGS = {
    Done: "delivered",
    RetryItem: "deferred",
    DeferItem: "deferred",
    Reject: "rejected",
}


def _of_kind(outcomes: Mapping[str, Outcome], kind: OutcomeKind) -> dict[str, Outcome]:
    return {each: outcome for each, outcome in outcomes.items() if outcome.kind is kind}


def _given_up(outcomes: Mapping[str, Outcome], untried: Mapping[str, str]) -> dict[str, Outcome]:
    """Return the last that is known of recipients who are neither delivered to nor failed."""
    return {
        **_of_kind(outcomes, OutcomeKind.DEFERRED),
        **{each: Outcome.deferred(reason) for each, reason in untried.items()},
    }


def counts_of(outcomes: Mapping[str, Outcome]) -> dict[str, int]:
    counts: dict[str, int] = {}  # a Counter takes ten times as long for one recipient
    for outcome in outcomes.values():
        counts[outcome.kind] = counts.get(outcome.kind, 0) + 1
    return counts


def replies_of(outcomes: Mapping[str, Outcome]) -> list[str]:
    """Return the codes of the replies of outcomes, each once."""
    return sorted({_codes_of(outcome.text) for outcome in outcomes.values()})


def _codes_of(text: str) -> str:
    """Return the codes of a reply without its text, which may hold addresses: logs at INFO hold
    none."""
    found = _CODES.match(text)
    return found[0] if found else "-"


def ids_of(queue: str, item: Item) -> dict[str, str]:
    return {
        "queue": queue,
        "enqueue_id": str(item.enqueue_id),
        "mail_id": str(item.mail_id),
    }
