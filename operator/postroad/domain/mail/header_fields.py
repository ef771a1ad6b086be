"""The fields of a header, as they stand in it; a message of Python's as octets."""

import re
from collections.abc import Iterable
from copy import copy
from io import BytesIO
from typing import Any, NamedTuple

from postroad.errors import InvalidMail

_FIELD = re.compile(rb"([!-9;-~]+)[ \t]*:")
_FOLDED = re.compile(rb"\r\n(?![ \t])")
_MESSAGE_ID = re.compile(rb"^message-id:[ \t\r\n]*(<[!-~]{1,250}>)[ \t\r]*$", re.I | re.M)

MAX_SEARCHED = 64 * 1024
"""Octets of a mail in which its Message-ID is looked for."""


class HeaderField(NamedTuple):
    """One field, without the CRLF at its end. `name` is in lower case."""

    name: str
    octets: bytes

    @property
    def value(self) -> str:
        """Text that stands behind the colon, unfolded."""
        value = self.octets.partition(b":")[2].replace(b"\r\n", b"")
        return value.decode("utf-8", "replace").strip()


def message_id_of(content: bytes) -> str | None:
    """Return the Message-ID of a mail, with its angle brackets, from its first octets; None: it has
    none in a form that RFC 5322 allows.

    >>> message_id_of(b"Subject: x\\r\\nMessage-ID:\\r\\n <1@a.example>\\r\\n\\r\\n")
    '<1@a.example>'
    """
    start = content[:MAX_SEARCHED]
    end = start.find(b"\r\n\r\n")
    found = _MESSAGE_ID.search(start, 0, len(start) if end < 0 else end + 2)
    return found[1].decode() if found else None


def fields_of(header: bytes) -> list[HeaderField]:
    """Return the fields of a header with CRLF at the end of each line, from the top; the blank line
    behind them may be there. Raises: InvalidMail for a line that belongs to no field, at which
    servers differ about where the header ends."""
    found = []
    for octets in _FOLDED.split(header):
        if octets:
            name = _FIELD.match(octets)
            if name is None:
                raise InvalidMail("a line of the header belongs to no field")
            found.append(HeaderField(name[1].decode().lower(), octets))
    return found


def octets_of(message: object, addresses: Iterable[str]) -> bytes | None:
    """Return an `EmailMessage` as SMTP sends it from and to these addresses: with CRLF, without
    Bcc, in UTF-8 where one of them needs it; None: it is none. Raises: InvalidMail for one that
    cannot be written."""
    from email.generator import BytesGenerator  # 10 ms, for those who hand one over
    from email.message import Message

    if not isinstance(message, Message):
        return None
    sent, written = copy(message), BytesIO()
    del sent["Bcc"], sent["Resent-Bcc"]
    needed: dict[str, Any] = {} if "".join(addresses).isascii() else {"utf8": True}
    try:
        policy = message.policy.clone(**needed)
        BytesGenerator(written, policy=policy).flatten(sent, linesep="\r\n")
    except Exception as error:  # whatever a payload of a wrong type meets
        raise InvalidMail(f"content: the message cannot be written: {error}") from error
    return written.getvalue()
