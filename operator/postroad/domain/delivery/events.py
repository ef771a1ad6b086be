"""Events: what became of a recipient, as programs outside are sent it; which stream gets which, and
what it has of addresses. Pure.

An event is a JSON object: `id`, `type`, `timestamp`, and under `data` the keys of a line of the
attempt log, with the mail's name and tenant. Its id follows from the entry, the attempt, the
recipient and the type, and the key of the mail, so that a repetition has the same one.
Source: ADR 0089."""

import hmac
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Self
from uuid import UUID, uuid5

from postroad.domain.delivery.attempts import Attempted, logged, to_document
from postroad.domain.delivery.suppressed import NOT_MAILED, token_of
from postroad.domain.mail.mail import EVENT_KEY, Envelope, Outcome, OutcomeKind, domain_of
from postroad.domain.mail.seven_bits import ascii_domain
from postroad.domain.smtp.bounces import Bounce
from postroad.domain.values.instants import rfc3339
from postroad.domain.values.text import api_name
from postroad.errors import InvalidInput


class EventKind(StrEnum):
    """Type of an event."""

    ACCEPTED = "accepted"
    DELIVERED = "delivered"
    DEFERRED = "deferred"
    FAILED = "failed"
    SUPPRESSED = "suppressed"
    BOUNCED = "bounced"
    COMPLAINED = "complained"
    HELD = "held"
    REMOVED = "removed"


CHANGES: Mapping[str, EventKind] = {
    "hold": EventKind.HELD,
    "remove": EventKind.REMOVED,
    "expire": EventKind.FAILED,
}
"""Events of what administrators do to waiting mails, by the names of their operations."""


class EventAddresses(StrEnum):
    """Form of addresses in events."""

    PLAIN = "plain"
    HASHED = "hashed"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class EventRule:
    """A stream: its name, and which events it gets; None: all."""

    name: str
    kinds: frozenset[EventKind] | None = None
    tenants: frozenset[str] | None = None
    domains: frozenset[str] | None = None
    addresses: EventAddresses = EventAddresses.NONE

    def takes(self, kind: EventKind, tenant: str | None, domain: str) -> bool:
        """Return whether the stream gets an event about a recipient in this domain."""
        return (
            (self.kinds is None or kind in self.kinds)
            and (self.tenants is None or tenant in self.tenants)
            and (self.domains is None or _ascii(domain) in self.domains)
        )

    def text(self) -> str:
        """Return which events it gets, for other processes."""
        sets = {"kinds": self.kinds, "tenants": self.tenants, "domains": self.domains}
        found = {key: None if each is None else sorted(each) for key, each in sets.items()}
        return json.dumps({**found, "addresses": self.addresses})

    @classmethod
    def of(cls, name: str, text: str) -> Self:
        """Return the rule that `text` said; kinds of a later release are passed over. Raises:
        InvalidInput."""
        try:
            read = json.loads(text)
            known = frozenset(EventKind)
            kinds, tenants, domains = (
                None if read[key] is None else frozenset(map(str, read[key]))
                for key in ("kinds", "tenants", "domains")
            )
            taken = None if kinds is None else frozenset(each for each in known if each in kinds)
            return cls(name, taken, tenants, domains, EventAddresses(read["addresses"]))
        except (ValueError, LookupError, TypeError) as error:
            raise InvalidInput(f"no stream of events: {error}") from error


StreamEvent = tuple[str, UUID, bytes]
"""The name of the stream, the id of the event, and its JSON."""


@dataclass(frozen=True, slots=True)
class AcceptedMail:
    """A mail that the intake has queued."""

    queue: str
    enqueue_id: UUID
    envelope: Envelope
    size_bytes: int
    accepted_at: datetime
    message_id: str | None


