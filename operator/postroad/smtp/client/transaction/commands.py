"""Builds the commands of one transaction, or refuses a mail that needs a missing extension.

Pure: an envelope and the next hop's extensions in, octets or a refusal out.
Source: RFC 5321 4.1.1; RFC 1870 (SIZE); RFC 6152 (8BITMIME); RFC 6531 (SMTPUTF8); RFC 3461 (DSN);
RFC 8689 (REQUIRETLS).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from postroad.domain.mail.mail import REQUIRE_TLS, Envelope, Outcome
from postroad.domain.mail.seven_bits import ascii_address, encode_xtext
from postroad.smtp.client.transaction.content import OpenContent

_DIGITS = re.compile(r"[0-9]{1,20}")
_NO_REQUIRETLS = Outcome.failed(
    "550 5.7.30 the next hop does not offer REQUIRETLS over TLS that verifies"
)
_NO_SMTPUTF8 = Outcome.failed("550 5.6.7 the next hop does not offer SMTPUTF8")

Extensions = Mapping[str, str]
"""EHLO keyword in upper case → its parameters, by the lines on which it stood."""


class Needs(NamedTuple):
    """Extensions that a mail needs of the next hop."""

    size_bytes: int
    """As RFC 1870 counts it."""

    has_8bit: bool
    """True if the mail certainly needs 8BITMIME."""

    may_have_8bit: bool
    """True if it may need 8BITMIME, its shape being unknown."""

    has_utf8: bool
    """True if sender or header needs SMTPUTF8; a recipient's need is its own."""

    came_by_utf8: bool
    """True if the client that sent the mail declared SMTPUTF8, needed or not."""

    has_nul: bool = False
    """True if the content holds a NUL, which no text of mail may. Source: RFC 5322 3.5."""

    requires_tls: bool = False
    """True if it goes over verified TLS alone, to a next hop that sees to that.
    Source: RFC 8689."""

    @classmethod
    def of(cls, envelope: Envelope, content: OpenContent) -> Needs:
        """Return the needs. A client declares SMTPUTF8 also for mail that is all ASCII; only an
        internationalised address or header needs it. Source: RFC 6531 3.4, 3.6."""
        by_utf8 = envelope.origin is not None and (envelope.origin.protocol or "").startswith(
            "UTF8"
        )
        return cls(
            content.sent_size,
            content.shape is not None and content.shape.has_8bit,
            content.may_have_8bit,
            _is_utf8_only(envelope.sender or "") or (by_utf8 and content.has_8bit_header),
            by_utf8,
            content.shape is not None and content.shape.has_nul,
            REQUIRE_TLS in envelope.attributes,
        )


def _is_utf8_only(address: str) -> bool:
    """True if an address cannot be written in ASCII: its local part is not, or its domain has no
    A-labels."""
    return not ascii_address(address).isascii()


def most_recipients(extensions: Extensions) -> int | None:
    """Return how many recipients the next hop takes in one transaction; None: it states no limit.
    Source: RFC 9422."""
    return _limit(extensions, "RCPTMAX")


def most_mails(extensions: Extensions) -> int | None:
    """Return how many transactions the next hop takes in one session; None: it states no limit.
    Source: RFC 9422."""
    return _limit(extensions, "MAILMAX")


def most_octets(extensions: Extensions) -> int | None:
    """Return how large a mail the next hop takes; None: it states no limit. Source: RFC 1870 4."""
    return _least(extensions.get("SIZE", "").splitlines())


def takes_8bit(extensions: Extensions) -> bool:
    """Return whether it takes octets above 127, as one with SMTPUTF8 must. Source: RFC 6531 3.1."""
    return "8BITMIME" in extensions or "SMTPUTF8" in extensions


def _limit(extensions: Extensions, name: str) -> int | None:
    words = (word.partition("=") for word in extensions.get("LIMITS", "").split())
    return _least(number for key, _, number in words if key.upper() == name)


