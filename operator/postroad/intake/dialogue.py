"""The server's side of an SMTP dialogue. Pure: a command line in, a reply and a step out.

The session carries out the step: read the mail, start TLS, close.
Source: RFC 5321 3.3, 4.1, 4.1.4 (order of commands); RFC 3207 4.2; RFC 2920; RFC 2034."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import NamedTuple

from postroad.domain.mail.mail import DsnOptions, RecipientDsn
from postroad.domain.mail.seven_bits import ascii_domain
from postroad.domain.smtp.replies import Reply
from postroad.errors import InvalidInput
from postroad.intake import reply_texts
from postroad.intake.clients import Rights
from postroad.intake.commands import (
    HELLO,
    MailFrom,
    RcptTo,
    Refused,
    SaidClient,
    decode_initial,
    parse_mail,
    parse_rcpt,
    parse_xclient,
    split_command,
)
from postroad.intake.reply_texts import Offer as Offer

MAX_ERRORS = 20
"""Refused commands since the last accepted mail, after which the session ends, because the client
is broken or guesses."""

MAX_REFUSED_RECIPIENTS = 100
"""The same for RCPT alone, because one mail of a list can have many malformed recipients."""

MAX_IDLE_COMMANDS = 100
"""Commands since the last accepted mail that belong to no mail, after which the session ends: they
take the processor from other clients. Postfix has the same limit (smtpd_junk_command_limit)."""

MAX_OVERSHOOT = 1000
"""RCPT commands since the last accepted mail that add no recipient to a mail that has as many as it
may have: the replies show the client which to send in the next mail. Postfix has the same limit
(smtpd_recipient_overshoot_limit). Where the mail may have more, the limit is the number of its
recipients and MAX_IDLE_COMMANDS."""

_IDLE = frozenset(("NOOP", "RSET", "VRFY", "HELP", "EHLO", "HELO", "ETRN"))

_CHUNK = re.compile(r"([0-9]{1,12})(?:[ ]+(LAST))?", re.IGNORECASE)
MAX_CHUNK = 1 << 30
"""Octets of a chunk. A client that wants to send more cuts the mail."""

_NO_SMTP = re.compile(
    rb"(?:GET|HEAD|POST|PUT|DELETE|CONNECT|OPTIONS|TRACE|PATCH|PRI)[ \t]|[A-Za-z0-9-]+:",
    re.IGNORECASE,
)
"""A request or a header field of HTTP: a web page can make a browser send one to any port."""

_LAST_OF_GROUP = frozenset(("EHLO", "HELO", "DATA"))
"""Commands after which a client waits for the reply before it sends more, unless its network is
exempt. Source: RFC 2920 3.1."""


class NextStep(Enum):
    """Action of the session after it has sent the reply."""

    NEXT_COMMAND = auto()
    READ_MAIL = auto()
    READ_CHUNK = auto()
    START_TLS = auto()
    LOG_IN = auto()
    LOOK_UP = auto()
    CHANGE_CLIENT = auto()
    CLOSE = auto()


NEXT_COMMAND, READ_MAIL, READ_CHUNK, START_TLS, LOG_IN, LOOK_UP, CHANGE_CLIENT, CLOSE = NextStep


class Transaction(NamedTuple):
    """A client's envelope at DATA."""

    mail_from: MailFrom
    recipients: tuple[str, ...]
    dsn_of: dict[str, RecipientDsn]

    @property
    def dsn(self) -> DsnOptions | None:
        """The DSN parameters of MAIL and RCPT, None without any."""
        if not (self.mail_from.ret or self.mail_from.envid or self.dsn_of):
            return None
        return DsnOptions(self.mail_from.ret, self.mail_from.envid, self.dsn_of)


class Chunk(NamedTuple):
    """Octets that a client sends behind BDAT. `refusal`: they are read, and dropped."""

    size_bytes: int
    is_last: bool
    refusal: Reply | None = None


