"""Parses an SMTP client's command lines. Pure; a malformed one raises the reply that refuses it.

Lenient where a strict parser would only refuse mail that other servers accept (a space after
`FROM:`, dots anywhere in a local part), strict where leniency lets a client inject commands: no
bare CR, LF or NUL, no address without its angle brackets.
Source: RFC 5321 4.1; RFC 1870; RFC 3461 4; RFC 6152; RFC 6531 3; RFC 6533 3."""

import base64
import binascii
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import NamedTuple

from postroad.domain.mail.mail import NOTIFY, RecipientDsn, check_mailbox
from postroad.domain.mail.seven_bits import decode_xtext
from postroad.domain.smtp.replies import Reply
from postroad.errors import InvalidInput, InvalidMail
from postroad.intake.reply_texts import MAX_HOLD, XCLIENT

MAX_LINE = 4096
"""Octets of a command without its CRLF. RFC 5321 4.5.3.1.4 allows 512, and every extension adds to
it; ORCPT alone adds 500."""

MAX_RESPONSE = 16 * 1024
"""Octets of a line where clients log in: a response in base64 has up to 12,288 (RFC 4954 4), and a
token may be as long."""

_COMMAND = re.compile(rb"([A-Za-z]{3,10})(?:[ \t]++([^\r\n\0]*+))?")
"""Possessive: without that, a line of blanks that does not match is split in every possible way."""

_ADDRESS = r"<([A-Za-z0-9.+_=-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){0,3}[A-Za-z0-9-]{1,63})>"
_ORDINARY_FROM, _ORDINARY_TO = re.compile(f"FROM:{_ADDRESS}"), re.compile(f"TO:{_ADDRESS}")
"""The form of most mailboxes, which no check below refuses."""
_PATH = re.compile(
    r"(?P<keyword>FROM|TO):[ ]*"
    r"<(?P<path>(?:\"(?:[^\"\\]|\\.)*\"|[^\">])*)>"
    r"(?:[ ]+(?P<parameters>.*))?",
    re.IGNORECASE | re.DOTALL,
)
HELLO = re.compile(r"[A-Za-z0-9._:\-\[\]]{1,255}")
"""A client's name in EHLO, in ASCII only (RFC 5321 4.1.1.1; RFC 6531 3.7.1), because another one
would make the trace field of a 7-bit mail 8-bit."""

_ROUTE = re.compile(r"@[^:]*:")
_WITHOUT_VALUE = ("SMTPUTF8", "REQUIRETLS")
_PARAMETER = re.compile(r"([A-Za-z0-9][A-Za-z0-9-]*)(?:=([^\s=\x00-\x20\x7f]+))?")
MAX_ENVID, MAX_ORCPT = 100, 500
"""Characters of xtext; the next hop may refuse a longer one for good. Source: RFC 3461 4.4, 4.2."""