@dataclass(frozen=True, slots=True)
class ChangedMail:
    """A waiting mail that an administrator is about to change. `envelope`: with the recipients that
    are left."""

    enqueue_id: UUID
    mail_id: UUID
    envelope: Envelope
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ReturnedReport:
    """A report about a mail that came back to its signed reverse-path. `token`: of that path, which
    tells mails to one recipient on one day apart from all others; `text`: the failure as a reply;
    `feedback`: the type of a complaint."""

    queue: str
    kind: EventKind
    token: str
    sender: str
    recipient: str
    tenant: str | None
    at: datetime
    bounce: Bounce | None = None
    text: str = ""
    feedback: str | None = None
    message_id: str | None = None


_REPORTS = UUID("8f3c0c5e-6a57-4ef6-9c0b-0d6a6ad3f0a1")
"""Names the ids of events about reports."""


def kind_of(outcome: Outcome, *, given_up: bool = False) -> EventKind:
    """Return the type of the event for an outcome. `given_up`: as for `logged`."""
    if outcome.kind is OutcomeKind.DELIVERED:
        return EventKind.DELIVERED
    if outcome.kind is OutcomeKind.DEFERRED and not given_up:
        return EventKind.DEFERRED
    is_suppressed = outcome.responder is None and outcome.text.startswith(NOT_MAILED)
    return EventKind.SUPPRESSED if is_suppressed else EventKind.FAILED


def attempt_events(
    rules: Iterable[EventRule],
    attempted: Attempted,
    envelope: Envelope,
    outcomes: Mapping[str, Outcome],
    *,
    given_up: bool = False,
) -> Iterator[StreamEvent]:
    """Yield the events of an attempt, those of each stream together, by recipient."""
    kinds = {each: kind_of(outcome, given_up=given_up) for each, outcome in outcomes.items()}
    documents: dict[tuple[bool, str], dict[str, Any]] = {}
    for rule in rules:
        plain = rule.addresses is EventAddresses.PLAIN
        wanted = [
            each for each in outcomes if rule.takes(kinds[each], envelope.tenant, domain_of(each))
        ]
        # Once for all streams of a form: to mask a reply takes long beside all else here.
        new = {each: outcomes[each] for each in wanted if (plain, each) not in documents}
        lines = logged(attempted, new, with_addresses=plain, given_up=given_up)
        for recipient, line in zip(new, lines, strict=True):
            documents[plain, recipient] = to_document(line)
        for recipient in wanted:
            kind = kinds[recipient]
            data = {**documents[plain, recipient], **_of_mail(rule, envelope, recipient)}
            number = str(attempted.number)
            event_id = _id(envelope, attempted.enqueue_id, kind, number, recipient)
            yield rule.name, event_id, _event(event_id, kind, attempted.ended_at, data)


def accepted_events(rules: Iterable[EventRule], accepted: AcceptedMail) -> Iterator[StreamEvent]:
    """Yield the events of a mail that was accepted, by recipient; of one that is quarantined, also
    that it is held."""
    envelope, origin = accepted.envelope, accepted.envelope.origin
    own = {} if origin is None else {"protocol": origin.protocol}
    client = None if origin is None else origin.address
    plain = {"client": client, "message_id": accepted.message_id}
    mail = (accepted.queue, accepted.enqueue_id, envelope, accepted.size_bytes)
    about = _Happened(*mail, accepted.accepted_at, own, plain)
    for rule in rules:
        yield from about.events(rule, EventKind.ACCEPTED)
        if envelope.is_quarantined:
            yield from about.events(rule, EventKind.HELD)


def changed_events(
    rules: Iterable[EventRule], queue: str, operation: str, changed: ChangedMail, moment: datetime
) -> Iterator[StreamEvent]:
    """Yield the events of an operation on a mail, by recipient. `operation`: a key of `CHANGES`."""
    kind = CHANGES[operation]
    own: dict[str, Any] = {"mail_id": str(changed.mail_id)}
    if kind is EventKind.FAILED:
        own["given_up"] = True
    mail = (queue, changed.enqueue_id, changed.envelope, changed.size_bytes)
    about = _Happened(*mail, moment, own, {})
    for rule in rules:
        yield from about.events(rule, kind)


