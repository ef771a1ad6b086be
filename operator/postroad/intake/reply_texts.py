"""The replies to EHLO and to a mail. Their texts are generic; the reason is in the log.

Only a mail that can never be accepted gets a permanent reply. Any other failure of this side gets a
transient one, also one that does not pass by itself (refused credentials), because the client keeps
the mail until the administrator has repaired it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from postroad.domain.error_codes import FULL as FULL
from postroad.domain.error_codes import TOO_LARGE as TOO_LARGE
from postroad.domain.error_codes import codes_of
from postroad.domain.smtp.replies import Reply

BARE_LINE_ENDS = Reply(554, ("5.6.0 the mail holds a bare CR or LF",))
NUL_OCTETS = Reply(554, ("5.6.0 the mail holds a NUL octet",))
LARGE_HEADER = Reply(552, ("5.3.4 the header is larger than accepted",))
MALFORMED_HEADER = Reply(554, ("5.6.0 the header has a line that belongs to no field",))
LONG_LINE = Reply(550, ("5.6.0 the mail holds a line of more than 998 octets",))
LOOP = Reply(554, ("5.4.6 too many hops: the mail goes round in circles",))
CLOSING = Reply(421, ("4.3.2 closing, come again",))
IDLE = Reply(421, ("4.4.2 idle for too long",))
TOO_SLOW = Reply(421, ("4.7.0 the mail comes too slowly",))
TOO_LONG = Reply(421, ("4.7.0 this session is too long, come again",))
NO_RELAYING = Reply(550, ("5.7.1 relaying denied: your address may not send to this recipient",))
"""Source: RFC 3463 3.8 (delivery not authorised); RFC 5321 4.2.3 (550, for policy reasons)."""

UNVERIFIED = Reply(450, ("4.1.1 the recipient cannot be verified now, come again",))
LINE_TOO_LONG = Reply(500, ("5.5.2 line too long",))


def accepted(enqueue_id: UUID | str) -> Reply:
    """Return the reply by which postroad takes responsibility for the mail (RFC 5321 4.2.5)."""
    return Reply(250, (f"2.0.0 queued as {enqueue_id}",))


def reply_for(error: Exception) -> Reply:
    return codes_of(error).reply


MAX_HOLD = timedelta(days=366)
"""For which a client may have a mail held back."""

XCLIENT = ("NAME", "ADDR", "PORT", "PROTO", "HELO", "DESTADDR", "DESTPORT")
"""Attributes of every proxy; NAME, PORT and where the client has connected to have no effect."""


@dataclass(frozen=True, slots=True)
class Offer:
    """This intake's name, limits and extensions, with the replies that announce them."""

    hostname: str
    max_size_bytes: int
    max_recipients: int = 1000
    """Per mail; RFC 5321 4.5.3.1.8 requires at least 100."""

    tls: bool = False
    dsn: bool = False
    """True if the queue's workers make reports. Else a client that hands NOTIFY over would stop
    reporting failures itself, and none would be reported. Source: RFC 3461 5.2."""

    mechanisms: tuple[str, ...] = ()
    """SASL mechanisms, offered under TLS alone. Source: RFC 4954."""

    now: Callable[[], datetime] | None = field(default=None, repr=False, compare=False)
    """The time, of a listener whose clients log in: they may have mail held back.
    Source: RFC 4865."""

    flush: Callable[[str], Reply] | None = field(default=None, repr=False, compare=False)
    """Begins to send the mail that waits for a domain, and returns the reply; None: ETRN is not
    offered. Source: RFC 1985."""

    xclient: bool = False
    """True of sessions with proxies that describe their clients."""

    greeting: Reply = field(init=False, repr=False, compare=False)
    helo: Reply = field(init=False, repr=False, compare=False)
    ehlo: Reply = field(init=False, repr=False, compare=False)
    ehlo_secured: Reply = field(init=False, repr=False, compare=False)
    words: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Keywords of MAIL that depend on the offer."""

    secured_words: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Keywords of MAIL that depend on the offer, under TLS."""

    def __post_init__(self) -> None:
        login = ("LOGIN",) if self.mechanisms else ()
        extensions = (
            self.hostname,
            "PIPELINING",
            f"SIZE {self.max_size_bytes}",
            "8BITMIME",
            "SMTPUTF8",
            "ENHANCEDSTATUSCODES",
            "CHUNKING",
            f"LIMITS RCPTMAX={self.max_recipients}",
            *(("DSN",) if self.dsn else ()),
            *(("ETRN",) if self.flush is not None else ()),
            *((f"XCLIENT {' '.join((*XCLIENT, *login))}",) if self.xclient else ()),
        )
        auth = (f"AUTH {' '.join(self.mechanisms)}",) if self.mechanisms else ()
        secured = Reply(250, (*extensions, "REQUIRETLS", *auth))
        in_clear = Reply(250, (*extensions, *(("STARTTLS",) if self.tls else ())))
        object.__setattr__(self, "greeting", Reply(220, (f"{self.hostname} ESMTP",)))
        object.__setattr__(self, "helo", Reply(250, (self.hostname,)))
        object.__setattr__(self, "ehlo", in_clear)
        object.__setattr__(self, "ehlo_secured", secured)
        words = ("AUTH",) if self.mechanisms else ()
        held = () if self.now is None else ("HOLDFOR", "HOLDUNTIL")
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "secured_words", (*words, *held, "REQUIRETLS"))

    def may_hold(self, hold: timedelta | datetime) -> bool:
        """Return whether a mail may be held back so: not until what is over, nor for too long."""
        assert self.now is not None
        return not isinstance(hold, datetime) or self.now() < hold <= self.now() + MAX_HOLD

    def ehlo_of_users(self) -> Reply:
        """Return the reply to EHLO under TLS, with the latest time until which mail is held."""
        assert self.now is not None
        until = (self.now() + MAX_HOLD).strftime("%Y-%m-%dT%H:%M:%SZ")
        hold = f"FUTURERELEASE {MAX_HOLD.total_seconds():.0f} {until}"
        return Reply(250, (*self.ehlo_secured.lines, hold))
