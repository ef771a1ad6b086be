"""Reports to senders, queued where their mail waits.

A report is durable before the record that ends a recipient whose failure it reports: a crash
between the two makes the same report again, which its enqueue key recognises. What delivers a mail
asks `prepare`, once, when it knows how the entry ends; records the recipients that were delivered
and are not in the report; repeats `send` until it returns; and records and ends the rest only then.
Source: AMB-11; ADR 0052."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import cast
from uuid import UUID

from postroad import errors
from postroad.domain.delivery.retries import Done, ItemEnding, Reject, RetryPlan
from postroad.domain.mail.mail import Mail, Outcome
from postroad.domain.reports import deciding
from postroad.domain.reports.composing import (
    ReportAuthor,
    ReportedMail,
    Returned,
    is_returned_whole,
    report_mail,
    shortened,
)
from postroad.ports.clock import Clock
from postroad.ports.mail_queue import Item, MailQueue
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import REPORTS, of_queue

_log = logger("worker")


@dataclass(frozen=True, slots=True)
class DueReport:
    """A report that is to be queued, and sent after `wait`."""

    item: Item
    address: str
    """To whom it goes."""

    addresses: frozenset[str]
    """The recipients that it reports."""

    key: str
    wait: timedelta
    compose: Callable[[], Awaitable[Mail]]
    result: str = "queued"
    """As it is counted once it is."""


class Reporting:
    """The reports of one worker. `plan` tells until when a mail is attempted."""

    def __init__(
        self,
        queue: MailQueue,
        reporter: ReportAuthor,
        plan: RetryPlan,
        clock: Clock,
        *,
        rules: deciding.ReportRules,
        limit: deciding.ReportLimit,
    ) -> None:
        self._queue, self._reporter, self._plan, self._clock = queue, reporter, plan, clock
        self._rules, self._limit = rules, limit

    def prepare(
        self,
        item: Item,
        outcomes: Mapping[str, Outcome],
        untried: Mapping[str, str],
        ending: ItemEnding,
    ) -> DueReport | None:
        """Return the report that is due when an entry ends so; None: there is none, or its address
        has had too many. Counts it, so call it once."""
        envelope = item.mail
        if isinstance(ending, Done) and envelope.dsn is None:
            return None  # most mails, without reading the clock for each
        now = self._clock.now()
        attempt = deciding.ReportedAttempt(
            outcomes,
            untried,
            isinstance(ending, Reject),
            now - item.accepted_at,
            item.enqueued_at - item.accepted_at,
        )
        if deciding.goes_shortened(envelope, attempt):
            return self._shortened(item)
        reported = deciding.reported_recipients(envelope, attempt, self._rules)
        address = deciding.reporting_address(envelope, self._rules)
        if not reported or address is None:
            return None
        wait = self._limit.wait_of(address, self._clock.elapsed())
        if wait is None:
            self._count("limited", item.enqueue_id)
            return None
        retry_until = item.accepted_at + self._plan.max_age
        about = ReportedMail(envelope, item.mail_id, item.accepted_at, retry_until)
        return DueReport(
            item,
            address,
            frozenset(each.address for each in reported),
            deciding.report_key(item.enqueue_id, reported),
            wait,
            partial(self._mail, item, about, reported, now),
        )

    def _shortened(self, item: Item) -> DueReport:
        """Return the report that goes instead of one that was refused for what it returns. It was
        counted with that one."""

        async def compose() -> Mail:
            return shortened(item.mail, await item.content())

        (address,) = item.mail.recipients
        key = f"report {item.enqueue_id} shortened"
        return DueReport(
            item, address, frozenset((address,)), key, timedelta(0), compose, "shortened"
        )

    def leave_out(self, report: DueReport) -> None:
        """Count a report that is not made, since its address is not mailed."""
        self._count("suppressed", report.item.enqueue_id)

    async def send(self, report: DueReport) -> None:
        """Queue a report; it is durable when this returns. May be repeated, and makes one report. A
        report that no queue takes, as the sender's address is malformed, or whose own bytes are
        missing when it is to be shortened, is counted and logged: its mail must not wait for it for
        ever. Raises: StoreFull, and every other error that passes by itself."""
        try:
            is_new = await self._enqueue(await report.compose(), report)
        except (errors.InvalidMail, errors.BlobMissing) as error:
            self._count("impossible", report.item.enqueue_id, error=str(error))
            return
        except errors.StoreFull:  # its mail is deferred, and prepares it anew each time
            if report.result == "queued":
                self._limit.give_back(report.address)
            raise
        self._count(report.result if is_new else "repeated", report.item.enqueue_id)

    async def _enqueue(self, mail: Mail, report: DueReport) -> bool:
        """Return whether this is the first report of its kind about an entry."""
        try:
            await self._queue.enqueue(mail, report.wait, key=report.key)
        except errors.KeyReused:  # the next hop used other words the second time
            return False
        return True

    async def _mail(
        self,
        item: Item,
        about: ReportedMail,
        reported: tuple[deciding.ReportedRecipient, ...],
        moment: datetime,
    ) -> Mail:
        is_whole = is_returned_whole(about, reported, item.size_bytes, self._rules)
        compose = partial(
            report_mail, about, reported, reporter=self._reporter, rules=self._rules, moment=moment
        )
        try:
            octets = await (item.content() if is_whole else self._header(item))
        except (errors.BlobMissing, errors.StoreFailed):
            return compose(None)  # a sector that cannot be read stays so, and the mail has to end
        try:
            return compose(Returned(octets, is_whole))
        except errors.InvalidInput:
            raise
        except Exception:  # repeated, it would fail again, and its mail would have no end
            _log.exception("a report returns no mail", enqueue_id=str(item.enqueue_id))
            return compose(None)

    async def _header(self, item: Item) -> bytes:
        """Return the header of a mail, or whole lines of one that is too long to be returned."""
        shape, most = await item.shape(), self._rules.largest_returned
        wanted = most if shape is None else min(shape.header_size, most)
        octets = b""
        async with aclosing(cast("AsyncGenerator[bytes, None]", item.stream())) as chunks:
            async for chunk in chunks:
                octets += chunk[: wanted - len(octets)]
                if len(octets) >= wanted:
                    break
        return octets[: octets.rfind(b"\n") + 1]

    def _count(self, result: str, enqueue_id: UUID, *, error: str | None = None) -> None:
        REPORTS.labels(*of_queue(self._queue.name), result).inc()
        say = _log.info if error is None else _log.warning
        about = {} if error is None else {"error": error}
        say(f"report {result}", queue=self._queue.name, enqueue_id=str(enqueue_id), **about)
