"""Record of a configuration history, and the configuration that holds now.

Source: 000 Decision (eventSourcing); ADR 0005."""

from dataclasses import dataclass
from typing import Protocol

from postroad.domain.configuration.history import ConfigurationEvent, Rollout
from postroad.domain.configuration.rules import ViewConfiguration


@dataclass(frozen=True, slots=True)
class Recorded:
    """All events in order, and how far the newest ones have spread (None: never recorded)."""

    events: tuple[ConfigurationEvent, ...] = ()
    rollout: Rollout | None = None


class History(Protocol):
    """The events of one queue, in order of their sequence, without gaps, and their rollout."""

    async def load(self) -> Recorded:
        """Return everything in one linearizable read. Empty when nothing was ever recorded.
        Raises: ViewError."""

    async def append(self, event: ConfigurationEvent) -> None:
        """Append one event under its sequence, if that is free (linearizable). Durable. Appending
        the same event again changes nothing, so a caller unsure after ViewUnavailable repeats.
        Raises: ConfigurationConflict when another event is there; ViewError."""

    async def advance(self, before: Rollout | None, after: Rollout) -> bool:
        """Move the rollout, if it still is `before` (linearizable). Durable. Returns whether it
        moved; when not, another process was first. Raises: ViewError."""

    async def erase(self) -> None:
        """Forget everything, newest first, so that what a crash leaves is a history still. Only
        after the queue's rows are erased: a history without rows is harmless, rows without a
        history cannot be read. Idempotent. Raises: ViewError."""


@dataclass(frozen=True, slots=True)
class Effective:
    """Configuration that holds now: write under `writing`; read under every one of `reading`
    (newest first)."""

    writing: ViewConfiguration
    reading: tuple[ViewConfiguration, ...]


class ConfigurationSource(Protocol):
    """Answers from memory; its owner refreshes it from the history (readers first: ADR 0005)."""

    def effective(self) -> Effective:
        """Return what holds now. Raises: ConfigurationStale past the lease, QueueNotFound. Ask once
        per operation, and again before a write that depends on what was read (closing, advancing,
        cleaning), because the process may have been suspended since."""
