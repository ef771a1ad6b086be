"""The commands of one transaction, and what a next hop that lacks an extension cannot be asked.

Pure: an envelope and the next hop's extensions in, octets or a refusal out.
Source: RFC 5321 4.1.1; RFC 1870 (SIZE); RFC 6152 (8BITMIME); RFC 6531 (SMTPUTF8); RFC 3461 (DSN).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from postroad.domain.mail import Envelope, Outcome
from postroad.domain.xtext import encode_xtext

Extensions = Mapping[str, str]
"""EHLO keyword in upper case → its parameters."""


class Needs(NamedTuple):
    """What a mail asks of the next hop."""

    size_bytes: int
    has_8bit: bool
    may_have_8bit: bool
    """Whether 8BITMIME is better declared: not all of the content has been looked at yet."""

    has_utf8_envelope: bool

    @classmethod
    def of(
        cls, envelope: Envelope, size_bytes: int, *, has_8bit: bool, may_have_8bit: bool = False
    ) -> Needs:
        """Return the needs. A mail that came in by SMTPUTF8 must leave by it: its origin's protocol
        (`UTF8SMTP…`) says so. Source: RFC 6531 3.1, 4.3."""
        by_utf8 = envelope.origin is not None and (envelope.origin.protocol or "").startswith(
            "UTF8"
        )
        utf8 = by_utf8 or not "".join((envelope.sender or "", *envelope.recipients)).isascii()
        return cls(size_bytes, has_8bit, has_8bit or may_have_8bit, utf8)


def refusal(needs: Needs, extensions: Extensions) -> Outcome | None:
    """Return why this next hop cannot take the mail at all, or None."""
    if needs.has_utf8_envelope and "SMTPUTF8" not in extensions:
        return Outcome.failed("550 5.6.7 the next hop does not offer SMTPUTF8")
    if needs.has_8bit and "8BITMIME" not in extensions:
        return Outcome.failed("554 5.6.3 the next hop does not offer 8BITMIME")
    limit = extensions.get("SIZE", "").strip()
    if limit.isdecimal() and 0 < int(limit) < needs.size_bytes:
        return Outcome.failed(f"552 5.3.4 the next hop takes at most {limit} octets")
    return None


def mail_command(envelope: Envelope, needs: Needs, extensions: Extensions) -> bytes:
    """Return MAIL with every parameter that is needed and offered."""
    words = [f"MAIL FROM:<{envelope.sender or ''}>"]
    if "SIZE" in extensions:
        words.append(f"SIZE={needs.size_bytes}")
    if needs.may_have_8bit and "8BITMIME" in extensions:
        words.append("BODY=8BITMIME")
    if needs.has_utf8_envelope:
        words.append("SMTPUTF8")
    if "DSN" in extensions and envelope.dsn is not None:
        if envelope.dsn.ret:
            words.append(f"RET={envelope.dsn.ret}")
        if envelope.dsn.envid:
            words.append(f"ENVID={encode_xtext(envelope.dsn.envid)}")
    return " ".join(words).encode() + b"\r\n"


def recipient_command(recipient: str, envelope: Envelope, extensions: Extensions) -> bytes:
    """Return RCPT with the DSN parameters it came with, where DSN is offered."""
    words = [f"RCPT TO:<{recipient}>"]
    options = envelope.dsn.recipients.get(recipient) if envelope.dsn is not None else None
    if "DSN" in extensions and options is not None:
        if options.notify:
            words.append(f"NOTIFY={','.join(options.notify)}")
        if options.orcpt:
            kind, _, address = options.orcpt.partition(";")
            words.append(f"ORCPT={kind};{encode_xtext(address)}")
    return " ".join(words).encode() + b"\r\n"
