"""Waiting mails without a message: left by a process that ended between row and publish, or by a
broker that lost its queues. A single mail does not show it, but the numbers do.

Every mail that waits under an old entry, and is not held, has at least one message: in the work
queue, in the delay queues, in a consumer's hands or in the dead queue. The delay queues are shared
by many mail queues and tell no owner, so two counts show a loss, each of messages that were counted
before the mails:

- fewer messages than mails, though all messages in the delay queues are taken for this queue's;
- fewer messages outside the delay queues than mails that have been due for so long that theirs must
  have left them.

The reverse does not hold: messages of young entries and of entries that are over hide missing ones
until they are gone. The counts of a busy broker are a little wrong, so messages must be missing
several times in a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from postroad.domain.entries import Entry
from postroad.domain.identifiers import moment_of

STEADY = 3
"""Counts in a row in which messages must be missing."""

AT_LEAST = 100
"""Mails that get a new message when few are missing. Which mails lack one is not known, so the
oldest get it; they are young then, and a later count continues with the others. When more are
missing, as many get one: all, when the broker has none."""


OVERDUE = timedelta(minutes=15)
"""For how long a mail must have been due before its message is expected outside the delay queues:
longer than a redelivery delay after crashes. A mail that crashes consumers for longer is counted
although its message exists, and gets another."""


@dataclass(frozen=True, slots=True)
class Messages:
    """What the broker had of messages before a count of mails: the queue's own, leased ones
    included, and those in the delay queues, of all mail queues."""

    own: int
    delayed: int


@dataclass(slots=True)
class MessageCount:
    """One count of everything that waits. `messages` is None when the broker could not count them.
    Entries made after `before` do not count: their messages may be on their way."""

    messages: Messages | None
    before: datetime
    waiting: int = 0
    overdue: int = 0

    def add(self, entry: Entry) -> None:
        """Count an entry that waits and is not being replaced."""
        self.waiting += self._counts(entry)
        self.overdue += self._is_overdue(entry)

    def lacks(self, entry: Entry) -> bool:
        """Return whether an entry that waits is among those that messages are missing for."""
        return self._is_overdue(entry) if self._lacks_due else self._counts(entry)

    @property
    def missing(self) -> int:
        """How many messages are missing at least."""
        if self.messages is None:
            return 0
        return max(
            self.waiting - self.messages.own - self.messages.delayed,
            self.overdue - self.messages.own,
            0,
        )

    @property
    def _lacks_due(self) -> bool:
        return self.messages is not None and self.missing == self.overdue - self.messages.own

    def _counts(self, entry: Entry) -> bool:
        return not entry.held and moment_of(entry.enqueue_id) < self.before

    def _is_overdue(self, entry: Entry) -> bool:
        since = moment_of(entry.enqueue_id)
        if entry.due_at is not None:
            since = max(since, entry.due_at)
        return self._counts(entry) and since < self.before - OVERDUE


class LostMessageDetector:
    """Decides after each count, by the counts before it and by what the new messages changed."""

    def __init__(self) -> None:
        self._times = 0
        self._missing = self._repaired = 0

    def decide(self, counted: MessageCount) -> int:
        """Return how many mails get a new message now.

        New messages raise the broker's count: when the next one lacks fewer, more are given at
        once. Else the counts are wrong, and only few mails at a time are published for them.
        """
        if not counted.missing:
            self._times = self._missing = self._repaired = 0
            return 0
        helped = 0 < self._repaired // 2 <= self._missing - counted.missing
        self._times += 1
        if self._times < STEADY and not helped:
            return 0
        self._times = 0
        if helped:
            return counted.missing
        return AT_LEAST if self._repaired else max(counted.missing, AT_LEAST)

    def repaired(self, counted: MessageCount, count: int) -> None:
        """Note how many mails got a message after this count."""
        self._missing, self._repaired = counted.missing, count

    def defer(self) -> None:
        """Leave the messages to another process, and decide at the next count as at this one."""
        self._times = STEADY - 1
