"""Deliveries whose failures are reported, to a next hop that reads the reports."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping

from postroad.domain.delivery.retries import RetryPlan
from postroad.domain.mail.mail import Envelope, Outcome, Responder
from postroad.domain.reports.composing import ReportAuthor
from postroad.domain.reports.deciding import REPORT, ReportLimit, ReportRules
from postroad.ports.clock import Clock, Randomness
from postroad.ports.mail_queue import MailQueue
from postroad.worker.reporting import Reporting
from support.workers import AnsweringConnector, OneByOne, a_driving

REPORTER = ReportAuthor("mta.example", "MAILER-DAEMON@mta.example")
DEFAULT_RULES = ReportRules()
PLAN = RetryPlan(jitter=0)
_FAILED = re.compile(rb"Final-Recipient: rfc822;(\S+)\r\nAction: failed\r\n")


class RefusingHop:
    """Refuses recipients whose address begins with `no`, each time in other words,
    and takes the others. `reports` counts what arrived about each recipient; those that return a
    mail are refused where it `refuses_returned`."""

    def __init__(self, *, refuses_returned: bool = False) -> None:
        self._refuses_returned = refuses_returned
        self.copies: Counter[str] = Counter()
        self.reports: Counter[str] = Counter()
        self._refusals = 0

    async def transmit(
        self, envelope: Envelope, content: AsyncIterator[bytes]
    ) -> Mapping[str, Outcome]:
        octets = b"".join([chunk async for chunk in content])
        if REPORT in envelope.attributes:
            assert envelope.sender is None
            if self._refuses_returned and b"Content-Type: message/rfc822" in octets:
                return dict.fromkeys(envelope.recipients, self._refused("554 5.6.0 content"))
            self.reports.update(each.decode() for each in _FAILED.findall(octets))
        return {each: self._answer(each) for each in envelope.recipients}

    def _answer(self, recipient: str) -> Outcome:
        responder = Responder("mx.example.net")
        if not recipient.startswith("no"):
            self.copies[recipient] += 1
            return _by(responder, Outcome.delivered("250 2.0.0 ok"))
        return self._refused("550 5.1.1 no such user")

    def _refused(self, text: str) -> Outcome:
        self._refusals += 1
        outcome = Outcome.failed(f"{text}, says {self._refusals}")
        return _by(Responder("mx.example.net"), outcome)


def _by(responder: Responder, outcome: Outcome) -> Outcome:
    return Outcome(outcome.kind, outcome.text, responder.host, responder)


def reporting(
    queue: MailQueue,
    clock: Clock,
    rules: ReportRules = DEFAULT_RULES,
    per_minute: int = 1_000_000,
) -> Reporting:
    """Return the reports of a worker of this queue."""
    limit = ReportLimit(per_minute)
    return Reporting(queue, REPORTER, PLAN, clock, rules=rules, limit=limit)


def deliverer(queue: MailQueue, hop: RefusingHop, clock: Clock, randomness: Randomness) -> OneByOne:
    """Return what delivers a queue's items to the next hop, and reports."""
    connector, reports = AnsweringConnector(hop), reporting(queue, clock)
    return OneByOne(a_driving(connector, PLAN, clock, randomness, reporting=reports))
