"""Record of an attempt: its outcomes, counted by destination domain, site and reason, and how long
it took; reasons, as they are stored and shown. No address is in it. The log of attempts: what
became of each recipient at each attempt, for when the mail is gone. Pure.

The record lies in the mark that ends the attempt's entry, or beside it in the log of a store, so
that keeping it costs no request of its own. A line of the log is one recipient of one transmission.
Without leave to keep addresses a line has domains and the reply's words, masked, as the marks have
them. Source: ADR 0033."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from postroad.domain.mail.mail import ConnectionFacts, Outcome, OutcomeKind, domain_of
from postroad.domain.smtp.bounces import Bounce, BounceClass, bounce_of, code_of
from postroad.domain.values.frozen import value
from postroad.domain.values.instants import rfc3339
from postroad.errors import InvalidInput

MAX_COUNTS = 20
"""Counts of one attempt. The others are added up, those of each kind, as one more."""


@value
class OutcomeCount:
    """Number of recipients that had this outcome. `code` is the basic code of the reply, 0 where
    there was none. A delivery needs no reason: it has neither class nor words, which hold little
    but a queue id of the next hop. What was added up has neither domain nor site, and the class
    `other`."""

    domain: str
    site: str
    kind: OutcomeKind
    code: int
    reason: BounceClass | None
    words: str
    count: int = 1


@value
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


@dataclass(frozen=True, slots=True)
class Attempted:
    """The mail of an attempt, and when the attempt ended. `number` counts attempts from 1;
    `sender` is None for the null reverse-path. `connect_seconds`: of the `seconds`, those before
    the connection had opened, or was through with the mail before."""

    queue: str
    mail_id: UUID
    enqueue_id: UUID
    number: int
    sender: str | None
    size_bytes: int
    accepted_at: datetime
    ended_at: datetime
    seconds: float
    connect_seconds: float = 0.0
    message_id: str | None = None


@dataclass(frozen=True, slots=True)
class LoggedAttempt:
    """A line. `sender` and `recipient` are None where addresses are not kept, the null reverse-path
    is empty. `queued_seconds` is the time since acceptance, `seconds` that of the transmission.
    `host` and `connection`: of the server that replied, where one did. `given_up`: the queue tries
    this recipient no more, although its last outcome allows it."""

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
    connect_seconds: float = 0.0
    host: str | None = None
    connection: ConnectionFacts | None = None
    message_id: str | None = None


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
        responder = outcome.responder
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
            connect_seconds=round(attempted.connect_seconds, 3),
            host=None if responder is None else responder.host,
            connection=None if responder is None else responder.connection,
            message_id=attempted.message_id if with_addresses else None,
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
        "delays": delays_of(line),
    }
    if line.reason is not None:
        document["reason"] = line.reason.value
    if line.sender is not None:
        document["sender"] = line.sender
    if line.recipient is not None:
        document["recipient"] = line.recipient
    if line.given_up:
        document["given_up"] = True
    if line.host is not None:
        document["host"] = line.host
    if line.connection is not None:
        document["connection"] = {k: v for k, v in asdict(line.connection).items() if v}
    if line.message_id is not None:
        document["message_id"] = line.message_id
    return document


def delays_of(line: LoggedAttempt) -> dict[str, float]:
    """Return the seconds since acceptance by phase: in the queue, until a connection took the mail,
    and in transmission."""
    return {
        "queue": round(max(0.0, line.queued_seconds - line.seconds), 3),
        "connect": line.connect_seconds,
        "transmission": round(max(0.0, line.seconds - line.connect_seconds), 3),
    }


def from_document(document: Mapping[str, Any]) -> LoggedAttempt:
    """Read a line; keys of a later release are passed over. Raises: KeyError, TypeError,
    ValueError, where it is none."""
    reason, connection = document.get("reason"), document.get("connection")
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
        connect_seconds=document.get("delays", {}).get("connect", 0.0),
        host=document.get("host"),
        connection=None if connection is None else _connection_of(connection),
        message_id=document.get("message_id"),
    )


def _connection_of(document: Mapping[str, Any]) -> ConnectionFacts:
    known = {each.name for each in fields(ConnectionFacts)}
    return ConnectionFacts(**{k: v for k, v in document.items() if k in known})


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
