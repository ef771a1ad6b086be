"""A mail as it is handed to a queue, and the envelope that travels with it.

Envelope words are RFC 5321's: reverse-path (here `sender`, None for the null reverse-path `<>`) and
forward-paths (`recipients`). The content is opaque bytes; the queue never changes one of them.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from postroad.errors import InvalidInput, InvalidMail

Content = bytes | Path | AsyncIterator[bytes]
"""The message as it will be sent: bytes, a file, or a stream that is read once."""

_EMPTY: Mapping[str, str] = MappingProxyType({})
NOTIFY = frozenset(("NEVER", "SUCCESS", "FAILURE", "DELAY"))
"""When a sender can ask for a report. Source: RFC 3461 4.1."""

_ORCPT = re.compile(r"[A-Za-z0-9-]+;[ -~]*")
_PRINTABLE = re.compile(r"[ -~]*")
_ORDINARY = re.compile(r"[A-Za-z0-9.+_=-]{1,64}@[A-Za-z0-9.-]{1,255}")
"""What most addresses look like: `check_address` accepts all of these."""
_ORDINARY_MAILBOX = re.compile(
    r"[A-Za-z0-9.+_=-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){0,7}[A-Za-z0-9-]{1,63}"
)
MAILBOX_PATTERN = (
    "^[A-Za-z0-9.+_=-]{1,64}@([A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?[.])*"
    "[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?$"
)
"""The mailboxes that an administrator can name."""

_LOCAL = re.compile(
    r"\"(?:[^\"\\\x00-\x1f\x7f]|\\[\x20-\x7e])*\"|[^\s\"()<>\[\]\\,;:@\x00-\x20\x7f]+"
)
_DOMAIN = re.compile(r"(?:[\w-]+\.)*[\w-]+|\[[A-Za-z0-9:.\-]+\]")
_FORBIDDEN = re.compile("[\x00-\x1f<>\x7f\ud800-\udfff]")
LONGEST_ADDRESS = 320
"""Octets: local part 64, "@", domain 255. Source: RFC 5321 4.5.3.1."""


LOWEST_PRIORITY, HIGHEST_PRIORITY = -100, 100

TENANT = "postroad.tenant"
"""The attribute of an envelope that names its tenant."""


def _no_attributes() -> Mapping[str, str]:
    return _EMPTY


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a mail came from, for administrators who search the queue."""

    host: str | None = None
    address: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class RecipientDsn:
    """DSN parameters of one RCPT command; `orcpt` is `type;address`, decoded from xtext.

    Raises: InvalidMail for what the command could not say, or what would say more than it should.
    Source: RFC 3461 4.1, 4.2.
    """

    notify: tuple[str, ...] = ()
    orcpt: str | None = None

    def __post_init__(self) -> None:
        if not NOTIFY.issuperset(self.notify):
            raise InvalidMail(f"NOTIFY is some of {', '.join(sorted(NOTIFY))}")
        if self.orcpt is not None and not _ORCPT.fullmatch(self.orcpt):
            raise InvalidMail("ORCPT is type;address in printable ASCII")


@dataclass(frozen=True, slots=True)
class DsnOptions:
    """DSN parameters of a mail; `envid` is decoded from xtext. Raises: InvalidMail.

    Source: RFC 3461 4.3, 4.4.
    """

    ret: str | None = None
    envid: str | None = None
    recipients: Mapping[str, RecipientDsn] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.ret not in (None, "FULL", "HDRS"):
            raise InvalidMail("RET is FULL or HDRS")
        if self.envid is not None and not _PRINTABLE.fullmatch(self.envid):
            raise InvalidMail("ENVID is printable ASCII")


@dataclass(frozen=True, slots=True)
class Envelope:
    """All of a mail but its content. Its repr shows no address.

    `priority` is from LOWEST_PRIORITY to HIGHEST_PRIORITY; higher is more urgent: a
    worker prefers its look-ups and connections, the queue keeps its order. Raises: InvalidMail.
    """

    sender: str | None
    recipients: tuple[str, ...]
    name: str | None = None
    attributes: Mapping[str, str] = field(default_factory=_no_attributes)
    origin: Origin | None = None
    dsn: DsnOptions | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        if not self.recipients:
            raise InvalidMail("a mail needs at least one recipient")
        if self.priority != 0:
            check_priority(self.priority)
        for address in (self.sender, *self.recipients):
            if address is not None:
                check_address(address)

    def __repr__(self) -> str:
        return f"<Envelope name={self.name!r} recipients={len(self.recipients)}>"

    @property
    def tenant(self) -> str | None:
        """Whose mail it is, where several share a queue; None: not known."""
        return self.attributes.get(TENANT)

    @property
    def domains(self) -> tuple[str, ...]:
        """The destination domains, in lower case, each once, sorted."""
        if len(self.recipients) == 1:
            return (domain_of(self.recipients[0]),)
        return tuple(sorted({domain_of(address) for address in self.recipients}))


