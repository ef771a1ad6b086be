"""Mails that wait and have no message: what a process that died between row and publish leaves, or
a broker that lost its queues. Nothing says so of a single mail, but the numbers do.

Every mail that waits under an old entry, and is not held, has at least one message: in the work
queue, in the delay queues, in a consumer's hands or in the dead queue. So a broker that was counted
first, and has fewer messages than such mails are met afterwards, lacks some. The reverse does not
hold: messages of young entries and of entries that are over hide what is missing until they are
gone. Counts of a busy broker are a little wrong, so only what was missing several times on end
counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from postroad.domain.entries import EnqueuedMail
from postroad.domain.identifiers import moment_of

STEADY = 3
"""Looks on end at which something has to be missing."""

AT_LEAST = 100
"""Mails that get a new message when few are missing. Which of those that wait have none is not
known, so it is the oldest; those that get one are young then, and a later look goes on with the
others. As many as are missing get one when that is more: all, when the broker has none."""


@dataclass(slots=True)
class MessageCount:
    """One look at everything that waits. `messages` are all that the broker had before it began,
    None when it could not say; entries made after `before` are too young to count: their messages
    may be on their way."""

    messages: int | None
    before: datetime
    waiting: int = 0

    def add(self, entry: EnqueuedMail) -> None:
        """Count an entry that waits and is not being replaced."""
        self.waiting += self.counts(entry)

    def counts(self, entry: EnqueuedMail) -> bool:
        """Return whether an entry that waits must have a message."""
        return not entry.held and moment_of(entry.enqueue_id) < self.before

    @property
    def missing(self) -> int:
        """How many messages are missing at least."""
        return 0 if self.messages is None else max(self.waiting - self.messages, 0)


class LostMessageDetector:
    """Decides after each look, knowing the looks before it, and what came of new messages."""

    def __init__(self) -> None:
        self._times = 0
        self._missing = self._repaired = 0

    def decide(self, counted: MessageCount) -> int:
        """Return how many mails get a new message now.

        New messages are messages: the next look misses fewer, and goes on at once. Where it does
        not, the counts are wrong, and only few mails at a time are published for them.
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
        """Take in how many got a message after this counted."""
        self._missing, self._repaired = counted.missing, count

    def defer(self) -> None:
        """Another process gives the messages: judge the next look as this one."""
        self._times = STEADY - 1
