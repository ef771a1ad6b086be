"""One item: transmit, record, report, end.

This order keeps duplicates few: the worker records a delivery as soon as it is known, and ends the
item only then. Only a crash between the next hop's reply and the record causes a second copy.
A failure is recorded behind its report to the sender: a crash between the two repeats the attempt,
and never loses the report (ADR 0052).
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
)
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache, partial
from time import perf_counter
from typing import cast

from postroad.domain.attempt_log import Attempted
from postroad.domain.attempts import AttemptOutcomes
from postroad.domain.mail import Outcome, OutcomeKind
from postroad.domain.retries import (
    Done,
    ItemEnding,
    PutOffItem,
    Reject,
    RetryItem,
    RetryPlan,
    decide,
)
from postroad.errors import (
    BlobMissing,
    EntryEnded,
    EntryLost,
    PostroadError,
    QueueClosed,
    ServerError,
    StoreFull,
)
from postroad.ports.attempt_log import AttemptLog
from postroad.ports.clock import Clock, Randomness
from postroad.ports.mail_queue import Item
from postroad.ports.transport import Transport
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import ATTEMPTS, DELIVERY_SECONDS
from postroad.worker.reporting import DueReport, Reporting

_log = logger("worker")
_CODES = re.compile(r"[2-5][0-9]{2}(?: [245]\.[0-9]{1,3}\.[0-9]{1,3})?\b")

MOST_RECIPIENTS = 100
"""Per transmission. Every server accepts so many; it may refuse more (RFC 5321 4.5.3.1.8)."""

OUT_OF_TIME = Outcome.deferred("451 4.4.2 the next hop took too long over this mail")
NO_TIME_LEFT = "451 4.4.2 the next hop took too long over other recipients of this mail"

NO_ROOM_FOR_REPORT = "452 4.3.1 there is no room for the report to the sender"

FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=1), timedelta(seconds=30)
"""Between attempts to record an outcome while the queue cannot be reached."""


class _NotAttempted(Exception):
    """Nothing was transmitted to the recipients; the argument is the reason."""


class _ContentReader:
    """Reads the content of an item for a transport."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = cast("AsyncGenerator[bytes, None]", chunks)
        self.has_begun = False
        """Whether the transport has got a chunk. It reads none before it transmits, so without one
        there was no attempt."""

    def __aiter__(self) -> _ContentReader:
        return self

    async def __anext__(self) -> bytes:
        chunk = await anext(self._chunks)
        self.has_begun = True
        return chunk

    async def close(self) -> None:
        await self._chunks.aclose()