class LoginRequest(NamedTuple):
    """A login that a client begins. `initial`: its first response; None: it waits for the first
    challenge."""

    mechanism: str
    initial: bytes | None


ReplyAndStep = tuple[Reply, NextStep]
Admission = Callable[[MailFrom], Reply | None]
"""Returns the reply that refuses a mail at MAIL, or None; 421 ends the session."""

_OK = Reply(250, ("2.0.0 ok",))
_IDLE_REPLIES = {
    "NOOP": _OK,
    "VRFY": Reply(252, ("2.5.0 cannot verify, send and see",)),
    "HELP": Reply(214, ("2.0.0 see RFC 5321",)),
}
_SENDER_OK = Reply(250, ("2.1.0 ok",))
_RECIPIENT_OK = Reply(250, ("2.1.5 ok",))
_GO_ON = Reply(354, ("end with <CRLF>.<CRLF>",))
LOGGED_IN = Reply(235, ("2.7.0 logged in",))
_LOG_IN_FIRST = Reply(530, ("5.7.0 log in first",))
_TLS_FIRST = Reply(538, ("5.7.11 log in under TLS alone: begin with STARTTLS",))
WRONG_SENDER = Reply(553, ("5.7.1 the user may not send from this address",))
BYE = Reply(221, ("2.0.0 bye",))
NOT_SMTP = Reply(421, ("4.7.0 this is a mail server",))
TALKS_EARLY = Reply(554, ("5.5.0 wait for the reply before sending more",))
TOO_MANY_ERRORS = Reply(421, ("4.7.0 too many errors",))
TOO_IDLE = Reply(421, ("4.7.0 too many commands without a mail",))
_TOO_MANY_RECIPIENTS = Reply(452, ("4.5.3 too many recipients",))
_NO_RECIPIENTS = Reply(554, ("5.5.1 no valid recipients",))
_NOT_FOR_YOU = Reply(459, ("4.7.1 the mail of this domain is not sent for your address",))
_NEEDLESS = Reply(503, ("5.5.1 bad sequence of commands",))


