"""Questions to DNS and their answers, as routing reads them.

Names are absolute, in A-labels, in lower case, without the final dot; the root is the empty name.
Source: RFC 1034 3.1; RFC 5891 4.4.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")

DNS_PORT = 53

NOT_KEPT = timedelta(0)
"""The time to live of an answer that is used once."""


class RecordType(StrEnum):
    """What a question asks for."""

    MX = "MX"
    A = "A"
    AAAA = "AAAA"


@dataclass(frozen=True, slots=True)
class Question:
    """One name and one type of record."""

    name: str
    type: RecordType

    def __str__(self) -> str:
        return f"{self.name} {self.type}"


class AnswerKind(StrEnum):
    """What an answer says. NO_NAME: the name does not exist (NXDOMAIN). NO_DATA: it has no record
    of this type. UNAVAILABLE: nothing is known, because no server gave a usable answer.
    Source: RFC 2308 1, 2; RFC 8020 for names below."""

    RECORDS = "records"
    NO_NAME = "no such name"
    NO_DATA = "no such record"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class MxRecord:
    """One MX record; the lower preference is tried first. `host` is empty in a null MX.
    Source: RFC 5321 5.1; RFC 7505 3."""

    preference: int
    host: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known about a question, and for how long (`ttl`, from now)."""

    kind: AnswerKind
    ttl: timedelta
    exchanges: tuple[MxRecord, ...] = ()
    addresses: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    """The names that CNAME records led to, in order."""

    reason: str = ""
    """Why no server gave a usable answer."""

    @property
    def is_unavailable(self) -> bool:
        """Whether a later answer may be another one, so that no mail fails by this one."""
        return self.kind is AnswerKind.UNAVAILABLE


Asking = Generator[tuple[Question, ...], tuple[Answer, ...], T]
"""A computation that yields questions, gets their answers in the same order, and returns."""
