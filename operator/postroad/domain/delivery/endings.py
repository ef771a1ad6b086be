"""Endings of an item: the four values, and the four methods that end an item by one of them."""

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Protocol

from postroad.domain.delivery.attempts import AttemptOutcomes


@dataclass(frozen=True, slots=True)
class Done:
    """Every recipient has the mail."""

    name: ClassVar = "done"


@dataclass(frozen=True, slots=True)
class RetryItem:
    """Some recipients are to be tried again; `remaining` None: all who are left."""

    name: ClassVar = "retry"
    delay: timedelta
    remaining: tuple[str, ...] | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class DeferItem:
    """Those who are left were not attempted; `remaining` None: all who are left."""

    name: ClassVar = "defer"
    delay: timedelta
    remaining: tuple[str, ...] | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """No recipient is left to be tried, and some did not get the mail."""

    name: ClassVar = "reject"
    reason: str


ItemEnding = Done | RetryItem | DeferItem | Reject
DONE = Done()


class Endings(Protocol):
    """The endings of an item, each by `end`, which is an engine's."""

    async def end(self, ending: ItemEnding, outcomes: AttemptOutcomes | None = None) -> None:
        """End the item as the method that the ending is named after. Raises: InvalidInput, for a
        delay or a reason that is none; the item is as before."""

    async def done(self, outcomes: AttemptOutcomes | None = None) -> None:
        """End the mail for all recipients not yet recorded. Durable when it returns. The content is
        deleted; the mail never comes again."""
        await self.end(DONE, outcomes)

    async def retry(
        self,
        delay: timedelta,
        remaining: tuple[str, ...] | None = None,
        error: str | None = None,
        outcomes: AttemptOutcomes | None = None,
    ) -> None:
        """Give the mail another entry after `delay`, for `remaining` (default: all not recorded as
        delivered or failed). With no recipient remaining this is `done`.
        Raises: InvalidInput when one of `remaining` is not among those; the item is as before.

        That the mail waits, and for whom, is durable when it returns. The embedded engine may
        forget the delay in a crash within seconds (FORMAT.md 8): the mail is then due at once."""
        await self.end(RetryItem(delay, remaining, error), outcomes)

    async def defer(
        self,
        delay: timedelta,
        remaining: tuple[str, ...] | None = None,
        reason: str | None = None,
        outcomes: AttemptOutcomes | None = None,
    ) -> None:
        """As `retry`, but no attempt is counted: for recipients to whom nothing was transmitted,
        since a site backs off or a limit is reached. The reason is shown as the last error.
        `outcomes` are of the other recipients, if there were any."""
        await self.end(DeferItem(delay, remaining, reason), outcomes)

    async def reject(self, reason: str, outcomes: AttemptOutcomes | None = None) -> None:
        """Move the mail to the dead letters with a reason. Durable when it returns. The dead
        letter's recipients are those who did not get the mail: the ones left, and the ones recorded
        as failed."""
        await self.end(Reject(reason), outcomes)
