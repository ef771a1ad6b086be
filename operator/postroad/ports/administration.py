"""Operations of an administrator on selected mails: each operation as a value, and as a method.

An operation is one row here, what it does to one mail in each engine, and a method below; the
socket and the commands read the rows.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from postroad.domain.queues.selection import Selector


class Operation(StrEnum):
    """An operation on selected mails. Its value is its name on the socket and as a command."""

    past: str
    """Operation on the mails that were counted."""

    text: str
    """Text that a command's help shows."""

    of_dead_letters: bool
    """True if dead letters are selected; else the mails that wait, delayed, held and leased ones
    included."""

    def __new__(
        cls, name: str, past: str = "", text: str = "", of_dead_letters: bool = False
    ) -> Operation:
        made = str.__new__(cls, name)
        made._value_ = name
        made.past, made.text, made.of_dead_letters = past, text, of_dead_letters
        return made

    REMOVE = (
        "remove",
        "removed",
        "Remove the selected mails for ever. Dead letters are not touched.",
    )
    FLUSH = "flush", "flushed", "Make the selected delayed mails due now."
    HOLD = "hold", "held", "Keep the selected mails back until they are released."
    RELEASE = "release", "released", "Let the selected held mails go on."
    REQUEUE = "requeue", "requeued", "Give the selected dead letters a new entry.", True
    EXPIRE = "expire", "expired", "Give the selected waiting mails up: they become dead letters."
    DISCARD = (
        "discard",
        "discarded",
        "End the selected dead letters for ever; their bytes are deleted.",
        True,
    )


EXPIRED = "expired by an administrator"
"""The reason of a dead letter that `expire` made."""


class Administration(Protocol):
    """The operations on selected mails, as methods: a queue inherits them and has `change`."""

    async def change(self, operation: Operation, selector: Selector) -> int:
        """Do an operation to the selected mails; return how many it changed. Durable when it
        returns. Raises: InvalidInput for an empty selector, ServerError, StoreFailed,
        StoreDamaged."""

    async def remove(self, selector: Selector) -> int:
        """Remove mails; they are never delivered again, their bytes are deleted. An item that a
        consumer holds right now may still be delivered."""
        return await self.change(Operation.REMOVE, selector)

    async def flush(self, selector: Selector) -> int:
        """Make delayed mails due now."""
        return await self.change(Operation.FLUSH, selector)

    async def hold(self, selector: Selector) -> int:
        """Keep mails back until they are released."""
        return await self.change(Operation.HOLD, selector)

    async def release(self, selector: Selector) -> int:
        """Let held mails go on; a delay that is not over yet stays."""
        return await self.change(Operation.RELEASE, selector)

    async def expire(self, selector: Selector) -> int:
        """Give waiting mails up: each becomes a dead letter with the reason `EXPIRED`, for the
        recipients who did not get it. Dead letters are not touched. A mail that a consumer holds
        right now may still be delivered: it is no dead letter then."""
        return await self.change(Operation.EXPIRE, selector)

    async def requeue(self, selector: Selector) -> int:
        """Give dead letters a new entry for their recipients, failed ones included; due at once,
        attempts kept."""
        return await self.change(Operation.REQUEUE, selector)

    async def discard(self, selector: Selector) -> int:
        """End dead letters for good: they are never delivered, their bytes are deleted."""
        return await self.change(Operation.DISCARD, selector)