@dataclass(frozen=True, slots=True)
class Mail:
    """A mail to enqueue. Raises InvalidMail for a malformed envelope. Its repr shows no address."""

    sender: str | None
    recipients: tuple[str, ...]
    content: Content
    name: str | None = None
    attributes: Mapping[str, str] = field(default_factory=_no_attributes)
    origin: Origin | None = None
    dsn: DsnOptions | None = None
    priority: int = 0
    envelope: Envelope = field(init=False, repr=False, compare=False)
    """All of it but the content."""

    def __post_init__(self) -> None:
        if isinstance(self.recipients, str):  # type: ignore[unreachable]  # callers without mypy
            raise InvalidMail("recipients is a tuple of addresses, not one string")
        if isinstance(self.content, str):
            raise InvalidMail(
                "content is bytes, a Path or a stream of bytes, not a string: encode it"
            )
        object.__setattr__(self, "recipients", tuple(self.recipients))
        for address in (self.sender, *self.recipients):
            if address is not None:
                check_mailbox(address)
        envelope = Envelope(
            sender=self.sender,
            recipients=self.recipients,
            name=self.name,
            attributes=self.attributes,
            origin=self.origin,
            dsn=self.dsn,
            priority=self.priority,
        )
        object.__setattr__(self, "envelope", envelope)

    @classmethod
    def of(cls, envelope: Envelope, content: Content) -> Mail:
        """Return the mail of an envelope and a content."""
        given = {each: getattr(envelope, each) for each in Envelope.__slots__}
        return cls(content=content, **given)

    def __repr__(self) -> str:
        return f"<Mail name={self.name!r} recipients={len(self.recipients)}>"


class OutcomeKind(StrEnum):
    """What became of one attempt at one recipient. Values go into records and metric labels."""

    DELIVERED = "delivered"
    FAILED = "failed"
    DEFERRED = "deferred"


@dataclass(frozen=True, slots=True)
class Responder:
    """The server whose reply decided an outcome."""

    host: str
    takes_dsn: bool = False
    """Whether it got what the sender asks of reports, so that it makes them (RFC 3461 5.2.1)."""

    is_final: bool = False
    """Whether it delivers (LMTP), and relays no further."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an attempt, with the next hop's own words (never shown at INFO)."""

    kind: OutcomeKind
    text: str = ""
    site: str = field(default="", compare=False)
    """The site that the mail was handed to, or was to be; empty where none was chosen."""

    responder: Responder | None = field(default=None, compare=False)
    """None: the text is this side's, as no reply decided; or the outcome was stored, which keeps
    kind and text."""

    def at(self, site: str) -> Outcome:
        """Return it with the site that gave it."""
        return Outcome(self.kind, self.text, site, self.responder)

    def from_responder(self, responder: Responder) -> Outcome:
        """Return it with the server whose reply decided it."""
        return Outcome(self.kind, self.text, self.site, responder)

    @classmethod
    def delivered(cls, text: str = "") -> Outcome:
        """The next hop is responsible now."""
        return cls(OutcomeKind.DELIVERED, text)

    @classmethod
    def failed(cls, text: str = "") -> Outcome:
        """The next hop refuses for good; the recipient is finished."""
        return cls(OutcomeKind.FAILED, text)

    @classmethod
    def deferred(cls, text: str = "") -> Outcome:
        """A later attempt may succeed. Recorded for administrators only: the recipient is attempted
        again."""
        return cls(OutcomeKind.DEFERRED, text)


def check_address(address: str) -> None:
    """Refuse what can be no mailbox. Raises: InvalidMail (its text does not quote the address).

    Refuses only what would break an SMTP dialogue or the queue's tables; the next hop knows whether
    the mailbox exists. Source: RFC 5321 4.1.2; RFC 6531 for non-ASCII.
    """
    if _ORDINARY.fullmatch(address):
        return
    local, at, domain = address.rpartition("@")
    if not at and address.lower() != "postmaster":
        raise InvalidMail("an address has no '@'")
    if at and (not local or not domain):
        raise InvalidMail("an address has an empty local part or domain")
    if len(address.encode("utf-8", "surrogatepass")) > LONGEST_ADDRESS:
        raise InvalidMail(f"an address is longer than {LONGEST_ADDRESS} octets")
    if _FORBIDDEN.search(address):
        raise InvalidMail("an address holds a control character, '<' or '>'")
    if " " in address and not local.startswith('"'):
        raise InvalidMail("an address holds a space outside a quoted local part")


def check_priority(priority: int) -> None:
    """Refuse a priority that is out of bounds. Raises: InvalidMail."""
    if type(priority) is not int or not LOWEST_PRIORITY <= priority <= HIGHEST_PRIORITY:
        raise InvalidMail(
            f"a priority is a whole number from {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}"
        )


def check_mailbox(address: str) -> None:
    """Refuse what is no Mailbox of RFC 5321 4.1.2 (non-ASCII: RFC 6531), dots anywhere in the local
    part apart: what enters a queue is written into a next hop's dialogue.

    Stricter than `check_address`, to which every stored envelope is held, so that a stricter
    grammar makes no stored mail unreadable. Raises: InvalidMail (its text does not quote the
    address).
    """
    if _ORDINARY_MAILBOX.fullmatch(address) or address.lower() == "postmaster":
        return
    check_address(address)
    local, _, domain = address.rpartition("@")
    if not _LOCAL.fullmatch(local) or not _DOMAIN.fullmatch(domain) or len(domain.encode()) > 255:
        raise InvalidMail("an address is not local-part@domain as RFC 5321 4.1.2 writes it")


def domain_of(address: str) -> str:
    """Return the domain in lower case; the empty string for the bare `postmaster`."""
    return address.rpartition("@")[2].lower() if "@" in address else ""


def check_named(named: Iterable[str], left: Collection[str]) -> None:
    """Check that recipients are among those left, in the same spelling: one to be tried again who
    is not named counts as delivered, one whose outcome is recorded under another name is tried
    again. Raises: InvalidInput."""
    unknown = sum(each not in left for each in named)
    if unknown:
        raise InvalidInput(
            f"{unknown} of those named are not among the {len(left)} recipients left",
            hint="name them as `Item.mail.recipients` does, less those recorded as delivered or"
            " failed",
        )
