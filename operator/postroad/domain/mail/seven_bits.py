"""Mail in 8 bits, converted for a next hop that takes 7: quoted-printable or base64, part by part.

Only parts with octets above 127 are changed, and of their headers only the encoding: everything
else stays as it is, octet for octet. What cannot be converted without a guess, or without breaking
a signature, is not converted. A copy, which a report returns, may lose its signatures, and has
encoded words where its headers have octets above 127.
Pure. Source: RFC 6152 3; RFC 2045 6; RFC 2046 5; RFC 2047; RFC 1428; ADR 0027.

Internationalised domain names: their ASCII form, for servers that know no SMTPUTF8.

xtext: how DSN parameters carry any ASCII text inside one word, and an address in UTF-8 in ASCII.

Source: RFC 3461 4; RFC 6533 3."""

from __future__ import annotations

import re
from base64 import b64encode, encodebytes
from binascii import a2b_qp, b2a_qp
from collections.abc import Generator
from dataclasses import dataclass, replace
from email.message import Message
from email.parser import BytesHeaderParser
from functools import lru_cache
from typing import NamedTuple, TypeVar

import idna

from postroad.domain.mail.shapes import MAX_HEADER
from postroad.errors import InvalidInput

Result = TypeVar("Result")
Steps = Generator[None, None, Result]
"""Work that can be left and gone on with between any two steps, and its result."""

PIECE = 64 * 1024
"""Octets that are looked at in one step: a fraction of a millisecond."""

_BASE64_PIECE = PIECE // 57 * 57
"""Whole lines of base64, which hold 57 octets each."""

DEEPEST = 10
"""Multiparts and messages within each other. Each level is one search over what it holds, so this
bounds the work too."""

MAX_PARTS = 1000
"""Parts of a mail that are looked at."""

_SIGNED_FIELDS = (
    *("dkim-signature", "domainkey-signature", "arc-message-signature", "arc-seal"),
    "x-pgp-sig",
)
_SIGNED_TYPES = frozenset(
    (
        *("multipart/signed", "multipart/encrypted", "application/pkcs7-mime"),
        *("application/x-pkcs7-mime", "application/pkcs7-signature"),
        "application/x-pkcs7-signature",
    )
)
_ENCODABLE_MESSAGES = frozenset(
    ("message/global", "message/global-headers", "message/global-delivery-status")
)
"""Source: RFC 6532 3.7; RFC 6533 5."""

_IDENTITIES = frozenset(("7bit", "8bit", "binary"))
_CR, _CRLF = ord("\r"), b"\r\n"
_BLANK_LINE = b"\r\n\r\n"
_AFTER_DELIMITER = re.compile(rb"(--)?[ \t]*(?=\r\n|\Z)")
_ENCODING = re.compile(rb"^content-transfer-encoding[ \t]*:(?:[^\r\n]|\r\n[ \t])*\r\n", re.I | re.M)
_HEADER = re.compile(rb"(?:[!-9;-~]+[ \t]*:[^\r\n]*\r\n(?:[ \t][^\r\n]*\r\n)*)*\r\n")
_SPACED_NAME = re.compile(rb"^([!-9;-~]+)[ \t]+:", re.M)
"""A field with blanks before its colon (RFC 5322 4.5.8), at which the parser would end the header:
it would see neither types nor signatures behind it."""

_MEDIA_TYPE = re.compile(r"text|[^\s()/]+/[^\s()/]+", re.I)
"""Comments and blanks within a type are read differently by different programs."""

_PHRASE = re.compile(rb"[^\r\n\"<>(),;:@]+")
_WORD = 11
"""Characters of an encoded word, which has 75 at most. Source: RFC 2047 2."""

_AS_ASCII = bytes(range(128)) + b"?" * 128

_PARSER = BytesHeaderParser()


class _Unconvertible(Exception):
    """This mail cannot be converted."""


def is_signed(header: bytes) -> bool:
    """True if a mail with this header is signed or encrypted, so that it must not be changed."""
    return _is_signed(_fields_of(header))


def quoted_printable(text: bytes | bytearray) -> bytes:
    """Return a text whose lines end by CRLF, without the time of a search for other ends."""
    return b2a_qp(text, istext=True).replace(_CRLF, b"\n").replace(b"\n", _CRLF)


def in_seven_bits(
    content: bytes | bytearray, *, is_copy: bool = False
) -> Steps[list[bytes] | None]:
    """Return a mail, or a copy of one, in 7 bits, in pieces of at most about PIECE octets each,
    with lines of at most 998 octets where it was converted; None when it cannot be converted. The
    content has CRLF at the end of each line, and must not change meanwhile. It is done in steps,
    each of which looks at no more than about PIECE octets."""
    conversion = _Conversion(content, is_copy=is_copy)
    whole = _EntityPlace("text/plain", (), 0, is_message=True)
    try:
        return (yield from conversion.entity(0, len(content), whole))
    except _Unconvertible:
        return None


