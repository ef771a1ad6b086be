"""The rights of a client, by the network of its address. Pure. Source: ADR 0026."""

from __future__ import annotations

from dataclasses import dataclass

from postroad.domain.values.networks import LOOPBACK, NO_ADDRESS, Networks


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of one client."""

    may_relay: bool
    """Whether the intake accepts its mail, for any recipient."""

    may_talk_early: bool = False
    """Whether it may send more after EHLO, HELO and DATA before their replies."""

    normalises_line_ends: bool = False
    """Whether a bare CR or LF in its mail becomes CRLF, and a NUL is left out; else the intake
    refuses the mail."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Which networks have which rights."""

    relay_from: Networks = LOOPBACK
    early_input_from: Networks = NO_ADDRESS
    normalise_from: Networks = NO_ADDRESS

    def rights_of(self, address: str) -> Rights:
        """Return the rights of a client."""
        return Rights(
            may_relay=address in self.relay_from,
            may_talk_early=address in self.early_input_from,
            normalises_line_ends=address in self.normalise_from,
        )
