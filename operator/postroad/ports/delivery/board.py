"""What the processes of one queue let each other know about delivery, each note for a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Protocol


class Topic(StrEnum):
    """What notes are about. The values are stored."""

    SUSPENSIONS = "suspensions"
    """By site: it gets no mail."""

    WORKERS = "workers"
    """By worker: the sites that it knows."""

    LIMITS = "limits"
    """By worker: the limits by rate that it has mail for."""

    REROUTES = "reroutes"
    """By site or domain: its mail goes another way."""

    FLUSHES = "flushes"
    """By site: it is to be tried now."""

    FLUSHED = "flushed"
    """By worker and site: it tries the site now, and the domains that it knows of it."""


class Board(Protocol):
    """Small notes. The last one under a name counts; one that is posted is seen by the readings
    that begin afterwards. A process that is killed leaves its notes until their time is over. No
    note decides what becomes of a mail: a board that is lost loses no mail, and a power cut may
    lose the notes of the last seconds. Raises: ServerError."""

    async def post(self, topic: Topic, name: str, text: str, lifetime: timedelta) -> None:
        """Put a note up, or another one in its place, for a lifetime of a second at least."""
        ...

    async def take_down(self, topic: Topic, name: str) -> None:
        """Take a note down. Idempotent."""
        ...

    async def posted(self, topic: Topic) -> Mapping[str, str]:
        """Return the texts of a topic by name."""
        ...

    async def posted_about(self, topics: Collection[Topic]) -> Mapping[Topic, Mapping[str, str]]:
        """Return the texts of each of these topics by name, in one request."""
        ...
