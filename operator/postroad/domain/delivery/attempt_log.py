"""The attempt log: what became of each recipient at each attempt, for when the mail is gone. Pure.

A line is one recipient of one transmission. Without leave to keep addresses a line has domains and
the reply's words, masked, as the marks have them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from postroad.domain.mail.mail import Outcome, OutcomeKind, domain_of
from postroad.domain.smtp.bounces import BounceClass, bounce_of
from postroad.domain.values.instants import rfc3339


@dataclass(frozen=True, slots=True)
class Attempted:
    """The mail of an attempt, and when the attempt ended. `number` counts attempts from 1;
    `sender` is None for the null reverse-path."""

    queue: str
    mail_id: UUID
    enqueue_id: UUID
    number: int
    sender: str | None
    size_bytes: int
    accepted_at: datetime
    ended_at: datetime
    seconds: float


@dataclass(frozen=True, slots=True)
class LoggedAttempt:
    """A line. `sender` and `recipient` are None where addresses are not kept, the null reverse-path
    is empty. `queued_seconds` is the time since acceptance, `seconds` that of the transmission.
    `given_up`: the queue tries this recipient no more, although its last outcome allows it."""

    at: datetime
    queue: str
    mail_id: UUID
    enqueue_id: UUID
    attempt: int
    kind: OutcomeKind
    domain: str
    site: str
    reply: str
    reason: BounceClass | None
    sender_domain: str
    size_bytes: int
    queued_seconds: float
    seconds: float
    sender: str | None = None
    recipient: str | None = None
    given_up: bool = False


def logged(
    attempted: Attempted,
    outcomes: Mapping[str, Outcome],
    *,
    with_addresses: bool,
    given_up: bool = False,
) -> Iterator[LoggedAttempt]:
    """Yield the lines of an attempt, by recipient."""
    sender = attempted.sender or ""
    queued = (attempted.ended_at - attempted.accepted_at).total_seconds()
    for recipient, outcome in outcomes.items():
        reply, reason = _reply_of(recipient, outcome, attempted.sender, with_addresses)
        yield LoggedAttempt(
            at=attempted.ended_at,
            queue=attempted.queue,
            mail_id=attempted.mail_id,
            enqueue_id=attempted.enqueue_id,
            attempt=attempted.number,
            kind=outcome.kind,
            domain=domain_of(recipient),
            site=outcome.site,
            reply=reply,
            reason=reason,
            sender_domain=domain_of(sender) if sender else "",
            size_bytes=attempted.size_bytes,
            queued_seconds=round(queued, 3),
            seconds=round(attempted.seconds, 3),
            sender=sender if with_addresses else None,
            recipient=recipient if with_addresses else None,
            given_up=given_up,
        )


def _reply_of(
    recipient: str, outcome: Outcome, sender: str | None, with_addresses: bool
) -> tuple[str, BounceClass | None]:
    delivered = outcome.kind is OutcomeKind.DELIVERED
    if delivered and with_addresses:
        return outcome.text, None
    code, reason, words = bounce_of(outcome.text, (recipient, sender))
    if delivered:  # its words are little but a queue id of the next hop
        return str(code or ""), None
    return outcome.text if with_addresses else f"{code or ''} {words}".strip(), reason


def to_document(line: LoggedAttempt) -> dict[str, Any]:
    """Return a line as JSON has it; what is not kept or not so has no key."""
    document: dict[str, Any] = {
        "at": rfc3339(line.at),
        "queue": line.queue,
        "mail_id": str(line.mail_id),
        "enqueue_id": str(line.enqueue_id),
        "attempt": line.attempt,
        "outcome": line.kind.value,
        "domain": line.domain,
        "site": line.site,
        "reply": line.reply,
        "sender_domain": line.sender_domain,
        "size_bytes": line.size_bytes,
        "queued_seconds": line.queued_seconds,
        "seconds": line.seconds,
    }
    if line.reason is not None:
        document["reason"] = line.reason.value
    if line.sender is not None:
        document["sender"] = line.sender
    if line.recipient is not None:
        document["recipient"] = line.recipient
    if line.given_up:
        document["given_up"] = True
    return document


def from_document(document: Mapping[str, Any]) -> LoggedAttempt:
    """Read a line; keys of a later release are passed over. Raises: KeyError, TypeError,
    ValueError, where it is none."""
    reason = document.get("reason")
    return LoggedAttempt(
        at=datetime.fromisoformat(document["at"]),
        queue=document["queue"],
        mail_id=UUID(document["mail_id"]),
        enqueue_id=UUID(document["enqueue_id"]),
        attempt=document["attempt"],
        kind=OutcomeKind(document["outcome"]),
        domain=document["domain"],
        site=document["site"],
        reply=document["reply"],
        reason=None if reason is None else BounceClass.known(reason),
        sender_domain=document["sender_domain"],
        size_bytes=document["size_bytes"],
        queued_seconds=document["queued_seconds"],
        seconds=document["seconds"],
        sender=document.get("sender"),
        recipient=document.get("recipient"),
        given_up=document.get("given_up", False),
    )


@dataclass(frozen=True, slots=True)
class AttemptSelector:
    """Selects lines; the fields are joined by *and*, None fits all. Addresses fit
    whatever the case of their letters: what a person has is seldom what the client sent.
    `address`: the recipient or the sender; `identifier`: of the mail or of its entry."""

    recipient: str | None = None
    sender: str | None = None
    domain: str | None = None
    site: str | None = None
    address: str | None = None
    identifier: UUID | None = None
    outcome: OutcomeKind | None = None
    since: datetime | None = None
    before: datetime | None = None

    @property
    def needs_addresses(self) -> bool:
        """True if only lines with addresses can fit."""
        return (self.recipient, self.sender, self.address) != (None, None, None)

    def fits(self, line: LoggedAttempt) -> bool:
        return (
            (self.identifier is None or self.identifier in {line.mail_id, line.enqueue_id})
            and (self.since is None or self.since <= line.at)
            and (self.before is None or line.at < self.before)
            and (self.outcome is None or self.outcome is line.kind)
            and _same(self.domain, line.domain)
            and _same(self.site, line.site)
            and (_same(self.address, line.recipient) or _same(self.address, line.sender))
            and _same(self.recipient, line.recipient)
            and _same(self.sender, line.sender)
        )


def _same(wanted: str | None, found: str | None) -> bool:
    return wanted is None or (found is not None and wanted.casefold() == found.casefold())
