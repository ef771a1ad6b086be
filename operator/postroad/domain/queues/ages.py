"""The age limits of `ages`: doubling, as in Postfix' qshape."""

from __future__ import annotations

from datetime import timedelta

AGES: tuple[timedelta, ...] = (
    *(timedelta(minutes=5 << step) for step in range(9)),
    timedelta.max,
)
"""5, 10, 20, … 1280 minutes, and everything older."""
