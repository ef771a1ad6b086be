"""Signs one mail: its octets in as they are sent, the fields to put before them out.

Which fields are signed follows RFC 6376 5.4.1 and RFC 8058 4. A field that is listed once more than
it is there cannot be added without breaking the signature (RFC 6376 5.4.2, 8.15): so the fields
that a reader is shown are listed once more always, others where they are there at all, and those
that lists and relays add on the way never.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from postroad.domain.mail.shapes import LONGEST_HEADER
from postroad.errors import InvalidMail
from postroad.signing.canonical import BodyDigest, canonical_field
from postroad.signing.headers import HeaderField, fields_of
from postroad.signing.rules import SelectedKey, SigningRule

ALWAYS_OVERSIGNED = ("from", "reply-to", "subject", "to", "cc")
OVERSIGNED = (
    *("sender", "date", "message-id", "in-reply-to", "references"),
    *("mime-version", "content-type", "content-transfer-encoding"),
)
SIGNED = (
    *("resent-date", "resent-from", "resent-sender", "resent-to", "resent-cc"),
    *("resent-message-id", "list-id", "list-help", "list-unsubscribe", "list-unsubscribe-post"),
    *("list-subscribe", "list-post", "list-owner", "list-archive", "feedback-id"),
    *("cfbl-address", "cfbl-feedback-id", "auto-submitted"),
)

MOST_SIGNED = 200
"""Fields that a signature lists. RFC 5322 3.6 allows most of them once."""

_WIDTH = 72
_CRLF = b"\r\n"
_BLANK_LINE = b"\r\n\r\n"


class MailSigner:
    """Signs one mail by one rule. The octets may come in chunks of any size; lines end by CRLF."""

    def __init__(self, rule: SigningRule, at: datetime) -> None:
        self._rule = rule
        self._time = int(at.timestamp())
        self._header: bytes | None = None
        self._begun = bytearray()
        self._body = BodyDigest(rule.body_form)

    def feed(self, chunk: bytes) -> None:
        """Take the next octets."""
        if self._header is not None:
            self._body.feed(chunk)
            return
        self._begun += chunk
        if self._begun.startswith(_CRLF):
            end = 2
        elif (found := self._begun.find(_BLANK_LINE)) >= 0:
            end = found + len(_BLANK_LINE)
        elif len(self._begun) > LONGEST_HEADER:
            end = len(self._begun)
        else:
            return
        self._header = bytes(self._begun[:end])
        self._body.feed(bytes(self._begun[end:]))
        self._begun.clear()

    def end(self) -> bytes:
        """Return the fields that go before the mail, each ended by CRLF; nothing may be fed any
        more. Raises: InvalidMail where the header cannot be signed."""
        header = bytes(self._begun) if self._header is None else self._header
        if len(header) > LONGEST_HEADER:
            raise InvalidMail(f"the header is longer than {LONGEST_HEADER} octets")
        fields = fields_of(header)
        names = signed_names(fields)
        digest = base64.b64encode(self._body.end()).decode()
        before = self._canonical(_chosen(fields, names))
        return b"".join(self._field(each, names, before, digest) for each in self._rule.keys)

    def _canonical(self, fields: Sequence[bytes]) -> bytes:
        form = self._rule.header_form
        return b"".join(canonical_field(form, each) + _CRLF for each in fields)

    def _field(
        self, selected: SelectedKey, names: Sequence[str], before: bytes, digest: str
    ) -> bytes:
        rule, key = self._rule, selected.key
        lines = [
            f"DKIM-Signature: v=1; a={key.algorithm}; c={rule.header_form}/{rule.body_form};",
            f" d={rule.domain};",
            f" s={selected.selector}; t={self._time};",
            *_folded_names(names),
            f" bh={digest};",
            " b=",
        ]
        unsigned = _CRLF.join(each.encode() for each in lines)
        signature = key.sign(before + canonical_field(rule.header_form, unsigned))
        return unsigned + _folded(base64.b64encode(signature)) + _CRLF


def signed_names(fields: Sequence[HeaderField]) -> list[str]:
    """Return what `h=` lists for a mail with these fields. Raises: InvalidMail for too many."""
    counts = Counter(each.name for each in fields)
    names: list[str] = []
    for name in ALWAYS_OVERSIGNED:
        names += [name] * (counts[name] + 1)
    for name in OVERSIGNED:
        names += [name] * (counts[name] + 1 if counts[name] else 0)
    for name in SIGNED:
        names += [name] * counts[name]
    if len(names) > MOST_SIGNED:
        raise InvalidMail(f"the header has more than {MOST_SIGNED} fields to sign")
    return names


def _chosen(fields: Sequence[HeaderField], names: Sequence[str]) -> list[bytes]:
    """Return the fields that the names select: of several with one name the lowest first, and
    nothing where none is left. Source: RFC 6376 5.4.2."""
    left: dict[str, list[bytes]] = {}
    for each in fields:
        left.setdefault(each.name, []).append(each.octets)
    return [left[name].pop() for name in names if left.get(name)]


def _folded_names(names: Sequence[str]) -> list[str]:
    lines, line = [], " h="
    for number, name in enumerate(names):
        last = number == len(names) - 1
        if len(line) + len(name) >= _WIDTH:
            lines.append(line)
            line = "  "
        line += name + (";" if last else ":")
    return [*lines, line]


def _folded(encoded: bytes) -> bytes:
    pieces = [encoded[at : at + _WIDTH] for at in range(0, len(encoded), _WIDTH)]
    return b"\r\n  ".join(pieces)
