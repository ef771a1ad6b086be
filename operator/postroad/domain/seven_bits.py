"""Mail in 8 bits, converted for a next hop that takes 7: quoted-printable or base64, part by part.

Only parts with octets above 127 are changed, and of their headers only the encoding: everything
else stays as it is, octet for octet. What cannot be converted without a guess, or without breaking
a signature, is not converted.
Pure. Source: RFC 6152 3; RFC 2045 6; RFC 2046 5; RFC 1428; ADR 0027.
"""

from __future__ import annotations

import re
from base64 import encodebytes
from binascii import b2a_qp
from dataclasses import dataclass, replace
from email.message import Message
from email.parser import BytesHeaderParser

from postroad.domain.shapes import has_bare_line_ends, with_crlf

DEEPEST = 10
"""Multiparts and messages within each other. Each level is one search over what it holds, so this
bounds the work too."""

MOST_PARTS = 1000
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
_IDENTITIES = frozenset(("7bit", "8bit", "binary"))
_BLANK_LINE = b"\r\n\r\n"
_ENCODING = re.compile(rb"^content-transfer-encoding[ \t]*:(?:[^\r\n]|\r\n[ \t])*\r\n", re.I | re.M)
_HEADER = re.compile(rb"(?:[!-9;-~]+[ \t]*:[^\r\n]*\r\n(?:[ \t][^\r\n]*\r\n)*)*\r\n")
_SPACED_NAME = re.compile(rb"^([!-9;-~]+)[ \t]+:", re.M)
"""A field with blanks before its colon (RFC 5322 4.5.8), at which the parser would end the header:
it would see neither types nor signatures behind it."""

_MEDIA_TYPE = re.compile(r"text|[^\s()/]+/[^\s()/]+", re.I)
"""Comments and blanks within a type are read differently by different programs."""

_PARSER = BytesHeaderParser()


class _Unconvertible(Exception):
    """This mail cannot be converted."""


def is_signed(header: bytes) -> bool:
    """Return whether a mail with this header is signed or encrypted, so that it must not be
    changed."""
    return _is_signed(_fields_of(header))


