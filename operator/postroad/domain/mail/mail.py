"""A mail as it is handed to a queue, and the envelope that travels with it.

Envelope words are RFC 5321's: reverse-path (here `sender`, None for the null reverse-path `<>`) and
forward-paths (`recipients`). The content is opaque bytes; the queue never changes one of them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postroad.domain.mail.address_lists import octets_of
from postroad.domain.mail.given_values import (
    MAX_ENVELOPE,
    NO_VALUES,
    are_plain,
    mapping,
    optional,
    text,
    texts,
    typed,
)
from postroad.domain.mail.shapes import Shape
from postroad.domain.values.frozen import value
from postroad.errors import InvalidInput, InvalidMail

if TYPE_CHECKING:
    from email.message import Message

Content = bytes | Path | AsyncIterator[bytes]
"""The message as it will be sent: bytes, a file, or a stream that is read once."""

NO_ATTRIBUTES: Mapping[str, str] = NO_VALUES
NOTIFY = frozenset(("NEVER", "SUCCESS", "FAILURE", "DELAY"))
"""When a sender can ask for a report. Source: RFC 3461 4.1."""

_ORCPT = re.compile(r"[A-Za-z0-9-]+;[ -~]*")
_PRINTABLE = re.compile(r"[ -~]*")
_ORDINARY = re.compile(r"[A-Za-z0-9.+_=-]{1,64}@[A-Za-z0-9.-]{1,255}")
"""Form of most addresses: `check_address` accepts all of these."""
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
MAX_ADDRESS = 320
"""Octets: local part 64, "@", domain 255. Source: RFC 5321 4.5.3.1."""


MIN_PRIORITY, MAX_PRIORITY = -100, 100

TENANT = "postroad.tenant"
"""The attribute of an envelope that names its tenant."""

CONTENT_DIGEST = "postroad.digest"
"""The attribute by which two mails with one enqueue key are compared instead of by their sender,
recipients and content: of a mail to which this side adds what differs each time, as Received, or
which a filter changes."""

QUARANTINE = "postroad.quarantine"
"""The attribute with which a mail is held from its acceptance on: the reason."""

REQUIRE_TLS = "postroad.requiretls"
"""The attribute of a mail that goes over verified TLS alone, to servers that see to that, too; its
value is `yes`. Source: RFC 8689."""

TRACEPARENT = "postroad.traceparent"
"""The attribute that names the span of a trace to which spans of the mail belong, as the header of
HTTP has it (W3C Trace Context). Source: ADR 0095."""

WELL_FORMED_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""Value of that header, and of the attribute, which programs set as they like."""

EVENT_KEY = "postroad.events.key"
"""The attribute that keys the ids of a mail's events, so that who knows its other ids and guesses a
recipient recognises none. Source: ADR 0089."""

_NULL_SENDER = "the null reverse-path `<>` is sender=None"


