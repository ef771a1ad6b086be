"""Signs one mail: its octets in as they are sent, the fields to put before them out.

Which fields are signed follows RFC 6376 5.4.1 and RFC 8058 4. A field that is listed once more than
it is there cannot be added without breaking the signature (RFC 6376 5.4.2, 8.15): so the fields
that a reader is shown are listed once more always, others where they are there at all, and those
that lists and relays add on the way never.

The forms over which DKIM computes digests, so that what relays change on the way breaks no
signature. Source: RFC 6376 3.4.

No regular expression is in it: over ordinary text, replacing by octets is several times as fast.

The fields of a header as signatures name them, and whose mail it is.

Whose mail is signed, and with what."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from postroad.domain.mail.address_lists import HeaderField, addresses_in, fields_of
from postroad.domain.mail.mail import domain_of
from postroad.domain.mail.seven_bits import ascii_domain
from postroad.domain.mail.shapes import MAX_HEADER
from postroad.errors import InvalidInput, InvalidMail

if TYPE_CHECKING:
    from postroad.signing.keys import SigningKey


_CRLF = b"\r\n"
_BLANKS = b" \t"


class Canonical(StrEnum):
    """A form of headers or of bodies. `RELAXED` passes over blanks and case."""

    RELAXED = "relaxed"
    SIMPLE = "simple"


def canonical_field(form: Canonical, field: bytes) -> bytes:
    """Return a field of a header, given without the CRLF at its end, in this form and without it.

    >>> canonical_field(Canonical.RELAXED, b"Subject :  a\\r\\n\\tb ")
    b'subject:a b'
    """
    if form is Canonical.SIMPLE:
        return field
    name, _, value = field.partition(b":")
    unfolded = _with_single_blanks(value.replace(_CRLF, b""))
    return name.rstrip(_BLANKS).lower() + b":" + unfolded.strip(b" ")


class BodyDigest:
    """The digest of a body that comes in chunks of any size, with CRLF at the end of each line.
    What may change with what follows it is held back as two numbers, so a body of blanks costs no
    memory."""

    def __init__(self, form: Canonical) -> None:
        self._is_relaxed = form is Canonical.RELAXED
        self._held_back = b" \t\r\n" if self._is_relaxed else _CRLF
        self._hash = hashlib.sha256()
        self._breaks = 0
        """Line breaks that have not come to text yet."""
        self._has_blank = False
        """True if a blank stands behind them."""
        self._held_cr = False
        self._is_empty = True

    def feed(self, chunk: bytes) -> None:
        """Take the next octets."""
        if self._held_cr:
            chunk = b"\r" + chunk
        self._held_cr = chunk.endswith(b"\r")
        if self._held_cr:
            chunk = chunk[:-1]
        text = chunk.rstrip(self._held_back)
        if text:
            self._take(text)
        self._hold(chunk[len(text) :])

    def end(self) -> bytes:
        """Return the digest; nothing may be fed any more. Source: RFC 6376 3.4.3, 3.4.4."""
        if not (self._is_relaxed and self._is_empty):
            self._hash.update(_CRLF)
        return self._hash.digest()

    def _take(self, text: bytes) -> None:
        if self._has_blank:
            text = b" " + text
        if self._breaks:
            self._hash.update(_CRLF * self._breaks)
        self._breaks, self._has_blank, self._is_empty = 0, False, False
        if self._is_relaxed:
            text = _with_single_blanks(text).replace(b" \r\n", _CRLF)
        self._hash.update(text)

    def _hold(self, rest: bytes) -> None:
        if breaks := rest.count(_CRLF):
            self._breaks += breaks
            self._has_blank = False
        self._has_blank |= rest.endswith((b" ", b"\t"))


def _with_single_blanks(octets: bytes) -> bytes:
    """Return the octets with a space for each run of blanks. A run halves with each pass."""
    if b"\t" in octets:
        octets = octets.replace(b"\t", b" ")
    while b"  " in octets:
        octets = octets.replace(b"  ", b" ")
    return octets


def author_domain(fields: list[HeaderField]) -> str:
    """Return the domain of the author, in A-labels: of the one field From, whose addresses share
    it. Raises: InvalidMail. Source: RFC 5322 3.6.2; RFC 6376 5.4, 8.15."""
    values = [each.value for each in fields if each.name == "from"]
    if len(values) != 1:
        raise InvalidMail(f"a mail has one field From, and this one has {len(values)}")
    try:
        domains = {ascii_domain(domain_of(address)) for address in addresses_in(values[0])}
    except InvalidInput as error:
        raise InvalidMail("an address of From cannot be read, or has no domain name") from error
    if len(domains) != 1:
        raise InvalidMail("the addresses of From share no domain")
    return domains.pop()


@dataclass(frozen=True, slots=True)
class SelectedKey:
    """A key, and the selector under which its public half is in DNS."""

    selector: str
    key: SigningKey


@dataclass(frozen=True, slots=True)
class SigningRule:
    """Mail of authors in `domain` is signed for that domain, once with each key. `tenants`: of
    these alone; None: of all. `covers_subdomains`: that of authors in domains below it too."""

    domain: str
    keys: tuple[SelectedKey, ...]
    tenants: frozenset[str] | None = None
    covers_subdomains: bool = False
    header_form: Canonical = Canonical.RELAXED
    body_form: Canonical = Canonical.RELAXED

    def allows(self, tenant: str | None) -> bool:
        return self.tenants is None or tenant in self.tenants


@dataclass(frozen=True, slots=True)
class SigningPlan:
    """All rules. Of those for one domain, the first that allows the tenant decides; of domains, the
    nearest."""

    rules: tuple[SigningRule, ...] = ()
    _by_domain: Mapping[str, list[SigningRule]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_domain: dict[str, list[SigningRule]] = {}
        for rule in self.rules:
            by_domain.setdefault(rule.domain, []).append(rule)
        object.__setattr__(self, "_by_domain", by_domain)

    def find(self, domain: str, tenant: str | None) -> SigningRule | None:
        """Return the rule for an author's domain, in A-labels and lower case; None: not signed."""
        for name in _and_above(domain):
            for rule in self._by_domain.get(name, ()):
                if (rule.covers_subdomains or name == domain) and rule.allows(tenant):
                    return rule
        return None


def _and_above(domain: str) -> Iterable[str]:
    while domain:
        yield domain
        domain = domain.partition(".")[2]


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

MAX_SIGNED = 200
"""Fields that a signature lists. RFC 5322 3.6 allows most of them once."""

_WIDTH = 72
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
        elif len(self._begun) > MAX_HEADER:
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
        if len(header) > MAX_HEADER:
            raise InvalidMail(f"the header is longer than {MAX_HEADER} octets")
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
    if len(names) > MAX_SIGNED:
        raise InvalidMail(f"the header has more than {MAX_SIGNED} fields to sign")
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
