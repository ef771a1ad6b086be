"""What a client may do, by the network that its address lies in. Pure.

Source: ADR 0026.
"""

from __future__ import annotations

from dataclasses import dataclass

from postroad.domain.networks import LOOPBACK, Networks


@dataclass(frozen=True, slots=True)
class Rights:
    """What one client may do."""

    may_relay: bool
    """Whether its mail is accepted, for any recipient."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Which networks have which rights."""

    relay_from: Networks = LOOPBACK

    def rights_of(self, address: str) -> Rights:
        """Return the rights of a client."""
        return Rights(may_relay=address in self.relay_from)