def _no_attributes() -> Mapping[str, str]:
    return NO_ATTRIBUTES


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of a mail, for administrators who search the queue."""

    host: str | None = None
    address: str | None = None
    protocol: str | None = None

    def __post_init__(self) -> None:
        if are_plain((self.host, self.address, self.protocol)):
            return
        for each in self.__slots__:
            _keep(self, **{each: optional(getattr(self, each), f"origin.{each}")})


@dataclass(frozen=True, slots=True)
class RecipientDsn:
    """DSN parameters of one RCPT command; `orcpt` is `type;address`, decoded from xtext. Raises:
    InvalidMail for what the command could not say, or what would say more than it should.
    Source: RFC 3461 4.1, 4.2."""

    notify: tuple[str, ...] = ()
    orcpt: str | None = None

    def __post_init__(self) -> None:
        notify, orcpt = texts(self.notify, "notify"), optional(self.orcpt, "orcpt")
        _keep(self, notify=notify, orcpt=orcpt)
        if not NOTIFY.issuperset(self.notify):
            raise InvalidMail(f"NOTIFY is some of {', '.join(sorted(NOTIFY))}")
        if self.orcpt is not None and not _ORCPT.fullmatch(self.orcpt):
            raise InvalidMail("ORCPT is type;address in printable ASCII")


@dataclass(frozen=True, slots=True)
class DsnOptions:
    """DSN parameters of a mail; `envid` is decoded from xtext. Raises: InvalidMail.
    Source: RFC 3461 4.3, 4.4."""

    ret: str | None = None
    envid: str | None = None
    recipients: Mapping[str, RecipientDsn] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _keep(
            self,
            ret=optional(self.ret, "ret"),
            envid=optional(self.envid, "envid"),
            recipients=mapping(self.recipients, "dsn.recipients", _recipient_dsn),
        )
        if self.ret not in (None, "FULL", "HDRS"):
            raise InvalidMail("RET is FULL or HDRS")
        if self.envid is not None and not _PRINTABLE.fullmatch(self.envid):
            raise InvalidMail("ENVID is printable ASCII")


@dataclass(frozen=True, slots=True)
class Envelope:
    """All of a mail but its content. Its repr shows no address. `priority` is from MIN_PRIORITY to
    MAX_PRIORITY; higher is more urgent: a worker prefers its lookups and connections, the queue
    keeps its order. Raises: InvalidMail."""

    sender: str | None
    recipients: tuple[str, ...]
    name: str | None = None
    attributes: Mapping[str, str] = field(default_factory=_no_attributes)
    origin: Origin | None = None
    dsn: DsnOptions | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        _settle(self, check_address)

    def __repr__(self) -> str:
        return f"<Envelope name={self.name!r} recipients={len(self.recipients)}>"

    @property
    def is_quarantined(self) -> bool:
        """True if it is held from its acceptance on."""
        return QUARANTINE in self.attributes

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
    """A mail to enqueue: what it accepts comes back equal from every engine, recipients as a tuple,
    bytes of any kind and an `EmailMessage` (as SMTP sends it, without Bcc) as bytes. Raises:
    InvalidMail, which names the field. Its repr shows no address."""

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
    shape: Shape | None = field(init=False, default=None, repr=False, compare=False)
    """The shape of the content, where it was found before."""

    if TYPE_CHECKING:  # what it takes is wider than what its fields are afterwards

        def __init__(
            self,
            sender: str | None,
            recipients: Sequence[str],
            content: Content | bytearray | memoryview | AsyncIterable[bytes] | Message[Any, Any],
            name: str | None = None,
            attributes: Mapping[str, str] = NO_ATTRIBUTES,
            origin: Origin | None = None,
            dsn: DsnOptions | None = None,
            priority: int = 0,
        ) -> None: ...

    def __post_init__(self) -> None:
        if not _settle(self, check_mailbox):
            self._check_closely()
        if type(self.content) is not bytes:
            _keep(self, content=_content(self.content, (self.sender or "", *self.recipients)))
        envelope = object.__new__(Envelope)  # without its checks, which were made
        keep = object.__setattr__
        for each in Envelope.__slots__:
            keep(envelope, each, getattr(self, each))
        keep(self, "envelope", envelope)

    def of_shape(self, shape: Shape) -> Mail:
        """Keep the shape that a Scanner found of the content, so that engines look for it no more.
        `replace` drops it."""
        object.__setattr__(self, "shape", shape)
        return self

    def _check_closely(self) -> None:
        all_of_it = self.recipients, self.name, self.attributes, self.origin, self.dsn
        if len(str(all_of_it)) > MAX_ENVELOPE:
            raise InvalidMail(
                f"recipients, name, attributes, origin, dsn: more than {MAX_ENVELOPE} characters"
            )

    @classmethod
    def of(cls, envelope: Envelope, content: Content) -> Mail:
        given = {each: getattr(envelope, each) for each in Envelope.__slots__}
        return cls(content=content, **given)

    def __repr__(self) -> str:
        return f"<Mail name={self.name!r} recipients={len(self.recipients)}>"


class OutcomeKind(StrEnum):
    """Outcome of one attempt at one recipient. Values go into records and metric labels."""

    DELIVERED = "delivered"
    FAILED = "failed"
    DEFERRED = "deferred"


@value
class ConnectionFacts:
    """The connection over which a server replied: the server's address and port, this side's
    address, and version and cipher of TLS; empty where it is a socket, or in clear. `verified`: the
    server's certificate was."""

    address: str = ""
    port: int = 0
    source: str = ""
    tls: str = ""
    cipher: str = ""
    verified: bool = False


@value
class Responder:
    """The server whose reply decided an outcome."""

    host: str
    takes_dsn: bool = False
    """True if it got what the sender asks of reports, so that it makes them (RFC 3461 5.2.1)."""

    is_final: bool = False
    """True if it delivers (LMTP), and relays no further."""

    is_of_mail: bool = False
    """True if a refusal was its reply to MAIL, DATA or the end of a mail, for all recipients: it
    tells of none of them alone, as it may be about the sender or the content."""

    connection: ConnectionFacts | None = field(default=None, compare=False)
    """None: it replied over no connection that is known."""


@value
class Outcome:
    """The outcome of an attempt, with the next hop's own words (never shown at INFO)."""

    kind: OutcomeKind
    text: str = ""
    site: str = field(default="", compare=False)
    """The site that the mail was handed to, or was to be; empty where none was chosen."""

    responder: Responder | None = field(default=None, compare=False)
    """None: the text is this side's, as no reply decided; or the outcome was stored, which keeps
    kind and text."""

    def __post_init__(self) -> None:
        if type(self.kind) is not OutcomeKind:
            _keep(self, kind=OutcomeKind(self.kind))
        if (text := explanation(self.text)) is not self.text:
            _keep(self, text=text)

    def at(self, site: str) -> Outcome:
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
        """A later attempt may succeed; recorded for administrators only."""
        return cls(OutcomeKind.DEFERRED, text)