class Refused(InvalidInput):
    """The command is refused with `reply` and changes nothing."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.reply = Reply(code, (text,))


class MailFrom(NamedTuple):
    """MAIL begins a transaction. `sender` is None for the null reverse-path."""

    sender: str | None
    size_bytes: int | None = None
    utf8: bool = False
    ret: str | None = None
    envid: str | None = None
    hold: timedelta | datetime | None = None
    """Time for which, or instant until which, the queue keeps the mail before an attempt."""

    requires_tls: bool = False
    """True if the mail goes over verified TLS alone."""


class SaidClient(NamedTuple):
    """A client as a proxy describes it; None: the proxy does not say."""

    address: str | None = None
    name_in_hello: str | None = None
    protocol: str | None = None
    login: str | None = None


class RcptTo(NamedTuple):
    recipient: str
    dsn: RecipientDsn | None = None


def split_command(line: bytes) -> tuple[str, str]:
    """Return the verb in upper case and its argument. Raises: Refused."""
    found = _COMMAND.fullmatch(line)
    if found is None:
        if b"\r" in line or b"\n" in line or b"\0" in line:
            raise Refused(500, "5.5.2 bare CR, LF or NUL in a command")
        raise Refused(500, "5.5.2 command not understood")
    verb, argument = found.groups(b"")
    try:
        return verb.decode().upper(), argument.decode().rstrip(" \t")
    except UnicodeDecodeError:
        raise Refused(501, "5.5.4 the command is not UTF-8") from None


_INSTANT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9:.]{8,15}([Zz]|[+-][0-9]{2}:[0-9]{2})")


def parse_mail(argument: str, offered: tuple[str, ...] = ()) -> MailFrom:
    """Parse the argument of MAIL. `offered`: keywords beside those that every client may use. AUTH=
    has no effect: the client says for whom it sends, and this server hands that to no other (RFC
    4954 5). Raises: Refused."""
    ordinary = _ORDINARY_FROM.fullmatch(argument)
    if ordinary is not None:
        return MailFrom(ordinary[1])
    path, parameters = _split_path("FROM", argument)
    known = ("SIZE", "BODY", "SMTPUTF8", "RET", "ENVID")
    values = _parameters(parameters, (*known, *offered))
    utf8 = "SMTPUTF8" in values
    if values.get("BODY", "7BIT").upper() not in ("7BIT", "8BITMIME"):
        raise Refused(501, "5.5.4 BODY is 7BIT or 8BITMIME")
    size = values.get("SIZE")
    if size is not None and not re.fullmatch(r"[0-9]{1,20}", size):
        raise Refused(501, "5.5.4 SIZE is a number of octets")
    ret = values.get("RET", "").upper() or None
    if ret not in (None, "FULL", "HDRS"):
        raise Refused(501, "5.5.4 RET is FULL or HDRS")
    sender = _mailbox(path, "5.1.7 malformed sender", utf8=utf8) if path else None
    envid = values.get("ENVID")
    if envid is not None and len(envid) > MAX_ENVID:
        raise Refused(501, f"5.5.4 ENVID has at most {MAX_ENVID} characters")
    return MailFrom(
        sender,
        None if size is None else int(size),
        utf8,
        ret,
        envid and _decoded(envid),
        _hold(values) if offered else None,
        "REQUIRETLS" in values,
    )


def _hold(values: Mapping[str, str]) -> timedelta | datetime | None:
    """Return how long, or until when, a mail is held back. Source: RFC 4865 4."""
    seconds, until = values.get("HOLDFOR"), values.get("HOLDUNTIL")
    if seconds is not None and until is not None:
        raise Refused(501, "5.5.4 give one of HOLDFOR and HOLDUNTIL")
    if seconds is not None:
        if not re.fullmatch("[1-9][0-9]{0,8}", seconds) or int(seconds) > MAX_HOLD.total_seconds():
            raise Refused(501, f"5.5.4 HOLDFOR is 1 to {MAX_HOLD.total_seconds():.0f} seconds")
        return timedelta(seconds=int(seconds))
    if until is None:
        return None
    try:
        if _INSTANT.fullmatch(until):
            return datetime.fromisoformat(until.upper())
    except ValueError:
        pass
    raise Refused(501, "5.5.4 HOLDUNTIL is an instant such as 2027-01-31T08:00:00Z")


def parse_rcpt(argument: str, *, utf8: bool) -> RcptTo:
    """Parse the argument of RCPT. Raises: Refused."""
    ordinary = _ORDINARY_TO.fullmatch(argument)
    if ordinary is not None:
        return RcptTo(ordinary[1])
    path, parameters = _split_path("TO", argument)
    values = _parameters(parameters, ("NOTIFY", "ORCPT"))
    if path.lower() == "postmaster":  # the one mailbox that needs no domain (RFC 5321 4.5.1)
        recipient = path
    else:
        recipient = _mailbox(path, "5.1.3 malformed recipient", utf8=utf8)
    if not values:
        return RcptTo(recipient)
    notify = tuple(word for word in values.get("NOTIFY", "").upper().split(",") if word)
    if not NOTIFY.issuperset(notify) or ("NEVER" in notify and len(notify) > 1):
        raise Refused(501, "5.5.4 NOTIFY is NEVER, or a list of SUCCESS, FAILURE, DELAY")
    return RcptTo(recipient, RecipientDsn(notify, _original_recipient(values.get("ORCPT"))))


_UNKNOWN = ("[UNAVAILABLE]", "[TEMPUNAVAIL]")


def parse_xclient(argument: str, *, logs_in: bool) -> SaidClient:
    """Parse the argument of XCLIENT. `logs_in`: LOGIN may stand in it. Raises: Refused. Source:
    Postfix documentation, XCLIENT_README."""
    if not argument:
        raise Refused(501, "5.5.4 syntax: XCLIENT attribute=value")
    found = dict[str, str | None]()
    for word in argument.split():
        name, equals, text = word.partition("=")
        name = name.upper()
        if not equals or name in found or name not in (*XCLIENT, *(("LOGIN",) if logs_in else ())):
            raise Refused(501, "5.5.4 attribute not offered, given twice or without a value")
        value = _decoded(text)
        found[name] = None if value.upper() in _UNKNOWN else value
    address, hello, protocol = found.get("ADDR"), found.get("HELO"), found.get("PROTO")
    try:
        if "ADDR" in found:  # an unknown client must not have the rights of the proxy
            found_ip = ip_address((address or "").upper().removeprefix("IPV6:"))
            if not re.fullmatch("[A-Z0-9._-]{0,15}", getattr(found_ip, "scope_id", None) or ""):
                raise ValueError  # `ip_address` takes any text, which would stand in `Received`
            address = str(found_ip)
    except ValueError:
        raise Refused(501, "5.5.4 ADDR is 192.0.2.1 or IPV6:2001:db8::1") from None
    if protocol not in (None, "SMTP", "ESMTP"):
        raise Refused(501, "5.5.4 PROTO is SMTP or ESMTP")
    if hello is not None and not HELLO.fullmatch(hello):
        raise Refused(501, "5.5.4 HELO is a name of a host")
    return SaidClient(address, hello, protocol, found.get("LOGIN"))


def decode_initial(text: str) -> bytes | None:
    """Return the initial response of AUTH, which is `=` where it is empty; None: there is none.
    Raises: Refused."""
    if not text:
        return None
    return b"" if text == "=" else decode_response(text.encode())


def decode_response(line: bytes) -> bytes:
    """Return a response to a challenge, without base64. Raises: Refused."""
    try:
        return base64.b64decode(line, validate=True)
    except binascii.Error:
        raise Refused(501, "5.5.2 the response is not base64") from None


def _split_path(keyword: str, argument: str) -> tuple[str, str]:
    found = _PATH.fullmatch(argument)
    if found is None or found["keyword"].upper() != keyword:
        raise Refused(501, f"5.5.4 syntax: {keyword}:<address>")
    return found["path"], found["parameters"] or ""


def _parameters(text: str, known: tuple[str, ...]) -> dict[str, str]:
    values: dict[str, str] = {}
    for word in text.split():
        found = _PARAMETER.fullmatch(word)
        if found is None:
            raise Refused(501, "5.5.4 malformed parameter")
        keyword = found[1].upper()
        if keyword not in known:
            raise Refused(555, "5.5.4 parameter not recognised")
        if keyword in values or (found[2] is None) != (keyword in _WITHOUT_VALUE):
            raise Refused(501, "5.5.4 parameter given twice, or without its value")
        values[keyword] = found[2] or ""
    return values


def _mailbox(path: str, complaint: str, *, utf8: bool) -> str:
    route = _ROUTE.match(path)
    address = path[route.end() :] if route else path  # a source route is ignored (RFC 5321 C)
    local, _, domain = address.rpartition("@")
    try:
        check_mailbox(address if domain else "@")
    except InvalidMail:
        raise Refused(553 if local and domain else 501, complaint) from None
    if not address.isascii() and not utf8:
        raise Refused(553, "5.6.7 a non-ASCII address needs SMTPUTF8")
    return address


def _decoded(xtext: str) -> str:
    try:
        return decode_xtext(xtext)
    except InvalidInput:
        raise Refused(501, "5.5.4 malformed xtext") from None


def _original_recipient(text: str | None) -> str | None:
    if text is None:
        return None
    kind, semicolon, address = text.partition(";")
    if not semicolon or not re.fullmatch(r"[A-Za-z0-9-]+", kind):
        raise Refused(501, "5.5.4 ORCPT is type;address")
    # utf-8-addr-unitext may hold raw UTF-8; stored in its ASCII form, which any next hop accepts.
    ascii_form = "".join(char if char.isascii() else f"\\x{{{ord(char):X}}}" for char in address)
    if len(kind) + len(semicolon) + len(ascii_form) > MAX_ORCPT:
        raise Refused(501, f"5.5.4 ORCPT has at most {MAX_ORCPT} characters")
    return f"{kind};{_decoded(ascii_form)}"
