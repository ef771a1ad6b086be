"""How busy the machine is, as this process feels it."""

from __future__ import annotations

from typing import Protocol


class Load(Protocol):
    """How much of a processor the event loop wants."""

    def demand(self) -> float:
        """Return the share of the last moments in which the calling thread ran or waited for a
        processor: 0 when it slept all the time, 1 when it never did. 0 where nobody can tell."""
        ...
