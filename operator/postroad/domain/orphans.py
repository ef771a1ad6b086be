"""Mails that wait and have no message: what a process that died between row and publish leaves, or
a broker that lost its queues. Nothing says so of a single mail, but the numbers do.

Every mail that waits under an old turn, and is not held, has at least one message: in the work
queue, in the ladder, in a consumer's hands or in the dead queue. So a broker that was counted
first, and has fewer messages than such mails are met afterwards, lacks some. The reverse does not
hold: messages of young turns and of turns that are over hide what is missing until they are gone.
Counts of a busy broker are a little wrong, so only what was missing several times on end counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from postroad.domain.identifiers import moment_of
from postroad.domain.turns import Turn

STEADY = 3
"""Looks on end at which something has to be missing."""

AT_MOST = 100
"""Mails that get a new message after one look. Which of those that wait have none is not known, so
it is the oldest; those that get one are young then, and a later look goes on with the others."""


@dataclass(slots=True)
class Look:
    """One look at everything that waits. `messages` are all that the broker had before it began,
    None when it could not say; turns made after `before` are too young to count: their messages may
    be on their way."""

    messages: int | None
    before: datetime
    waiting: int = 0
    oldest: list[Turn] = field(default_factory=list)

    def see(self, turn: Turn) -> None:
        """Count a turn that waits and is not being replaced."""
        if turn.held or moment_of(turn.enqueue_id) >= self.before:
            return
        self.waiting += 1
        if len(self.oldest) < AT_MOST:
            self.oldest.append(turn)

    @property
    def missing(self) -> int:
        """How many messages are missing at least."""
        return 0 if self.messages is None else max(self.waiting - self.messages, 0)


class Watch:
    """Decides after each look, knowing the looks before it."""

    def __init__(self) -> None:
        self._times = 0

    def judge(self, look: Look) -> tuple[Turn, ...]:
        """Return the turns that get a new message now."""
        self._times = self._times + 1 if look.missing else 0
        if self._times < STEADY:
            return ()
        self._times = 0
        return tuple(look.oldest)