@dataclass(frozen=True, slots=True)
class _Happened:
    """Step of a mail outside of an attempt. `own`: keys of its events; `plain`: addresses and
    names."""

    queue: str
    enqueue_id: UUID
    envelope: Envelope
    size_bytes: int
    at: datetime
    own: Mapping[str, Any]
    plain: Mapping[str, str | None]

    def events(self, rule: EventRule, kind: EventKind) -> Iterator[StreamEvent]:
        envelope = self.envelope
        for recipient in envelope.recipients:
            if not rule.takes(kind, envelope.tenant, domain_of(recipient)):
                continue
            data = {
                "at": rfc3339(self.at),
                "queue": self.queue,
                "enqueue_id": str(self.enqueue_id),
                "domain": domain_of(recipient),
                "sender_domain": domain_of(envelope.sender) if envelope.sender else "",
                "size_bytes": self.size_bytes,
                **_of_mail(rule, envelope, recipient),
                **self.own,
            }
            if rule.addresses is EventAddresses.PLAIN:
                data |= {"sender": envelope.sender or "", "recipient": recipient}
                data |= {name: value for name, value in self.plain.items() if value is not None}
            event_id = _id(envelope, self.enqueue_id, kind, "", recipient)
            yield rule.name, event_id, _event(event_id, kind, self.at, data)


def returned_events(rules: Iterable[EventRule], report: ReturnedReport) -> Iterator[StreamEvent]:
    """Yield the events of a report that came back."""
    key = f"{report.kind.value}/{report.token}/{report.recipient}/{report.message_id or ''}"
    event_id = uuid5(_REPORTS, key)
    envelope = Envelope(report.sender, (report.recipient,))
    for rule in rules:
        if not rule.takes(report.kind, report.tenant, domain_of(report.recipient)):
            continue
        plain = rule.addresses is EventAddresses.PLAIN
        data = {
            "at": rfc3339(report.at),
            "queue": report.queue,
            "domain": domain_of(report.recipient),
            "sender_domain": domain_of(report.sender),
            **_of_mail(rule, envelope, report.recipient),
        }
        own: dict[str, Any] = {"tenant": report.tenant, "feedback": report.feedback}
        if (bounce := report.bounce) is not None:
            masked = f"{bounce.code or ''} {bounce.words}".strip()
            own |= {"reason": bounce.reason.value, "reply": report.text if plain else masked}
        if plain:
            own |= {"sender": report.sender, "recipient": report.recipient}
            own["message_id"] = report.message_id
        data |= {name: value for name, value in own.items() if value is not None}
        yield rule.name, event_id, _event(event_id, report.kind, report.at, data)


def _of_mail(rule: EventRule, envelope: Envelope, recipient: str) -> dict[str, Any]:
    found = {"name": envelope.name, "tenant": envelope.tenant}
    if rule.addresses is EventAddresses.HASHED:
        found["recipient_sha256"] = _hashed(recipient)
        found["sender_sha256"] = _hashed(envelope.sender) if envelope.sender else ""
    return {name: value for name, value in found.items() if value is not None}


def _ascii(domain: str) -> str:
    """Return a domain as rules have it; as it is where it is none."""
    try:
        return ascii_domain(domain)
    except InvalidInput:
        return domain


def _hashed(address: str) -> str | None:
    try:
        return token_of(address).hex()
    except InvalidInput:  # as of `postmaster`, which has no domain
        return None


def _id(envelope: Envelope, enqueue_id: UUID, kind: EventKind, number: str, recipient: str) -> UUID:
    about = f"{kind.value}/{number}/{recipient}"
    key = envelope.attributes.get(EVENT_KEY)
    if key is None:
        return uuid5(enqueue_id, about)
    keyed = hmac.digest(key.encode(), enqueue_id.bytes + about.encode(), "sha256")
    return UUID(bytes=keyed[:16], version=5)


def _event(event_id: UUID, kind: EventKind, moment: datetime, data: Mapping[str, Any]) -> bytes:
    document = {
        "id": str(event_id),
        "type": api_name(kind),
        "timestamp": rfc3339(moment),
        "data": data,
    }
    return json.dumps(document, separators=(",", ":")).encode()