def _least(numbers: Iterable[str]) -> int | None:
    """Return the least of those that are limits. 0 and what is no number of RFC 1870 limit
    nothing."""
    found = [int(each) for each in map(str.strip, numbers) if _DIGITS.fullmatch(each)]
    return min(filter(None, found), default=None)


def _is_ascii(envelope: Envelope) -> bool:
    return "".join((envelope.sender or "", *envelope.recipients)).isascii()


def _as_sent(address: str, extensions: Extensions) -> str:
    """Return an address as it is sent: with A-labels to a next hop without SMTPUTF8.
    Source: RFC 5891 4.4; RFC 6531 3.2."""
    return address if "SMTPUTF8" in extensions else ascii_address(address)


def refusals(
    envelope: Envelope, needs: Needs, extensions: Extensions
) -> Mapping[str, Outcome] | None:
    """Return which recipients cannot have the mail by this next hop, and why; None: all can. Those
    whose addresses need SMTPUTF8 fail alone. Source: RFC 6531 3.2."""
    recipients: Sequence[str] = envelope.recipients
    refused = _refusal(needs, extensions)
    if refused is None and "SMTPUTF8" not in extensions:
        refused, recipients = _NO_SMTPUTF8, [each for each in recipients if _is_utf8_only(each)]
    return dict.fromkeys(recipients, refused) if refused and recipients else None


def _refusal(needs: Needs, extensions: Extensions) -> Outcome | None:
    """Return why this next hop cannot accept the mail at all, or None."""
    if needs.has_utf8 and "SMTPUTF8" not in extensions:
        return _NO_SMTPUTF8
    if needs.has_8bit and not takes_8bit(extensions):
        return Outcome.failed(
            "554 5.6.3 the next hop does not offer 8BITMIME, and the mail cannot be converted"
        )
    if needs.has_nul:  # a server that drops it behind CRLF may find the end of the mail, too early
        return Outcome.failed("554 5.6.0 the mail holds a NUL octet, which mail must not hold")
    if needs.requires_tls and "REQUIRETLS" not in extensions:
        return _NO_REQUIRETLS
    limit = most_octets(extensions)
    if limit is not None and limit < needs.size_bytes:
        return Outcome.failed(f"552 5.3.4 the next hop takes at most {limit} octets")
    return None


def mail_command(envelope: Envelope, needs: Needs, extensions: Extensions) -> bytes:
    """Return MAIL with every parameter that is needed and offered."""
    words = [f"MAIL FROM:<{_as_sent(envelope.sender or '', extensions)}>"]
    if "SIZE" in extensions:
        words.append(f"SIZE={needs.size_bytes}")
    if needs.may_have_8bit and "8BITMIME" in extensions:
        words.append("BODY=8BITMIME")
    if "SMTPUTF8" in extensions and (needs.came_by_utf8 or not _is_ascii(envelope)):
        words.append("SMTPUTF8")
    if needs.requires_tls:
        words.append("REQUIRETLS")
    if "DSN" in extensions and envelope.dsn is not None:
        if envelope.dsn.ret:
            words.append(f"RET={envelope.dsn.ret}")
        if envelope.dsn.envid:
            words.append(f"ENVID={encode_xtext(envelope.dsn.envid)}")
    return " ".join(words).encode() + b"\r\n"


def recipient_command(recipient: str, envelope: Envelope, extensions: Extensions) -> bytes:
    """Return RCPT with the DSN parameters it came with, where DSN is offered."""
    words = [f"RCPT TO:<{_as_sent(recipient, extensions)}>"]
    options = envelope.dsn.recipients.get(recipient) if envelope.dsn is not None else None
    if "DSN" in extensions and options is not None:
        if options.notify:
            words.append(f"NOTIFY={','.join(options.notify)}")
        if options.orcpt:
            kind, _, address = options.orcpt.partition(";")
            words.append(f"ORCPT={kind};{encode_xtext(address)}")
    return " ".join(words).encode() + b"\r\n"
