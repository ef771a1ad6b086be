"""The mails that are sent through each peer, and the comparison with the mails that arrive."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

LIMIT_BYTES = 11 * 2**20
"""The largest mail that the receiving side accepts."""

SAME = "same octets"
MOVED = "moves fields"
WHOLE = SAME, MOVED
"""Cells of mail whose fields and body are those that were sent."""

TRACE = frozenset(("received", "return-path", "delivered-to"))
REFUSED = "refused@dest.example"


@dataclass(frozen=True)
class Case:
    """Mails that differ only in their Message-ID."""

    name: str
    body: bytes = b"Hello,\r\n\r\nthis is a letter.\r\n"
    sender: str | None = "sender@origin.example"
    recipients: tuple[str, ...] = ("recipient@dest.example",)
    fields: tuple[str, ...] = ()
    mails: int = 1
    tls: bool = False

    def content(self, number: int = 0) -> bytes:
        """Return one of its mails."""
        header = (
            f"From: <{self.sender or 'mailer-daemon@origin.example'}>",
            "To: undisclosed-recipients:;",
            "Date: Sat, 21 Nov 2026 12:00:00 +0000",
            f"Message-ID: <{self.token(number)}>",
            "Subject: a letter",
            "MIME-Version: 1.0",
            *self.fields,
            "",
            "",
        )
        return "\r\n".join(header).encode() + self.body

    def token(self, number: int = 0) -> str:
        """Return the text of this mail that no other mail has."""
        return f"{re.sub('[^a-z0-9]+', '-', self.name.lower())}.{number}@origin.example"

    @property
    def is_utf8(self) -> bool:
        """Whether an address needs SMTPUTF8."""
        return not "".join((self.sender or "", *self.recipients)).isascii()


EIGHT_BIT = "Content-Type: text/plain; charset=utf-8", "Content-Transfer-Encoding: 8bit"
LINE = b"0123456789 abcdefghijklmnopqrstuvwxyz 0123456789 abcdefghijklmnopqrstuvwxyz\r\n"


def _large(size: int) -> bytes:
    return LINE * (size // len(LINE))


PLAIN = Case("plain, 7-bit")
EIGHT = Case("8-bit", "Grüße — à bientôt\r\n".encode(), fields=EIGHT_BIT)
UTF8 = Case("SMTPUTF8 address", recipients=("postbüro@dest.example",))
IDN = Case("IDN domain", recipients=("recipient@bücher.example",))
DOTS = Case("lines of dots", b".\r\n..\r\n.hidden\r\n\r\n...\r\na.\r\n.\r\n")
LONG = Case("a line of 998 octets", b"x" * 998 + b"\r\n." + b"y" * 997 + b"\r\n")
LARGE = Case("10 MB", _large(10_000_000))
TOO_LARGE = Case("larger than SIZE", _large(LIMIT_BYTES + 500_000))
NULL = Case("null sender", sender=None)
MANY = Case(
    "1,000 recipients", recipients=tuple(f"user{number}@dest.example" for number in range(1000))
)
ONE_REFUSED = Case(
    "one of three refused", recipients=("first@dest.example", REFUSED, "third@dest.example")
)
SECURED = Case("STARTTLS", tls=True)
PIPELINED = Case("pipelining")
REUSED = Case("five mails", mails=5)

CASES = (
    *(PLAIN, EIGHT, UTF8, IDN, DOTS, LONG, LARGE, TOO_LARGE, NULL, MANY, ONE_REFUSED),
    *(SECURED, PIPELINED, REUSED),
)


def in_a_labels(recipient: str) -> str:
    """Return an address with its domain as DNS has it: both forms are one domain."""
    local, _, domain = recipient.rpartition("@")
    return f"{local}@{domain.encode('idna').decode()}"


@dataclass(frozen=True)
class Arrival:
    """A mail that came out at the other end."""

    recipients: tuple[str, ...]
    content: bytes


def compared(case: Case, wanted: Iterable[str], arrivals: Iterable[Arrival]) -> str:
    """Return `same octets` when each of the wanted recipients got each mail once and unchanged
    behind trace fields; else what differs."""
    expected = {in_a_labels(each) for each in wanted}
    found: Mapping[int, Counter[str]] = {number: Counter() for number in range(case.mails)}
    differences: set[str] = set()
    for arrival in arrivals:
        for number, got in found.items():
            if case.token(number).encode() in arrival.content:
                got.update(map(in_a_labels, arrival.recipients))
                differences |= _differences(case.content(number), arrival.content)
    for got in found.values():
        if missing := expected - set(got):
            differences.add(f"{len(missing)} LOST")
        if more := set(got) - expected:
            differences.add(f"{len(more)} NOT WANTED")
        if repeated := [each for each, count in got.items() if count > 1]:
            differences.add(f"{len(repeated)} TWICE")
    return "; ".join(sorted(differences)) or SAME


def shown(case: Case, parts: Iterable[str]) -> str:
    """Return a cell of the table; pytest shows those of a test that failed."""
    cell = ", ".join(parts)
    print(f"{case.name}: {cell}", flush=True)
    return cell


def _differences(sent: bytes, arrived: bytes) -> set[str]:
    if arrived.endswith(sent):
        added = _names(arrived[: len(arrived) - len(sent)]) - TRACE
        return {f"adds {', '.join(sorted(added))}"} if added else set()
    header, _, body = arrived.partition(b"\r\n\r\n")
    sent_header, _, sent_body = sent.partition(b"\r\n\r\n")
    found = set()
    if body != sent_body:
        is_folded = body.replace(b"\r\n ", b"") == sent_body
        found.add("folds long lines" if is_folded else "CHANGES THE BODY")
    lines, sent_lines = _fields(header), _fields(sent_header)
    if lost := [each for each in sent_lines if each not in lines]:
        found.add(f"changes {', '.join(sorted(_names(b''.join(lost))))}")
    added = _names(b"".join(each for each in lines if each not in sent_lines)) - TRACE
    if added:
        found.add(f"adds {', '.join(sorted(added))}")
    return found or {MOVED}


def _fields(header: bytes) -> list[bytes]:
    return [each + b"\r\n" for each in re.split(rb"\r\n(?![ \t])", header) if each]


def _names(header: bytes) -> set[str]:
    return {
        each.partition(b":")[0].decode(errors="replace").lower() for each in _fields(header) if each
    }