def in_seven_bits(content: bytes) -> bytes | None:
    """Return a mail in 7 bits, with lines of at most 998 octets where it was converted; None when
    it cannot be converted."""
    mail = with_crlf(content) if has_bare_line_ends(content) else content
    try:
        return _Conversion().entity(mail, _Place("text/plain", (), 0, is_message=True))
    except _Unconvertible:
        return None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an entity stands: its type if it says none, and the delimiters that are around it."""

    default_type: str
    delimiters: tuple[bytes, ...]
    depth: int
    is_message: bool = False

    def inner(self, default_type: str, *delimiters: bytes, is_message: bool = False) -> _Place:
        if self.depth == DEEPEST:
            raise _Unconvertible
        delimiters = (*self.delimiters, *delimiters)
        return replace(
            self, default_type=default_type, delimiters=delimiters, depth=self.depth + 1,
            is_message=is_message,
        )  # fmt: skip


class _Conversion:
    def __init__(self) -> None:
        self._parts = 0

    def entity(self, data: bytes, place: _Place) -> bytes:
        """Return a message or a part in 7 bits. Raises: _Unconvertible."""
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise _Unconvertible
        if data.isascii():
            return data
        header, body = _divided(data)
        fields = _fields_of(header)
        if not header.isascii() or _is_signed(fields):
            raise _Unconvertible
        media_type = _type_of(fields, place.default_type)
        if len(fields.get_all("content-transfer-encoding", ())) > 1:
            raise _Unconvertible
        if str(fields.get("content-transfer-encoding", "7bit")).strip().lower() not in _IDENTITIES:
            raise _Unconvertible  # octets above 127 in what is said to be encoded
        if media_type.startswith("multipart/"):
            encoding, body = b"7bit", self._multipart(fields, media_type, body, place)
        elif media_type == "message/rfc822":
            inner = place.inner("text/plain", is_message=True)
            encoding, body = b"7bit", self.entity(body, inner)
        elif media_type.startswith("message/"):
            raise _Unconvertible  # no other may be encoded (RFC 2046 5.2)
        else:
            encoding, body = _encoded(body, media_type, place)
        return _with_encoding(header, fields, encoding, place) + body

    def _multipart(self, fields: Message, media_type: str, body: bytes, place: _Place) -> bytes:
        boundary = fields.get_boundary()
        if not boundary or not boundary.isascii() or len(boundary) > 70:
            raise _Unconvertible
        delimiter = b"--" + boundary.encode()
        default = "message/rfc822" if media_type == "multipart/digest" else "text/plain"
        inner = place.inner(default, delimiter)
        line = re.compile(rb"(?:^|\r\n)" + re.escape(delimiter) + rb"(--)?[ \t]*(?=\r\n|\Z)")
        result: list[bytes] = []
        begun: int | None = None
        """Where the part began that is being looked for the end of; None in the preamble."""
        at = 0
        while (found := line.search(body, at)) is not None:
            # An empty part has no line break of its own: the delimiter before it took it.
            end = max(begun or 0, found.start())
            piece = self._piece(body[begun or 0 : end], inner, is_part=begun is not None)
            result += (piece, body[end : found.end()])
            at = found.end()
            if found.group(1):
                begun = None
                break
            if body.startswith(b"\r\n", at):
                result.append(b"\r\n")
            # The line break behind a delimiter may be the one before the next.
            begun = min(at + 2, len(body))
        rest = body[at if begun is None else begun :]
        return b"".join((*result, self._piece(rest, inner, is_part=begun is not None)))

    def _piece(self, piece: bytes, place: _Place, *, is_part: bool) -> bytes:
        if is_part:
            return self.entity(piece, place)
        if not piece.isascii():
            raise _Unconvertible  # a preamble or an epilogue has no encoding
        return piece


def _divided(data: bytes) -> tuple[bytes, bytes]:
    """Return header, with the blank line, and body."""
    if data.startswith(b"\r\n"):
        return data[:2], data[2:]
    end = data.find(_BLANK_LINE)
    if end < 0 or not _HEADER.fullmatch(data, 0, end + 4):
        raise _Unconvertible
    return data[: end + 4], data[end + 4 :]


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


def _encoded(body: bytes, media_type: str, place: _Place) -> tuple[bytes, bytes]:
    """Return the encoding of a leaf, and its body in it."""
    if media_type.startswith("text/"):
        quoted = with_crlf(b2a_qp(body, istext=True))
        # A line that was broken may begin as a delimiter does; base64 has no "-".
        if not any(delimiter in quoted for delimiter in place.delimiters):
            return b"quoted-printable", quoted
    lines = encodebytes(body).replace(b"\n", b"\r\n")
    # The line break before a delimiter belongs to the delimiter.
    return b"base64", lines.removesuffix(b"\r\n") if place.delimiters else lines


def _with_encoding(header: bytes, fields: Message, encoding: bytes, place: _Place) -> bytes:
    """Return a header that says this encoding, and that the message is a MIME one."""
    if "content-transfer-encoding" in fields:
        field = b"Content-Transfer-Encoding: " + encoding + b"\r\n"
        header, count = _ENCODING.subn(field, header)
        if count != 1:
            raise _Unconvertible
        more = b""
    else:
        # What says nothing is in 7 bits.
        more = b"" if encoding == b"7bit" else b"Content-Transfer-Encoding: " + encoding + b"\r\n"
    if place.is_message and "mime-version" not in fields:
        more += b"MIME-Version: 1.0\r\n"
        if "content-type" not in fields:
            more += b"Content-Type: text/plain; charset=unknown-8bit\r\n"
    return header[:-2] + more + b"\r\n"
