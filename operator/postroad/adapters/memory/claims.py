"""Claims on objects in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from postroad.adapters.memory.fault_injection import FaultInjector
from postroad.domain.servers.claims import Claim, Claimant


@dataclass(frozen=True, slots=True)
class ClaimedObject:
    """The claims that an object has had, of which the last one holds; None: a release.
    `is_counted`: whether the server keeps the others, as Cassandra does."""

    is_counted: bool = True
    claims: list[Claimant | None] = field(default_factory=list)

    @property
    def claim(self) -> Claim | None:
        """The claim that holds."""
        *former, claimant = self.claims or [None]
        if claimant is None:
            return None
        if not self.is_counted:
            return Claim.of(claimant)
        tokens = frozenset(each.token for each in former if each is not None)
        return Claim.of(claimant, len(self.claims), tokens)


class MemoryClaimRecord:
    """`ClaimRecord` of one object on a server. `exists`: whether there is such an object."""

    def __init__(
        self,
        claimed: ClaimedObject,
        faults: FaultInjector,
        server: str,
        exists: Callable[[], bool] = lambda: True,
    ) -> None:
        self._claimed = claimed
        self._faults = faults
        self._server = server
        self._exists = exists

    async def claim(self, claimant: Claimant) -> Claim | None:
        def effect() -> Claim | None:
            if not self._exists():
                return None
            if self._claimed.claim is None:
                self._claimed.claims.append(claimant)
            return self._claimed.claim

        return await self._faults(self._server, "claim", effect)

    async def transfer(self, found: Claim, claimant: Claimant) -> Claim:
        def effect() -> Claim:
            if self._claimed.claim in (None, found):
                self._claimed.claims.append(claimant)
            assert self._claimed.claim is not None
            return self._claimed.claim

        return await self._faults(self._server, "transfer claim", effect)

    async def release(self, claimant: Claimant) -> None:
        def effect() -> None:
            holding = self._claimed.claim
            if holding is not None and holding.is_of(claimant):
                self._claimed.claims.append(None)

        await self._faults(self._server, "release claim", effect)
