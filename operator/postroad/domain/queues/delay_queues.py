"""Delay queues: which of them a mail that has to wait goes through next.

A delay is served by the longest delay queue that fits, again and again until the mail is due.
"""

from __future__ import annotations

from datetime import datetime, timedelta

DELAY_SECONDS: tuple[int, ...] = tuple(1 << step for step in range(15))
"""The steps: powers of two from 1 s to 16384 s (about 4.5 h)."""

HIGHEST_DOUBLING = 6
"""A redelivery delay after crashes is at most 2 ** 6 times the first one."""


def next_delay(due_at: datetime | None, now: datetime) -> int:
    """Return the longest step that does not pass `due_at`, in seconds; 0 when the mail is due.

    The last fraction of a second takes a step of one second, so no mail is early.
    """
    if due_at is None or due_at <= now:
        return 0
    left = (due_at - now).total_seconds()
    return max((step for step in DELAY_SECONDS if step <= left), default=DELAY_SECONDS[0])


def beside(step: int) -> int:
    """Return another step of about the same length, for a message that the queue of this one
    refuses. From a redelivery delay on it is no shorter than a redelivery delay.

    >>> beside(1), beside(8), beside(16), beside(32)
    (2, 16, 32, 16)
    """
    return step // 2 if step > 16 else step * 2


def redelivery_delay_after(crashes: int, redelivery_delay: timedelta, draw: float) -> int:
    """Return the step that a reference waits after a redelivery, in seconds.

    The more crashes, the wider the steps are drawn, so that a mail that crashes consumers is soon
    alone, and mails that were only in hand at the same time get through.
    """
    doubling = int(draw * (min(crashes, HIGHEST_DOUBLING) + 1))
    wanted = redelivery_delay.total_seconds() * (1 << doubling)
    return max((step for step in DELAY_SECONDS if step <= wanted), default=DELAY_SECONDS[0])