def _settle(mail: Envelope | Mail, check: Callable[[str], None]) -> bool:
    """Check all fields but the content, and keep them as every engine gives them back. `check`:
    of each address. Returns whether they are plain: short, and none of the rare ones. Raises:
    InvalidMail."""
    recipients, origin = mail.recipients, mail.origin
    is_plain = (
        mail.attributes is NO_ATTRIBUTES
        and mail.dsn is None
        and type(recipients) is tuple
        and None not in recipients
        and are_plain((mail.sender, mail.name, *recipients))
        and (origin is None or (type(origin) is Origin and origin.host is not None))
    )
    if not is_plain:
        _settle_closely(mail)
    if not mail.recipients:
        raise InvalidMail("recipients: a mail needs at least one recipient")
    if mail.priority or type(mail.priority) is not int:
        check_priority(mail.priority)
    where = "sender"
    try:
        if mail.sender is not None:
            check(mail.sender)
        where = "recipients"
        for address in mail.recipients:
            check(address)
    except InvalidMail as error:
        is_null = where == "sender" and mail.sender in {"", "<>"}
        raise InvalidMail(f"{where}: {error}", hint=_NULL_SENDER if is_null else None) from None
    return is_plain


def _settle_closely(mail: Envelope | Mail) -> None:
    origin = typed(mail.origin, Origin, "origin")
    _keep(
        mail,
        sender=optional(mail.sender, "sender"),
        recipients=texts(mail.recipients, "recipients"),
        name=optional(mail.name, "name"),
        attributes=mapping(mail.attributes, "attributes", text),
        origin=None if origin == _NO_ORIGIN else origin,  # a row has no other form for it
        dsn=typed(mail.dsn, DsnOptions, "dsn"),
    )


def _keep(value: object, **fields: object) -> None:
    """Set fields of a frozen dataclass as they were checked."""
    for name, each in fields.items():
        object.__setattr__(value, name, each)


def explanation(text: Any) -> str:
    """Return why something happened as every store keeps it: with `?` for each surrogate. Raises:
    InvalidInput, for what is no string."""
    if type(text) is str and text.isascii():
        return text
    if not isinstance(text, str):
        raise InvalidInput(f"a reason or an error is a string, not {type(text).__name__}")
    return str.encode(text, errors="replace").decode()


def _recipient_dsn(value: Any, what: str) -> RecipientDsn:
    if not isinstance(value, RecipientDsn):
        raise InvalidMail(f"{what} holds {type(value).__name__}, not RecipientDsn")
    return value


def _content(value: Any, addresses: tuple[str, ...]) -> Content:
    """Return a content as engines take it, of a mail from and to these. Raises: InvalidMail."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Path):
        return value
    if isinstance(value, AsyncIterable):
        return aiter(value)
    if (octets := octets_of(value, addresses)) is not None:
        return octets
    found = "a string: encode it" if isinstance(value, str) else type(value).__name__
    raise InvalidMail(
        "content is bytes, an EmailMessage, a Path or an asynchronous stream of bytes, not"
        f" {found}",
        hint="BytesIO has getvalue()",
    )


def check_address(address: str) -> None:
    """Refuse what can be no mailbox. Raises: InvalidMail (its text does not quote the address).
    Refuses only what would break an SMTP dialogue or the queue's tables; the next hop knows whether
    the mailbox exists. Source: RFC 5321 4.1.2; RFC 6531 for non-ASCII."""
    if _ORDINARY.fullmatch(address):
        return
    local, at, domain = address.rpartition("@")
    if not at and address.lower() != "postmaster":
        raise InvalidMail("an address has no '@'")
    if at and (not local or not domain):
        raise InvalidMail("an address has an empty local part or domain")
    if len(address.encode("utf-8", "surrogatepass")) > MAX_ADDRESS:
        raise InvalidMail(f"an address is longer than {MAX_ADDRESS} octets")
    if _FORBIDDEN.search(address):
        raise InvalidMail("an address holds a control character, '<' or '>'")
    if " " in address and not local.startswith('"'):
        raise InvalidMail("an address holds a space outside a quoted local part")


def check_priority(priority: int) -> None:
    """Refuse a priority that is out of bounds. Raises: InvalidMail."""
    if type(priority) is not int or not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidMail(f"a priority is a whole number from {MIN_PRIORITY} to {MAX_PRIORITY}")


def check_mailbox(address: str) -> None:
    """Refuse what is no Mailbox of RFC 5321 4.1.2 (non-ASCII: RFC 6531), dots anywhere in the local
    part apart: what enters a queue is written into a next hop's dialogue. Stricter than
    `check_address`, to which every stored envelope is held, so that a stricter grammar makes no
    stored mail unreadable. Raises: InvalidMail (its text does not quote the address)."""
    if _ORDINARY_MAILBOX.fullmatch(address) or address.lower() == "postmaster":
        return
    check_address(address)
    local, _, domain = address.rpartition("@")
    if not _LOCAL.fullmatch(local) or not _DOMAIN.fullmatch(domain) or len(domain.encode()) > 255:
        raise InvalidMail("an address is not local-part@domain as RFC 5321 4.1.2 writes it")


_NO_ORIGIN = Origin()


def domain_of(address: str) -> str:
    """Return the domain in lower case; the empty string for the bare `postmaster`."""
    return address.rpartition("@")[2].lower() if "@" in address else ""