@dataclass(frozen=True, slots=True)
class _EntityPlace:
    """Part of a message where an entity stands: default type, and the delimiters around it."""

    default_type: str
    delimiters: tuple[bytes, ...]
    depth: int
    is_message: bool

    def inner(
        self, default_type: str, *delimiters: bytes, is_message: bool = False
    ) -> _EntityPlace:
        if self.depth == DEEPEST:
            raise _Unconvertible
        delimiters = (*self.delimiters, *delimiters)
        return replace(
            self,
            default_type=default_type,
            delimiters=delimiters,
            depth=self.depth + 1,
            is_message=is_message,
        )


class _Delimiter(NamedTuple):
    """`start` is before its line break."""

    start: int
    end: int
    is_last: bool


class _Conversion:
    """`start` and `end` are offsets in the content."""

    def __init__(self, content: bytes | bytearray, *, is_copy: bool) -> None:
        self._content = content
        self._is_copy = is_copy
        self._parts = 0

    def entity(self, start: int, end: int, place: _EntityPlace) -> Steps[list[bytes]]:
        """Return a message or a part in 7 bits. Raises: _Unconvertible."""
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _Unconvertible
        if (yield from self._is_ascii(start, end)):
            return (yield from self._copied(start, end))
        begin = yield from self._body(start, end)
        header = bytes(self._content[start:begin])
        fields = _fields_of(header)
        if self._is_copy:
            header = _PHRASE.sub(_in_encoded_words, header)
        elif not header.isascii() or _is_signed(fields):
            raise _Unconvertible
        media_type = _type_of(fields, place.default_type)
        if len(fields.get_all("content-transfer-encoding", ())) > 1:
            raise _Unconvertible
        if str(fields.get("content-transfer-encoding", "7bit")).strip().lower() not in _IDENTITIES:
            raise _Unconvertible  # octets above 127 in an encoded part
        encoding = b"7bit"
        if media_type.startswith("multipart/"):
            body = yield from self._multipart(fields, media_type, begin, end, place)
        elif media_type == "message/rfc822":
            inner = place.inner("text/plain", is_message=True)
            body = yield from self.entity(begin, end, inner)
        elif media_type.startswith("message/") and media_type not in _ENCODABLE_MESSAGES:
            raise _Unconvertible  # no other may be encoded (RFC 2046 5.2)
        else:
            encoding, body = yield from self._encoded(begin, end, media_type, place)
        return [_with_encoding(header, fields, encoding, place), *body]

    def _multipart(
        self, fields: Message, media_type: str, at: int, end: int, place: _EntityPlace
    ) -> Steps[list[bytes]]:
        boundary = fields.get_boundary()
        if not boundary or not boundary.isascii() or len(boundary) > 70:
            raise _Unconvertible
        delimiter = b"--" + boundary.encode()
        default = "message/rfc822" if media_type == "multipart/digest" else "text/plain"
        inner = place.inner(default, delimiter)
        result: list[bytes] = []
        start, begun = at, False
        """Start of the part that is being looked for the end of, or the preamble."""
        while (found := (yield from self._delimiter(delimiter, at, end, start))) is not None:
            # An empty part has no line break of its own: the delimiter before it took it.
            stop = max(start, found.start)
            result += yield from self._piece(start, stop, inner, is_part=begun)
            result.append(bytes(self._content[stop : found.end]))
            at = start = found.end
            begun = not found.is_last
            if found.is_last:
                break
            if self._content.startswith(_CRLF, at, end):
                # The line break behind a delimiter may be the one before the next.
                result.append(_CRLF)
                start = at + 2
        result += yield from self._piece(start, end, inner, is_part=begun)
        return result

    def _delimiter(
        self, delimiter: bytes, at: int, end: int, start: int
    ) -> Steps[_Delimiter | None]:
        """Return the next line from `at` on that is this delimiter."""
        content = self._content
        first = at
        while True:
            found = yield from self._find(delimiter, at, end)
            if found is None:
                return None
            line_break = content.startswith(_CRLF, found - 2) and found - 2 >= first
            after = _AFTER_DELIMITER.match(content, found + len(delimiter), end)
            if after is not None and (line_break or found == first == start):
                begin = found - 2 if line_break else found
                return _Delimiter(begin, after.end(), after.group(1) is not None)
            at = found + 1

    def _piece(
        self, start: int, end: int, place: _EntityPlace, *, is_part: bool
    ) -> Steps[list[bytes]]:
        if is_part:
            return (yield from self.entity(start, end, place))
        pieces = yield from self._copied(start, end)
        if self._is_copy:
            return [each.translate(_AS_ASCII) for each in pieces]
        if not all(map(bytes.isascii, pieces)):
            raise _Unconvertible  # a preamble or an epilogue has no encoding
        return pieces

    def _encoded(
        self, start: int, end: int, media_type: str, place: _EntityPlace
    ) -> Steps[tuple[bytes, list[bytes]]]:
        """Return the encoding of a leaf, and its body in it."""
        if media_type.startswith("text/"):
            quoted = yield from self._quoted(start, end, place.delimiters)
            if quoted is not None:
                return b"quoted-printable", quoted
        lines: list[bytes] = []
        for at in range(start, end, _BASE64_PIECE):
            piece = self._content[at : min(at + _BASE64_PIECE, end)]
            lines.append(encodebytes(piece).replace(b"\n", _CRLF))
            yield
        if lines and place.delimiters:  # the line break before a delimiter belongs to it
            lines[-1] = lines[-1].removesuffix(_CRLF)
        return b"base64", lines

    def _quoted(
        self, start: int, end: int, delimiters: tuple[bytes, ...]
    ) -> Steps[list[bytes] | None]:
        """Return a text as quoted-printable; None where a line that is broken begins as a delimiter
        does, which base64 cannot, as it has no "-"."""
        lines: list[bytes] = []
        while start < end:
            stop = min(start + PIECE, end)
            if stop < end and self._content[stop - 1] == _CR:
                stop -= 1  # a CR alone would become a line's end
            quoted = quoted_printable(self._content[start:stop])
            if stop < end:
                # What is behind its last line break is encoded with what follows it.
                whole = quoted.rfind(b"\n") + 1
                stop -= len(a2b_qp(quoted[whole:]))
                quoted = quoted[:whole]
            if any(delimiter in quoted for delimiter in delimiters):
                return None
            lines.append(quoted)
            start = stop
            yield
        return lines

    def _body(self, start: int, end: int) -> Steps[int]:
        """Return where the body begins, behind a header and its blank line."""
        if self._content.startswith(_CRLF, start, end):
            return start + 2
        found = yield from self._find(_BLANK_LINE, start, min(end, start + MAX_HEADER))
        if found is None or not _HEADER.fullmatch(self._content, start, found + 4):
            raise _Unconvertible
        return found + 4

    def _find(self, octets: bytes, start: int, end: int) -> Steps[int | None]:
        for at in range(start, end, PIECE):
            found = self._content.find(octets, at, min(at + PIECE + len(octets) - 1, end))
            if found >= 0:
                return found
            yield
        return None

    def _is_ascii(self, start: int, end: int) -> Steps[bool]:
        for at in range(start, end, PIECE):
            if not self._content[at : min(at + PIECE, end)].isascii():
                return False
            yield
        return True

    def _copied(self, start: int, end: int) -> Steps[list[bytes]]:
        pieces: list[bytes] = []
        for at in range(start, end, PIECE):
            pieces.append(bytes(self._content[at : min(at + PIECE, end)]))
            yield
        return pieces


