"""MTA-STS: the policy by which a domain requires TLS of those who send to it.

Source: RFC 8461.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from postroad.errors import InvalidInput

LONGEST_AGE = timedelta(seconds=31_557_600)
"""Source: RFC 8461 3.2."""

SHORTEST_AGE = timedelta(minutes=5)
"""A policy holds at least so long, else a domain could have itself asked for every mail. Source:
RFC 8461 3.3."""

REFRESH = timedelta(days=1)
"""How old a policy gets before it is fetched again, though its record has not changed, so that it
does not end while it is in use. Source: RFC 8461 3.3."""

_RECORD = re.compile(
    r"v=STSv1[ \t]*;[ \t]*id=([A-Za-z0-9]{1,32})[ \t]*"
    r"(?:;[ \t]*[A-Za-z0-9][\w.-]{0,31}=[^;=]*)*;?[ \t]*"
)
_PATTERN = re.compile(r"(?:\*\.)?(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}\.?")
_FIELD = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,31})[ \t]*:[ \t]*(.*?)[ \t]*")


class StsMode(StrEnum):
    """What a policy has its senders do. `testing`: nothing but reports, which are not sent yet."""

    ENFORCE = "enforce"
    TESTING = "testing"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class StsPolicy:
    """A policy, without its time."""

    mode: StsMode
    exchangers: tuple[str, ...]
    """Hosts, and `*.` with a domain, for one label before it."""

    max_age: timedelta

    @classmethod
    def parse(cls, text: str) -> StsPolicy:
        """Read the file of a policy. Of a field that stands twice the first one counts, except
        `mx`. Raises: InvalidInput. Source: RFC 8461 3.2."""
        fields: dict[str, str] = {}
        exchangers: list[str] = []
        for line in text.replace("\r\n", "\n").split("\n"):
            if not line.strip():
                continue
            found = _FIELD.fullmatch(line)
            if found is None:
                raise InvalidInput("a line of the policy is no field")
            name, value = found[1], found[2]
            if name == "mx":
                exchangers.append(_pattern(value))
            else:
                fields.setdefault(name, value)
        if fields.get("version") != "STSv1":
            raise InvalidInput("the policy has no version STSv1")
        mode = _mode(fields)
        if mode is not StsMode.NONE and not exchangers:
            raise InvalidInput("the policy names no mx")
        return cls(mode, tuple(exchangers), _age(fields))

    def permits(self, host: str) -> bool:
        """Whether a host may get the domain's mail. Source: RFC 8461 4.1."""
        _, _, parent = host.partition(".")
        return host in self.exchangers or f"*.{parent}" in self.exchangers


@dataclass(frozen=True, slots=True)
class KeptPolicy:
    """A policy that was fetched: the id of its record at that time, and when that was."""

    id: str
    policy: StsPolicy
    fetched_at: datetime

    def is_over(self, now: datetime) -> bool:
        """Whether it counts no more; also where it comes from the future, by a clock that was
        wrong."""
        return not (self.fetched_at - REFRESH <= now < self.fetched_at + self.policy.max_age)

    def is_to_be_fetched(self, record: str | None, now: datetime) -> bool:
        """Whether a newer one is to be looked for. `record`: the id in DNS now, if there is one."""
        age = now - self.fetched_at
        is_old = age >= min(REFRESH, self.policy.max_age / 2)
        return record is not None and (record != self.id or is_old)


@dataclass(frozen=True, slots=True)
class DomainPolicy:
    """What is known of a domain: the policy that holds for its mail, if any, and why."""

    policy: StsPolicy | None
    words: str


def record_id(texts: Iterable[str]) -> str | None:
    """Return the id of the record among the texts of `_mta-sts`; None where there is none, more
    than one, or a malformed one, so that no policy is looked for. Source: RFC 8461 3.1.

    >>> record_id(["v=STSv1; id=20160831085700Z;", "v=spf1 -all"])
    '20160831085700Z'
    """
    records = [each for each in texts if each.startswith("v=STSv1;")]
    if len(records) != 1:
        return None
    found = _RECORD.fullmatch(records[0])
    return None if found is None else found[1]


def _pattern(text: str) -> str:
    name = text.lower()
    if not _PATTERN.fullmatch(name):
        raise InvalidInput("an mx of the policy is no name of a host")
    return name.removesuffix(".")


def _mode(fields: Mapping[str, str]) -> StsMode:
    try:
        return StsMode(fields.get("mode", ""))
    except ValueError:
        raise InvalidInput("the policy has no known mode") from None


def _age(fields: Mapping[str, str]) -> timedelta:
    text = fields.get("max_age", "")
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise InvalidInput("the policy has no max_age")
    return max(SHORTEST_AGE, min(timedelta(seconds=int(text)), LONGEST_AGE))
