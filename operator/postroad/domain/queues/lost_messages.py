"""Waiting mails without a message: left by a process that ended between row and publish, or by a
broker that lost its queues. A single mail does not show it, but the numbers do.

Every mail that waits under an old entry, and is not held, has at least one message: in the work
queue, in the delay queues, in a consumer's hands or in the dead queue. The delay queues are shared
by many mail queues and tell no owner, so two counts show a loss, each of messages that were counted
before the mails:

- fewer messages than mails, though all messages in the delay queues are taken for this queue's;
- fewer messages outside the delay queues than mails that have been due for so long that theirs must
  have left them.

A third shows messages that no consumer gets: RabbitMQ keeps those of a consumer that was cancelled
before its node went down, until the queue has another leader. A mail was due for so long when no
message was ready, so its message was in flight; it still waits after the longest lease.

The reverse does not hold: messages of young entries and of entries that are over hide missing ones
until they are gone. The counts of a busy broker are a little wrong, so messages must be missing
several times in a row."""

from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta

from postroad.domain.queues.entries import Entry
from postroad.domain.values.identifiers import moment_of

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

BEYOND_LEASES = timedelta(hours=1)
"""After this time a message is in no consumer's hand: leases end, and RabbitMQ's default takes a
message back (`consumer_timeout`), in half of it. A mail in flight for longer all the same is
delivered once, because its claim shows it."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Counts that the broker had of messages before a count of mails: the queue's own, those in the
    delay queues, of all mail queues, and how many of its own were leased."""

    own: int
    delayed: int
    leased: int


@dataclass(slots=True)
class MessageCount:
    """One count of everything that waits. `messages` is None when the broker could not count them.
    Entries made after `before` do not count: their messages may be on their way. No message was
    ready at `idle`, longer ago than the longest lease."""

    messages: Messages | None
    before: datetime
    idle: datetime | None = None
    waiting: int = 0
    overdue: int = 0
    stranded: int = 0

    def add(self, entry: Entry) -> None:
        """Count an entry that waits and is not being replaced."""
        self.waiting += self._counts(entry)
        self.overdue += self._is_overdue(entry)
        self.stranded += self._is_stranded(entry)

    def lacks(self, entry: Entry) -> bool:
        """Return whether an entry that waits is among those that messages are missing for."""
        match self.missing:
            case self._stranded:
                return self._is_stranded(entry)
            case self._undelivered:
                return self._is_overdue(entry)
        return self._counts(entry)

    @property
    def missing(self) -> int:
        """Number of missing messages, at least."""
        if self.messages is None:
            return 0
        lost = self.waiting - self.messages.own - self.messages.delayed
        return max(lost, self._undelivered, self._stranded)

    @property
    def _undelivered(self) -> int:
        return 0 if self.messages is None else max(self.overdue - self.messages.own, 0)

    @property
    def _stranded(self) -> int:
        # A broker that counted no ready message by mistake has few leased ones all the same.
        return 0 if self.messages is None else min(self.stranded, self.messages.leased)

    def _counts(self, entry: Entry) -> bool:
        return not entry.held and moment_of(entry.enqueue_id) < self.before

    def _is_overdue(self, entry: Entry) -> bool:
        return self._counts(entry) and self._was_overdue(entry, self.before)

    def _is_stranded(self, entry: Entry) -> bool:
        return self.idle is not None and self._counts(entry) and self._was_overdue(entry, self.idle)

    @staticmethod
    def _was_overdue(entry: Entry, at: datetime) -> bool:
        since = moment_of(entry.enqueue_id)
        if entry.due_at is not None:
            since = max(since, entry.due_at)
        return since < at - OVERDUE


class LostMessageDetector:
    """Decides after each count, by the counts before it and by what the new messages changed."""

    def __init__(self) -> None:
        self._times = 0
        self._missing = self._repaired = 0
        self._idle: deque[datetime] = deque()

    def begin(self, messages: Messages | None, before: datetime) -> MessageCount:
        """Begin a count of the entries made before a time, with the messages counted just now."""
        idle = None
        while self._idle and self._idle[0] <= before - BEYOND_LEASES:
            idle = self._idle.popleft()
        if idle is not None:
            self._idle.appendleft(idle)  # the next count may find no later one that is old enough
        if messages is not None and messages.own == messages.leased:
            self._idle.append(before)
        return MessageCount(messages, before, idle)

    def decide(self, counted: MessageCount) -> int:
        """Return how many mails get a new message now. New messages raise the broker's count: when
        the next one lacks fewer, more are given at once. Else the counts are wrong, and only few
        mails at a time are published for them."""
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
