"""The limits of age that a queue's picture is drawn with: doubling, as Postfix' qshape draws it."""

from __future__ import annotations

from datetime import timedelta

AGES: tuple[timedelta, ...] = (
    *(timedelta(minutes=5 << step) for step in range(9)),
    timedelta.max,
)
"""5, 10, 20, … 1280 minutes, and everything older."""