def _in_encoded_words(found: re.Match[bytes]) -> bytes:
    """Return what stands between special characters of a header; with octets above 127, as encoded
    words in UTF-8, or else in no charset that is known. Source: RFC 2047; RFC 1428."""
    phrase = found[0].strip(b" \t")
    if phrase.isascii():
        return found[0]
    try:
        text, charset, name = phrase.decode(), "utf-8", b"utf-8"
    except UnicodeDecodeError:
        text, charset, name = phrase.decode("latin-1"), "latin-1", b"unknown-8bit"
    pieces = (text[at : at + _WORD].encode(charset) for at in range(0, len(text), _WORD))
    words = b"\r\n ".join(b"=?%s?b?%s?=" % (name, b64encode(each)) for each in pieces)
    return found[0].replace(phrase, words)


def _fields_of(header: bytes) -> Message:
    return _PARSER.parsebytes(_SPACED_NAME.sub(rb"\1:", header))


def _is_signed(fields: Message) -> bool:
    return fields.get_content_type() in _SIGNED_TYPES or any(
        name in fields for name in _SIGNED_FIELDS
    )


def _type_of(fields: Message, default: str) -> str:
    """Return the type of an entity. Raises: _Unconvertible where programs may differ about it."""
    found = fields.get_all("content-type", ())
    if not found:
        return default
    if len(found) > 1 or not _MEDIA_TYPE.fullmatch(str(found[0]).partition(";")[0].strip()):
        raise _Unconvertible
    return fields.get_content_type()


