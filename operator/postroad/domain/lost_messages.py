"""Waiting mails without a message: left by a process that ended between row and publish, or by a
broker that lost its queues. A single mail does not show it, but the numbers do.

Every mail that waits under an old entry, and is not held, has at least one message: in the work
queue, in the delay queues, in a consumer's hands or in the dead queue. So a broker that was counted
first, and has fewer messages than such mails are found afterwards, lacks some. The reverse does not
hold: messages of young entries and of entries that are over hide missing ones until they are gone.
The counts of a busy broker are a little wrong, so messages must be missing several times in a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from postroad.domain.entries import Entry
from postroad.domain.identifiers import moment_of

STEADY = 3
"""Counts in a row in which messages must be missing."""

AT_LEAST = 100
"""Mails that get a new message when few are missing. Which mails lack one is not known, so the
oldest get it; they are young then, and a later count continues with the others. When more are
missing, as many get one: all, when the broker has none."""


@dataclass(slots=True)
class MessageCount:
    """One count of everything that waits. `messages`: all that the broker had before it began, None
    when it could not count them. Entries made after `before` do not count: their messages may be on
    their way."""

    messages: int | None
    before: datetime
    waiting: int = 0

    def add(self, entry: Entry) -> None:
        """Count an entry that waits and is not being replaced."""
        self.waiting += self.counts(entry)

    def counts(self, entry: Entry) -> bool:
        """Return whether an entry that waits must have a message."""
        return not entry.held and moment_of(entry.enqueue_id) < self.before

    @property
    def missing(self) -> int:
        """How many messages are missing at least."""
        return 0 if self.messages is None else max(self.waiting - self.messages, 0)


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