@dataclass(frozen=True, slots=True)
class Deliverer:
    """What all deliveries of a worker share."""

    queue: str
    transport: Transport
    plan: RetryPlan
    clock: Clock
    randomness: Randomness
    attempt_log: AttemptLog | None = None
    reporting: Reporting | None = None
    """Reports to senders; None: none are made."""

    async def deliver(self, item: Item) -> None:
        """Transmit one item, record the outcomes, end it. Raises: QueueClosed."""
        outcomes: dict[str, Outcome] = {}
        try:
            await self._deliver(item, outcomes)
        except BlobMissing:
            _log.info("mail without its bytes", **_ids(self.queue, item))  # ended by the queue
        except EntryLost as error:
            _log.warning(
                "entry lost", **_ids(self.queue, item), **_counts(outcomes), error=str(error)
            )

    async def _deliver(self, item: Item, outcomes: dict[str, Outcome]) -> None:
        begun = self.clock.elapsed()
        recipients = item.mail.recipients
        left = recipients
        untried: dict[str, str] = {}
        unrecorded: dict[str, Outcome] = {}
        while left:
            try:
                results = await self._transmit(item, left[:MOST_RECIPIENTS])
            except _NotAttempted as error:
                untried = dict.fromkeys(left, str(error))
                break
            outcomes.update(results)
            unrecorded.update(results)
            left = tuple(each for each in left if each not in results)
            if left:
                await self.record(item, unrecorded)
                unrecorded = {}
        await self.end(item, outcomes, untried, unrecorded, self.clock.elapsed() - begun)

    async def end(
        self,
        item: Item,
        outcomes: Mapping[str, Outcome],
        untried: Mapping[str, str],
        unrecorded: Mapping[str, Outcome],
        duration: timedelta,
    ) -> None:
        """Report to the sender what the outcomes of an attempt ask for, then end the item by them;
        `unrecorded` are those of them that `record` has not had, `untried` the reasons why other
        recipients were not attempted. Repeated until it succeeds. Raises: QueueClosed, EntryLost.
        """
        seconds = duration.total_seconds()
        heard = AttemptOutcomes.of(outcomes, seconds, item.mail.sender) if outcomes else None
        ending = self._ending(item, outcomes, untried)
        left = {**_of_kind(outcomes, OutcomeKind.FAILED), **unrecorded}
        reporting = self.reporting
        report = reporting and reporting.prepare(item, outcomes, untried, ending)
        if reporting and report:
            early = [each for each in _of_kind(left, _DELIVERED) if each not in report.addresses]
            await self.record(item, {each: left.pop(each) for each in early})
            if not await self._is_queued(reporting, report):
                left = _of_kind(left, _DELIVERED)
                ending = self._put_off(item, outcomes) or ending
        if isinstance(ending, Reject) and (deferred := _of_kind(outcomes, OutcomeKind.DEFERRED)):
            self.log_attempt(item, deferred, seconds, given_up=True)
        if _must_be_recorded(left, ending):
            await self._record(item, left)
        await self._insist("end", _carrying_out(item, ending, heard))
        self._report(item, outcomes, heard, ending, duration)

    def _ending(
        self, item: Item, outcomes: Mapping[str, Outcome], untried: Mapping[str, str]
    ) -> ItemEnding:
        failures = item.failures
        if not (failures or untried) and all(
            outcome.kind is _DELIVERED for outcome in outcomes.values()
        ):
            return _DONE  # as `decide` would, without reading the clock for each mail
        return decide(
            self.plan,
            outcomes,
            failures,
            untried,
            attempt=item.attempt,
            age=self.clock.now() - item.accepted_at,
            uniform=self.randomness.uniform(),
        )

    def _put_off(self, item: Item, outcomes: Mapping[str, Outcome]) -> PutOffItem | None:
        """Return the ending of an item whose report cannot be queued: all that were not delivered
        wait on, so that the item leaves the worker to those whose delivery makes room. None: all
        were delivered."""
        delay = self.plan.rest(self.randomness.uniform())
        delivered = _of_kind(outcomes, _DELIVERED)
        remaining = tuple(each for each in item.mail.recipients if each not in delivered)
        return PutOffItem(delay, remaining, NO_ROOM_FOR_REPORT) if remaining else None

    async def _is_queued(self, reporting: Reporting, report: DueReport) -> bool:
        """Queue a report; return False where the store has no room for it. Raises: QueueClosed,
        EntryLost."""
        try:
            await self._insist("report", partial(reporting.send, report), StoreFull)
        except StoreFull:
            return False
        return True

    async def _transmit(self, item: Item, recipients: tuple[str, ...]) -> Mapping[str, Outcome]:
        """Transmit once; return the outcomes of at least one recipient. The caller transmits the
        others again. Raises: _NotAttempted."""
        time_left = item.lease_until - self.clock.elapsed()
        if time_left <= timedelta(0):
            raise _NotAttempted(NO_TIME_LEFT)
        envelope = item.mail
        if len(recipients) < len(envelope.recipients):
            envelope = replace(envelope, recipients=recipients)
        begun = perf_counter()
        try:
            content = _ContentReader(item.stream())
            try:
                async with asyncio.timeout(time_left.total_seconds()) as limit:
                    results = await self.transport.transmit(
                        envelope, content, item.size_bytes, item.shape
                    )
            finally:
                await content.close()  # else a transport that stops early keeps a download open
        except (QueueClosed, BlobMissing, EntryLost):
            raise
        except PostroadError as error:
            text = f"451 4.3.0 {type(error).__name__}"
            _log.warning("mail not transmitted", **_ids(self.queue, item), error=str(error))
            if isinstance(error, ServerError) and not content.has_begun:
                raise _NotAttempted(text) from error
            results = dict.fromkeys(recipients, Outcome.deferred(text))
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                results = dict.fromkeys(recipients, OUT_OF_TIME)
            else:
                deferred = Outcome.deferred("451 4.3.5 the worker failed in an unforeseen way")
                _log.exception("mail not transmitted", **_ids(self.queue, item))
                results = dict.fromkeys(recipients, deferred)
        else:
            results = {each: results[each] for each in recipients if each in results}
            if not results:
                # Without an outcome for one recipient at least, `_deliver` would loop for ever.
                unknown = Outcome.deferred("451 4.3.5 the transport gave no outcome")
                results = dict.fromkeys(recipients, unknown)
        finally:
            seconds = perf_counter() - begun
            _seconds_of(self.queue).observe(seconds)
        self.log_attempt(item, results, seconds)
        for outcome in results.values():
            _attempts_of(self.queue, outcome.kind).inc()
        return results

    def log_attempt(
        self, item: Item, outcomes: Mapping[str, Outcome], seconds: float, *, given_up: bool = False
    ) -> None:
        """Write the outcomes of a transmission into the attempt log: called before `record` and
        `end`."""
        if self.attempt_log is None:
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
            seconds=seconds,
        )
        self.attempt_log.write(attempted, outcomes, given_up=given_up)

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
            await self._insist("record", partial(item.record, finished))

    async def _insist(
        self,
        step: str,
        operation: Callable[[], Awaitable[None]],
        *final: type[Exception],
    ) -> None:
        """Repeat an operation until it succeeds, because an outcome that is lost leads to a second
        copy, and a report that is lost leaves its sender without notice.

        The item stays leased meanwhile, so a worker whose queue is away soon dequeues no more.
        Raises: QueueClosed, EntryLost, and errors that are `final`.
        """
        given_up: tuple[type[Exception], ...] = (QueueClosed, EntryLost, *final)
        pause = FIRST_PAUSE
        while True:
            try:
                return await operation()
            except given_up:
                raise
            except EntryEnded:
                return None  # an earlier attempt succeeded, and its answer was lost
            except Exception as error:  # also a driver's bug must not lose the outcome
                _log.warning(
                    "outcome not recorded yet", queue=self.queue, step=step, error=str(error)
                )
            await self.clock.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _report(
        self,
        item: Item,
        outcomes: Mapping[str, Outcome],
        heard: AttemptOutcomes | None,
        ending: ItemEnding,
        duration: timedelta,
    ) -> None:
        _log.info(
            _EVENTS[type(ending)],
            **_ids(self.queue, item),
            attempt=item.attempt,
            **_counts(outcomes),
            replies=sorted({_codes_of(outcome.text) for outcome in outcomes.values()}),
            reasons=heard.reasons if heard else [],
            duration=round(duration.total_seconds(), 3),
        )


