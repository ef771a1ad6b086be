"""Addresses that are not mailed: how they are compared, kept and written. Pure.

Source: ADR 0068; ADR 0079."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Any

from postroad.domain.delivery.attempts import checked_reason, reason_of
from postroad.domain.mail.mail import Outcome, check_address, check_mailbox
from postroad.domain.mail.seven_bits import ascii_domain
from postroad.domain.smtp.bounces import Bounce, BounceClass
from postroad.domain.values.instants import rfc3339
from postroad.domain.values.text import is_same_mailbox
from postroad.errors import InvalidInput, InvalidMail

HASH = "sha256:"
"""Stands before the token of an address that is not kept."""

_TOKEN = re.compile(rf"{HASH}([0-9a-f]{{64}})")


class SuppressedBy(StrEnum):
    """Cause that put an address on the list. The values are stored."""

    ADMINISTRATOR = "administrator"
    BOUNCE = "bounce"
    COMPLAINT = "complaint"

    @classmethod
    def known(cls, value: str | None) -> SuppressedBy:
        """Return what a stored value names; `ADMINISTRATOR`, who can take any address off, for one
        of a later release."""
        return next((each for each in cls if each == value), cls.ADMINISTRATOR)


@dataclass(frozen=True, slots=True)
class SuppressionRules:
    """Rules by which of a list workers decide: which classes of refusals put an address on it,
    whether the token alone is kept of that, how many refusals do, at which distance of each
    other, and for how long. A large site once refused valid addresses as unknown on two days on
    end (ADR 0079)."""

    bounces: frozenset[BounceClass] = frozenset()
    is_hashed: bool = False
    after: int = 2
    apart: timedelta = timedelta(hours=48)
    lifetime: timedelta = timedelta(days=90)


NOT_MAILED = "550 5.7.1 not mailed, on the suppression list"
"""Beginning of the outcome of a recipient on the list."""


@dataclass(frozen=True, slots=True)
class SuppressedAddress:
    """One entry of a list. `token`: the SHA-256 of the address as it is compared; `address`: None
    where it is not kept. `added_at`: also when the last refusal was counted; `count`: how many
    were. `is_pending`: it is mailed yet, as more refusals are needed. `expires_at`: None for
    never."""

    token: bytes
    address: str | None
    reason: str
    by: SuppressedBy
    added_at: datetime
    count: int = 0
    is_pending: bool = False
    expires_at: datetime | None = None

    @property
    def name(self) -> str:
        """The address, or what stands for it."""
        return self.address or f"{HASH}{self.token.hex()}"

    def holds(self, now: datetime) -> bool:
        """Return whether the address is not mailed."""
        return not self.is_pending and not self.is_over(now)

    def is_over(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def outcome(self) -> Outcome:
        """Return what becomes of a recipient. Source: RFC 3463 3.8 (5.7.1)."""
        return Outcome.failed(f"{NOT_MAILED}: {self.reason}")

    def printed(self) -> Mapping[str, Any]:
        """Return the entry as JSON has it; what it has not has no key."""
        printed = {
            "address": self.name,
            "reason": self.reason,
            "by": self.by,
            "added_at": rfc3339(self.added_at),
            "count": self.count,
            "pending": self.is_pending,
            "expires_at": rfc3339(self.expires_at),
        }
        return {name: value for name, value in printed.items() if value}


def strongest(entries: Iterable[SuppressedAddress]) -> dict[bytes, SuppressedAddress]:
    """Return one entry for each token: the one that holds, and for longest. An administrator's and
    one by refusals are kept beside each other, so that neither undoes the other."""
    found = dict[bytes, SuppressedAddress]()
    for each in sorted(entries, key=_strength):
        found[each.token] = each
    return found


def _strength(entry: SuppressedAddress) -> tuple[object, ...]:
    until = entry.expires_at or datetime.max.replace(tzinfo=UTC)
    return (not entry.is_pending, until, entry.by is SuppressedBy.ADMINISTRATOR)


def learnt(
    known: SuppressedAddress | None,
    recipient: str,
    bounce: Bounce,
    rules: SuppressionRules,
    now: datetime,
) -> SuppressedAddress | None:
    """Return the entry after a refusal by the recipient's server; None: what is known stays, also
    where the refusal may be about another mailbox than the one that is compared."""
    if not is_same_mailbox(recipient, compared(recipient)):
        return None
    made = suppressed(
        recipient, reason_of(bounce), SuppressedBy.BOUNCE, now, is_hashed=rules.is_hashed
    )
    count = 1
    if known is not None and not known.is_over(now):
        is_soon = now - known.added_at < rules.apart and known.count < rules.after
        if is_soon or not known.is_pending:
            return None
        count += known.count
    pending = count < rules.after
    return replace(made, count=count, is_pending=pending, expires_at=now + rules.lifetime)


def compared(address: str) -> str:
    """Return what is compared of an address: without regard to case, since hardly a server tells
    `A@` from `a@`, and who asked for no mail did not ask for half of it. Raises: InvalidInput.

    >>> compared('"Ann"@BÜCHER.example')
    'ann@xn--bcher-kva.example'
    """
    try:
        check_address(address)
    except InvalidMail as error:
        raise InvalidInput(f"{address[:100]!r} cannot be suppressed: {error}") from error
    local, _, domain = address.rpartition("@")
    if not local:
        raise InvalidInput(f"{address!r} has no domain")
    if local[0] == local[-1] == '"' and len(local) > 1:
        local = re.sub(r"\\(.)", r"\1", local[1:-1])  # RFC 5321 4.1.2: the same mailbox
    if not domain.startswith("["):
        domain = ascii_domain(domain)
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", local).casefold())
    return f"{folded}@{domain.lower()}"


def token_of(address: str) -> bytes:
    """Return the token of an address, or the one that is written in its place.
    Raises: InvalidInput."""
    written = _TOKEN.fullmatch(address)
    if written is not None:
        return bytes.fromhex(written[1])
    return sha256(compared(address).encode()).digest()


def suppressed(
    address: str, reason: str, by: SuppressedBy, at: datetime, *, is_hashed: bool = False
) -> SuppressedAddress:
    """Return the entry for an address, or for a token in its place. Raises: InvalidInput."""
    is_kept = not is_hashed and _TOKEN.fullmatch(address) is None
    return SuppressedAddress(token_of(address), address if is_kept else None, reason, by, at)


def by_administrator(
    address: str, reason: str, at: datetime, *, is_hashed: bool, until: datetime | None = None
) -> SuppressedAddress:
    """Return the entry for what an administrator wrote: a token, or an address that mail may be
    enqueued for, since any other is one by mistake. Raises: InvalidInput."""
    if _TOKEN.fullmatch(address) is None:
        try:
            check_mailbox(address)
        except InvalidMail as error:
            raise InvalidInput(f"{address[:100]!r} cannot be suppressed: {error}") from error
    made = suppressed(address, reason, SuppressedBy.ADMINISTRATOR, at, is_hashed=is_hashed)
    return replace(made, expires_at=until)


def read_line(line: str, reason: str, at: datetime, *, is_hashed: bool) -> SuppressedAddress | None:
    """Read a line of a file: an address, a token, or an entry as JSON; None for an empty one and a
    comment (`#`). Raises: InvalidInput."""
    text = line.strip().removeprefix("\ufeff")  # as files of Windows begin
    if not text or text.startswith("#"):
        return None
    if not text.startswith("{"):
        if "\ufffd" in text:
            raise InvalidInput("it is not written in UTF-8")
        return by_administrator(text, reason, at, is_hashed=is_hashed)
    try:
        found = json.loads(text)
        address, kept = str(found["address"]), checked_reason(str(found.get("reason", reason)))
        by = SuppressedBy.known(found.get("by"))
        added = found.get("added_at")
        when = at if added is None else datetime.fromisoformat(added).astimezone(UTC)
        expires = found.get("expires_at")
        until = None if expires is None else datetime.fromisoformat(expires).astimezone(UTC)
        count, is_pending = int(found.get("count", 0)), found.get("pending", False) is True
    except (
        ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError
    ) as error:  # fmt: skip
        raise InvalidInput('this is neither an address nor {"address": …, "reason": …}') from error
    made = suppressed(address, kept, by, when, is_hashed=is_hashed)
    return replace(made, count=count, is_pending=is_pending, expires_at=until)