@dataclass(slots=True)
class Dialogue:
    """The state of one client's session."""

    offer: Offer
    rights: Rights
    admission: Admission | None = None
    client_name: str | None = None
    is_extended: bool = False
    """True if the client sent EHLO; the reply to HELO offers no extension."""

    is_secured: bool = False
    transaction: Transaction | None = None
    chunk: Chunk | None = None
    """The chunk that the session reads, or has read last, of this transaction."""

    login: LoginRequest | None = None
    """The login that the session carries out."""

    unverified: RcptTo | None = None
    """The recipient that the session finds out about."""

    said_client: SaidClient | None = None
    """The client that a proxy has described."""

    is_described: bool = False
    """True once a proxy has said whose connection it hands on: what else comes is the client's."""

    errors: int = 0
    refused_recipients: int = 0
    idle_commands: int = 0
    needless_recipients: int = 0
    _recipients: dict[str, RecipientDsn | None] = field(default_factory=dict)
    _mail_from: MailFrom | None = None

    def greeting(self) -> Reply:
        return self.offer.greeting

    def answer(self, line: bytes, *, is_followed: bool = False) -> ReplyAndStep:
        """Answer one command line. `is_followed`: the client has already sent more."""
        verb = ""
        try:
            verb, argument = split_command(line)
            if is_followed and verb in _LAST_OF_GROUP and not self.rights.may_talk_early:
                return TALKS_EARLY, CLOSE
            if verb in _IDLE and self._idles_too_much():
                return TOO_IDLE, CLOSE
            reply, step = self._do(verb, argument)
        except Refused as error:
            if _NO_SMTP.match(line):  # which is no command, so it was refused
                return NOT_SMTP, CLOSE
            reply, step = error.reply, NEXT_COMMAND
        if verb == "BDAT" and step is not READ_CHUNK:
            return reply, CLOSE  # octets may follow, and how many is not known
        if verb == "DATA" and step is not READ_MAIL:
            # DATA was refused, and its content may follow: read as commands, a line of a mail could
            # be executed.
            if is_followed:
                return TALKS_EARLY, CLOSE
            if self.rights.may_talk_early:
                return reply, CLOSE  # the content may be on its way
        if reply.code < 400:
            return reply, step
        return self._count(reply, step, is_recipient=verb == "RCPT")

    def refuse(self, reply: Reply) -> ReplyAndStep:
        """Refuse a line that is no command line."""
        return self._count(reply, NEXT_COMMAND)

    def finish(self) -> None:
        """Drop the transaction: its mail was answered, or the connection is lost."""
        self.transaction = self.chunk = None
        self._mail_from = None
        self._recipients = {}

    def accepted(self) -> None:
        """Count errors anew after an accepted mail."""
        self.errors = self.refused_recipients = 0
        self.idle_commands = self.needless_recipients = 0

    def secured(self) -> None:
        """Drop what the client sent in clear, because TLS has started. Source: RFC 3207 4.2."""
        self.finish()
        self.client_name, self.is_extended, self.is_secured = None, False, True

    def logged_in(self, rights: Rights) -> Reply:
        """Give the client the rights of its user, and return the reply."""
        self.rights, self.login = rights, None
        self.accepted()
        return LOGGED_IN

    def login_failed(self, reply: Reply) -> ReplyAndStep:
        """Count a login that has not succeeded."""
        self.login = None
        return self._count(reply, NEXT_COMMAND)

    @property
    def protocol(self) -> str:
        """The protocol for `Received: … with`. Source: RFC 3848; RFC 6531 4.3."""
        mail_from = self.transaction.mail_from if self.transaction else None
        is_utf8 = mail_from is not None and mail_from.utf8
        if not (is_utf8 or self.is_extended):
            return "SMTP"
        base = "UTF8SMTP" if is_utf8 else "ESMTP"
        secured, user = "S" * self.is_secured, "A" * (self.rights.submission is not None)
        return base + secured + user

    def _idles_too_much(self) -> bool:
        self.idle_commands += 1
        return self.idle_commands > MAX_IDLE_COMMANDS

    def _count(self, reply: Reply, step: NextStep, *, is_recipient: bool = False) -> ReplyAndStep:
        if reply.code < 500:
            return reply, CLOSE if reply.code == 421 else step
        if is_recipient:
            self.refused_recipients += 1
        else:
            self.errors += 1
        if self.errors >= MAX_ERRORS or self.refused_recipients >= MAX_REFUSED_RECIPIENTS:
            return TOO_MANY_ERRORS, CLOSE
        return reply, step

    def _do(self, verb: str, argument: str) -> ReplyAndStep:
        match verb:
            case "EHLO" | "HELO":
                return self._hello(verb, argument), NEXT_COMMAND
            case "MAIL":
                return self._mail(argument), NEXT_COMMAND
            case "RCPT":
                reply = self._rcpt(argument)
                return (reply, NEXT_COMMAND) if self.unverified is None else (_GO_ON, LOOK_UP)
            case "DATA":
                return self._data(argument)
            case "BDAT":
                return self._bdat(argument)
            case "RSET":
                self.finish()
                return _OK, NEXT_COMMAND
            case "NOOP" | "VRFY" | "HELP":
                return _IDLE_REPLIES[verb], NEXT_COMMAND
            case "QUIT":
                return BYE, CLOSE
            case "STARTTLS" if self.offer.tls:
                return self._start_tls(argument)
            case "AUTH" if self.offer.mechanisms:
                return self._auth(argument)
        return self._do_rarely(verb, argument)

    def _do_rarely(self, verb: str, argument: str) -> ReplyAndStep:
        if verb == "ETRN" and self.offer.flush is not None:
            return self._etrn(argument, self.offer.flush), NEXT_COMMAND
        if verb == "XCLIENT" and self.offer.xclient:
            return self._xclient(argument)
        raise Refused(502, "5.5.1 command not implemented")

    def _hello(self, verb: str, argument: str) -> Reply:
        if not HELLO.fullmatch(argument):
            raise Refused(501, f"5.5.4 syntax: {verb} name")
        self.finish()
        self.client_name, self.is_extended = argument, verb == "EHLO"
        if verb == "HELO":
            return self.offer.helo
        if not self.is_secured:
            return self.offer.ehlo
        return self.offer.ehlo_secured if self.offer.now is None else self.offer.ehlo_of_users()

    def _mail(self, argument: str) -> Reply:
        if self.client_name is None:
            raise Refused(503, "5.5.1 say EHLO first")
        if self._mail_from is not None:
            return _NEEDLESS
        if self.rights.must_log_in:
            return _LOG_IN_FIRST
        offer = self.offer
        mail_from = parse_mail(argument, offer.secured_words if self.is_secured else offer.words)
        if mail_from.hold is not None and not offer.may_hold(mail_from.hold):
            raise Refused(501, "5.5.4 HOLDUNTIL is over, or later than offered")
        if mail_from.size_bytes is not None and mail_from.size_bytes > self.max_size_bytes:
            raise Refused(552, "5.3.4 the mail is larger than accepted")
        if (submission := self.rights.submission) is not None:
            senders = submission.senders
            if senders is not None and senders.match(mail_from.sender) is None:
                return WRONG_SENDER
            if (refusal := submission.begins_mail()) is not None:
                return refusal
        if self.admission is not None and (refusal := self.admission(mail_from)) is not None:
            return TOO_IDLE if self._idles_too_much() else refusal
        self._mail_from = mail_from
        return _SENDER_OK

    def _rcpt(self, argument: str) -> Reply:
        if self._mail_from is None or self.chunk is not None:
            return _NEEDLESS
        wanted = parse_rcpt(argument, utf8=self._mail_from.utf8)
        is_bare = "@" not in wanted.recipient
        if is_bare:  # the bare postmaster is this host's (RFC 5321 4.5.1)
            wanted = wanted._replace(recipient=f"{wanted.recipient}@{self.offer.hostname}")
        refusal = None
        if not self.rights.may_relay:
            refusal = self._refusal_of(wanted.recipient, is_bare)
            if refusal is not None and refusal is not reply_texts.UNVERIFIED:
                return refusal
        is_known = wanted.recipient in self._recipients
        if is_known or len(self._recipients) >= self.offer.max_recipients:
            if self._overshoots():
                return TOO_IDLE
            return _RECIPIENT_OK if is_known else _TOO_MANY_RECIPIENTS
        if refusal is not None:
            self.unverified = wanted
            return refusal
        self._recipients[wanted.recipient] = wanted.dsn
        return _RECIPIENT_OK

    def looked_up(self, refusal: Reply | None) -> ReplyAndStep:
        """Answer the RCPT of the recipient that was found out about."""
        wanted, self.unverified = self.unverified, None
        assert wanted is not None
        if refusal is not None:
            return self._count(refusal, NEXT_COMMAND, is_recipient=True)
        self._recipients[wanted.recipient] = wanted.dsn
        return _RECIPIENT_OK, NEXT_COMMAND

    def _refusal_of(self, recipient: str, is_bare: bool) -> Reply | None:
        recipients = self.rights.recipients
        if recipients is None:
            return reply_texts.NO_RELAYING
        return None if is_bare else recipients.refusal(recipient)

    def _overshoots(self) -> bool:
        """Count an RCPT that adds no recipient; return whether these are too many."""
        self.needless_recipients += 1
        is_full = len(self._recipients) >= self.offer.max_recipients
        most = MAX_OVERSHOOT if is_full else len(self._recipients) + MAX_IDLE_COMMANDS
        return self.needless_recipients > most

    def _data(self, argument: str) -> ReplyAndStep:
        if argument:
            raise Refused(501, "5.5.4 DATA takes no argument")
        if self._mail_from is None or self.chunk is not None:
            return _NEEDLESS, NEXT_COMMAND
        if not self._recipients:
            raise Refused(554, "5.5.1 no valid recipients")
        self.transaction = self._transaction(self._mail_from)
        return _GO_ON, READ_MAIL

    def _transaction(self, mail_from: MailFrom) -> Transaction:
        return Transaction(
            mail_from,
            tuple(self._recipients),
            {recipient: dsn for recipient, dsn in self._recipients.items() if dsn is not None},
        )

    def _bdat(self, argument: str) -> ReplyAndStep:
        """Begin to read a chunk, which a client sends without waiting. Source: RFC 3030 2."""
        found = _CHUNK.fullmatch(argument)
        if found is None or int(found[1]) > MAX_CHUNK:
            raise Refused(501, f"5.5.4 syntax: BDAT octets [LAST], at most {MAX_CHUNK}")
        refusal = None
        if self._mail_from is None:
            refusal = _NEEDLESS
        elif not self._recipients:
            refusal = _NO_RECIPIENTS
        elif self.transaction is None:
            self.transaction = self._transaction(self._mail_from)
        self.chunk = Chunk(int(found[1]), found[2] is not None, refusal)
        return _GO_ON, READ_CHUNK

    def chunk_refused(self, reply: Reply) -> ReplyAndStep:
        """Count a chunk that was read and dropped."""
        self.chunk = None
        return self._count(reply, NEXT_COMMAND)

    @property
    def max_size_bytes(self) -> int:
        """Octets of the client's largest mail."""
        return self.rights.largest_mail(self.offer.max_size_bytes)

    def _auth(self, argument: str) -> ReplyAndStep:
        if not self.is_secured:
            return _TLS_FIRST, NEXT_COMMAND
        if self.client_name is None:
            raise Refused(503, "5.5.1 say EHLO first")
        if self.rights.submission is not None or self._mail_from is not None:
            return _NEEDLESS, NEXT_COMMAND
        mechanism, _, initial = argument.partition(" ")
        if mechanism.upper() not in self.offer.mechanisms:
            raise Refused(504, "5.5.4 this mechanism is not offered")
        self.login = LoginRequest(mechanism.upper(), decode_initial(initial))
        return _GO_ON, LOG_IN

    def _etrn(self, argument: str, flush: Callable[[str], Reply]) -> Reply:
        """Begin to send what waits for a domain. Source: RFC 1985 5."""
        if self.client_name is None or self._mail_from is not None:
            return _NEEDLESS
        if not self.rights.may_relay:
            return _NOT_FOR_YOU
        try:
            return flush(ascii_domain(argument))
        except InvalidInput:
            raise Refused(501, "5.5.4 syntax: ETRN domain") from None

    def _xclient(self, argument: str) -> ReplyAndStep:
        if self._mail_from is not None:
            return _NEEDLESS, NEXT_COMMAND
        self.said_client = parse_xclient(argument, logs_in=bool(self.offer.mechanisms))
        return _GO_ON, CHANGE_CLIENT

    def client_changed(self, rights: Rights) -> Reply:
        """Begin anew with the client that a proxy has described, and return the greeting."""
        said, self.said_client = self.said_client, None
        assert said is not None
        self.finish()
        self.rights, self.client_name = rights, said.name_in_hello
        self.is_extended = said.protocol == "ESMTP"
        if said.address is not None or said.login is not None:
            # A proxy that hands on all that follows, as nginx, hands on its client's XCLIENT, too.
            self.is_described, self.offer = True, replace(self.offer, xclient=False)
        return self.offer.greeting

    def _start_tls(self, argument: str) -> ReplyAndStep:
        if argument:
            raise Refused(501, "5.5.4 STARTTLS takes no argument")
        if self.is_secured:
            return _NEEDLESS, NEXT_COMMAND
        return Reply(220, ("2.0.0 go ahead",)), START_TLS