_DELIVERED, _DONE = OutcomeKind.DELIVERED, Done()
_EVENTS = {
    Done: "mail delivered",
    RetryItem: "mail deferred",
    PutOffItem: "mail put off",
    Reject: "mail rejected",
}


# Cached, because `labels` costs more than counting.
_seconds_of = lru_cache(DELIVERY_SECONDS.labels)
_attempts_of = lru_cache(ATTEMPTS.labels)


def _of_kind(outcomes: Mapping[str, Outcome], kind: OutcomeKind) -> dict[str, Outcome]:
    return {each: outcome for each, outcome in outcomes.items() if outcome.kind is kind}


def _must_be_recorded(outcomes: Mapping[str, Outcome], ending: ItemEnding) -> bool:
    """Whether the ending alone would leave the outcome of a recipient open."""
    if isinstance(ending, Reject):
        return any(outcome.kind is OutcomeKind.DELIVERED for outcome in outcomes.values())
    return isinstance(ending, RetryItem | PutOffItem)


def _carrying_out(
    item: Item, ending: ItemEnding, heard: AttemptOutcomes | None
) -> Callable[[], Awaitable[None]]:
    match ending:
        case Done():
            return partial(item.done, heard)
        case RetryItem(delay, remaining, error):
            return partial(item.retry, delay, remaining, error, heard)
        case PutOffItem(delay, remaining, reason):
            return partial(item.put_off, delay, remaining, reason, heard)
        case Reject(reason):
            return partial(item.reject, reason, heard)


def _counts(outcomes: Mapping[str, Outcome]) -> dict[str, int]:
    return Counter(outcome.kind.value for outcome in outcomes.values())


def _codes_of(text: str) -> str:
    """Return the codes of a reply without its text, which may hold addresses: logs at INFO hold
    none."""
    found = _CODES.match(text)
    return found[0] if found else "-"


def _ids(queue: str, item: Item) -> dict[str, str]:
    return {
        "queue": queue,
        "enqueue_id": str(item.enqueue_id),
        "mail_id": str(item.mail_id),
    }