def _with_encoding(header: bytes, fields: Message, encoding: bytes, place: _EntityPlace) -> bytes:
    """Return a header with this encoding, and with the fields of a MIME message."""
    if "content-transfer-encoding" in fields:
        field = b"Content-Transfer-Encoding: " + encoding + b"\r\n"
        header, count = _ENCODING.subn(field, header)
        if count != 1:
            raise _Unconvertible
        more = b""
    else:
        # A part without the field is in 7 bits.
        more = b"" if encoding == b"7bit" else b"Content-Transfer-Encoding: " + encoding + b"\r\n"
    if place.is_message and "mime-version" not in fields:
        more += b"MIME-Version: 1.0\r\n"
        if "content-type" not in fields:
            more += b"Content-Type: text/plain; charset=unknown-8bit\r\n"
    return header[:-2] + more + b"\r\n"


_LABELS = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")

MAX_NAME = 253
"""Characters of a name in DNS, without the final dot. Source: RFC 1035 2.3.4."""


def ascii_address(address: str) -> str:
    """Return an address with its domain in A-labels; unchanged where that cannot be done, so that
    it stays not ASCII. The local part has no ASCII form. Source: RFC 5890; RFC 6531 3.2.

    >>> ascii_address("post@bücher.example")
    'post@xn--bcher-kva.example'
    """
    if address.isascii():
        return address
    local, _, domain = address.rpartition("@")
    try:
        return f"{local}@{idna.encode(domain, uts46=True).decode()}"
    except idna.IDNAError:
        return address


def same_domain(domain: str) -> str:
    """Return what all spellings of a domain have in common: A-labels in lower case; of what has
    none, its lower case."""
    return ascii_address(f"@{domain.lower()}").removeprefix("@").lower()


def spellings(domain: str) -> frozenset[str]:
    """Return a domain in lower case as it is written here, in A-labels and in U-labels.

    >>> sorted(spellings("xn--bcher-kva.Example"))
    ['bücher.example', 'xn--bcher-kva.example']
    """
    found = {domain.lower(), same_domain(domain)}
    try:
        found.add(idna.decode(same_domain(domain)))
    except (idna.IDNAError, UnicodeError):
        pass  # an address literal, or no name
    return frozenset(found)


@lru_cache(maxsize=4096)
def ascii_domain(domain: str) -> str:
    """Return a domain as DNS has it: A-labels in lower case, without a final dot. What is ASCII
    already is not decoded: DNS knows whether it is there. Raises: InvalidInput.
    Source: RFC 5891 5; RFC 1035 2.3.1, 2.3.4 (underscores and hyphens anywhere are let through).

    >>> ascii_domain("BÜCHER.Example.")
    'xn--bcher-kva.example'
    """
    name = domain.lower()
    if not name.isascii():
        try:
            name = idna.encode(name, uts46=True).decode()
        except idna.IDNAError as error:
            raise InvalidInput(f"{domain} is no domain name: {error}") from error
    name = name.removesuffix(".")
    if len(name) > MAX_NAME or not _LABELS.fullmatch(name):
        raise InvalidInput(f"{domain} is no domain name")
    return name


_FORM = re.compile(r"(?:[!-*,-<>-~]|\+[0-9A-Fa-f]{2})*")
_ESCAPE = re.compile(r"\+([0-9A-Fa-f]{2})")


def encode_xtext(text: str) -> str:
    """Encode printable ASCII and spaces.

    Raises: InvalidInput for anything else, which no DSN parameter may hold.

    >>> encode_xtext("a+b=c d")
    'a+2Bb+3Dc+20d'
    """
    if any(not 32 <= ord(char) <= 126 for char in text):
        raise InvalidInput("a DSN parameter holds a character that is not printable ASCII")
    return "".join(char if char not in "+= " else f"+{ord(char):02X}" for char in text)


def decode_xtext(xtext: str) -> str:
    """Decode; also lower-case digits, which some clients write against RFC 3461. Raises:
    InvalidInput for what is not xtext, or hides a control character in it.

    >>> decode_xtext("a+2Bb+2bc")
    'a+b+c'
    """
    if not _FORM.fullmatch(xtext):
        raise InvalidInput("a DSN parameter is not xtext")
    text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), xtext)
    if any(not 32 <= ord(char) <= 126 for char in text):
        raise InvalidInput("a DSN parameter holds a character that is not printable ASCII")
    return text


def encode_address(address: str) -> str:
    """Encode an address in UTF-8 as a field of a report in ASCII has it (`utf-8-addr-xtext`).

    >>> encode_address("jörg+x@example.net")
    'j\\\\x{F6}rg\\\\x{2B}x@example.net'
    """
    return "".join(
        char if "!" <= char <= "~" and char not in "+=\\" else f"\\x{{{ord(char):02X}}}"
        for char in address
    )
