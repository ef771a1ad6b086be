"""Decides which recipients of an attempt are reported to the sender of their mail. Pure.

One report is about all recipients of an attempt that need one. A mail with the null reverse-path
has no sender to report to; its failures are reported to the administrator, where there is one for
them, and those of that report to no address. How many reports one address gets is evenly spread,
with a bounded wait: a mail with a forged sender, or a list of addresses that are gone, must not
bury one mailbox under reports.
Source: RFC 3461 4.1, 5.2, 6.2; RFC 3834 2; RFC 5321 4.5.5, 6.1; AMB-11; ADR 0052."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from uuid import UUID

from postroad.domain.delivery.paces import Paces, Rate
from postroad.domain.mail.mail import DsnOptions, Envelope, Outcome, OutcomeKind
from postroad.domain.smtp.bounces import BounceClass, bounce_of

REPORTS_PER_MINUTE = 60
"""Reports of one process to one address by default; the settings and a MailQueue give others."""

MAX_WAIT = timedelta(hours=1)
"""A report that would wait longer is not sent."""

MAX_ADDRESSES = 10_000
"""Addresses that are remembered, when those whose reports are over have been forgotten."""


class ReportLimit:
    """The reports of one process: so many a minute for each address, after as many at once."""

    def __init__(self, per_minute: int) -> None:
        self._rate = Rate(per_minute, burst=per_minute)
        self._paces = Paces(slack=0.0, most=MAX_ADDRESSES)

    def wait_of(self, address: str, now: timedelta) -> timedelta | None:
        """Count a report; return how long it waits before it is sent; None: it is not sent, and not
        counted."""
        key, seconds = address.lower(), now.total_seconds()
        wait = timedelta(seconds=max(self._paces.wait(key, self._rate, seconds), 0.0))
        if wait > MAX_WAIT:
            return None
        self._paces.take(key, self._rate, seconds)
        return wait

    def give_back(self, address: str) -> None:
        """Count a report not that was counted and is made later."""
        self._paces.give_back(address.lower(), self._rate)


DELAY_REPORTED_AFTER = timedelta(hours=4)
"""The age at which a mail is reported as delayed by default; the settings and a MailQueue give
others, as of what follows."""

MAX_RETURNED_BYTES = 50_000
"""A mail of up to this size is returned whole by default."""

REPORT = "postroad.report"
"""The attribute of a report: its most serious action, or DOUBLE_BOUNCE."""

RETURNS = "postroad.report.returns"
"""The attribute of a report that returns a mail or its header: the type of that part."""

DOUBLE_BOUNCE = "double-bounce"

_EXPIRED_FOR_CONTENT = frozenset((BounceClass.TOO_LARGE, BounceClass.CONTENT))
_FAILED_FOR_CONTENT = _EXPIRED_FOR_CONTENT | {
    *(BounceClass.MAILBOX_FULL, BounceClass.BLOCKED, BounceClass.POLICY, BounceClass.SYSTEM),
    *(BounceClass.PROTOCOL, BounceClass.OTHER),
}
"""Classes of refusals that leave open whether a report would be taken without what it returns:
filters give many reasons, and often none."""

_UNSAID = ("FAILURE", "DELAY")
"""Events that a recipient without NOTIFY is reported for. Source: RFC 3461 4.1."""


class Action(StrEnum):
    """Outcome for a recipient, the most serious first. Source: RFC 3464 2.3.3."""

    FAILED = "failed"
    DELAYED = "delayed"
    RELAYED = "relayed"
    DELIVERED = "delivered"


@dataclass(frozen=True, slots=True)
class ReportRules:
    """Rules that an administrator decides about reports. `delay_after`: the age at which a mail
    that waits is reported as delayed, once. `administrator`: the address for failures of mail with
    the null reverse-path."""

    delay_after: timedelta = DELAY_REPORTED_AFTER
    largest_returned: int = MAX_RETURNED_BYTES
    """Octets of a mail that is returned whole; of a larger one, its header is."""

    administrator: str | None = None


@dataclass(frozen=True, slots=True)
class ReportedAttempt:
    """Outcome of an entry of a mail. `untried`: recipients to whom nothing was transmitted, with
    the reason. `is_over`: those that did not get the mail are attempted no more. `age` is that of
    the mail, `age_before` what it was when its entry began."""

    outcomes: Mapping[str, Outcome]
    untried: Mapping[str, str]
    is_over: bool
    age: timedelta
    age_before: timedelta


@dataclass(frozen=True, slots=True)
class ReportedRecipient:
    """A recipient in a report, with its last outcome. `is_expired`: no reply ended it, its
    time was over."""

    address: str
    action: Action
    outcome: Outcome
    is_expired: bool = False


def reporting_address(envelope: Envelope, rules: ReportRules) -> str | None:
    """Return the address that reports about this mail go to; None: there is none."""
    if envelope.sender is not None or envelope.attributes.get(REPORT) == DOUBLE_BOUNCE:
        return envelope.sender
    return rules.administrator


def reported_recipients(
    envelope: Envelope, attempt: ReportedAttempt, rules: ReportRules
) -> tuple[ReportedRecipient, ...]:
    """Return the recipients to report, in the order of the attempt; none where no report is due."""
    if reporting_address(envelope, rules) is None:
        return ()
    untried = {each: Outcome.deferred(reason) for each, reason in attempt.untried.items()}
    found = (
        _reported(recipient, outcome, _notify(envelope.dsn, recipient), attempt, rules)
        for recipient, outcome in {**attempt.outcomes, **untried}.items()
    )
    return tuple(
        each
        for each in found
        if each is not None and (envelope.sender is not None or each.action is Action.FAILED)
    )


def goes_shortened(envelope: Envelope, attempt: ReportedAttempt) -> bool:
    """Return whether a report is to go once more, without what it returns: it failed, or a reply
    deferred it to its end, for what may be that."""
    is_report = envelope.sender is None and len(envelope.recipients) == 1
    if not (is_report and RETURNS in envelope.attributes and attempt.is_over):
        return False
    return any(
        bounce_of(each.text).reason
        in (_FAILED_FOR_CONTENT if each.kind is OutcomeKind.FAILED else _EXPIRED_FOR_CONTENT)
        for each in attempt.outcomes.values()
        if each.kind is not OutcomeKind.DELIVERED
    )


def report_key(enqueue_id: UUID, reported: tuple[ReportedRecipient, ...]) -> str:
    """Return the enqueue key of a report: the same when an entry comes to the same end again, as
    after a crash between the report and the record of the outcomes."""
    ends = sorted(f"{each.action} {each.address}" for each in reported)
    return f"report {enqueue_id} {hashlib.sha256(repr(ends).encode()).hexdigest()}"


def _notify(dsn: DsnOptions | None, recipient: str) -> tuple[str, ...]:
    options = None if dsn is None else dsn.recipients.get(recipient)
    return _UNSAID if options is None or not options.notify else options.notify


def _reported(
    recipient: str,
    outcome: Outcome,
    notify: tuple[str, ...],
    attempt: ReportedAttempt,
    rules: ReportRules,
) -> ReportedRecipient | None:
    if outcome.kind is OutcomeKind.DELIVERED:
        takes_dsn = outcome.responder is not None and outcome.responder.takes_dsn
        if "SUCCESS" in notify and not takes_dsn:  # a next hop that got NOTIFY reports itself
            is_final = outcome.responder is not None and outcome.responder.is_final
            action = Action.DELIVERED if is_final else Action.RELAYED
            return ReportedRecipient(recipient, action, outcome)
        return None
    is_expired = outcome.kind is OutcomeKind.DEFERRED
    if attempt.is_over or not is_expired:
        if "FAILURE" in notify:
            return ReportedRecipient(recipient, Action.FAILED, outcome, is_expired)
        return None
    if "DELAY" in notify and attempt.age_before < rules.delay_after <= attempt.age:
        return ReportedRecipient(recipient, Action.DELAYED, outcome)
    return None
