"""`SmtpRelay`: the transport that hands every mail to one next hop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

from postroad.adapters.network.authentication import authentication_at
from postroad.adapters.network.connecting import Addresses
from postroad.adapters.network.content import OpenContent
from postroad.adapters.network.exchange import SessionRefused
from postroad.adapters.network.opening import SessionTerms, context_for
from postroad.adapters.network.pools import PoolLimits, SessionPool
from postroad.adapters.network.preparation import Preparation
from postroad.adapters.network.sessions import ClientSession, SessionStale
from postroad.adapters.network.timeouts import Timeouts
from postroad.domain.mail import Envelope, Outcome, OutcomeKind
from postroad.domain.next_hops import NextHop
from postroad.ports.signing import Signer
from postroad.ports.transport import FindShape, not_known

_TIMEOUTS = Timeouts()
_LIMITS = PoolLimits()


class SmtpRelay:
    """A transport over SMTP or LMTP with reused, pipelined sessions. Needs a running event loop.

    `ehlo_name` is the name in EHLO; None: the address literal of each connection's local address.
    `ca_file` verifies the next hop where TLS is required or implicit (None: the system's
    authorities). `signer` signs mails last of all.
    """

    def __init__(
        self,
        next_hop: NextHop,
        *,
        ehlo_name: str | None,
        ca_file: Path | None = None,
        signer: Signer | None = None,
        limits: PoolLimits = _LIMITS,
        timeouts: Timeouts = _TIMEOUTS,
    ) -> None:
        self._next_hop = next_hop
        self._addresses = Addresses(next_hop.host, next_hop.port)
        context = context_for(next_hop.tls, ca_file, next_hop.oldest_tls)
        self._terms = SessionTerms(
            next_hop, ehlo_name, context, timeouts, authentication_at(next_hop)
        )
        self._pool = SessionPool(self._open, limits)
        self._preparation = Preparation(signer)

    async def transmit(
        self,
        envelope: Envelope,
        content: AsyncIterator[bytes],
        size_bytes: int,
        shape: FindShape = not_known,
    ) -> Mapping[str, Outcome]:
        """Hand over one mail (see the port). The content is read once there is a session for it.
        Raises: what reading the content raises."""
        peeked: OpenContent | None = None
        while True:
            try:
                async with self._pool.session() as session:
                    # Only with a session: while the next hop is away, no content is read (SP-20).
                    peeked = peeked or await OpenContent.peek(content, size_bytes, await shape())
                    return self._at_site(await self._transmit(session, envelope, peeked))
            except SessionStale:
                continue  # ends: each iteration uses up an idle session, and a new one is not stale
            except SessionRefused as error:
                refused = Outcome(OutcomeKind.DEFERRED, str(error), self._next_hop.host)
                return dict.fromkeys(envelope.recipients, refused)

    def _at_site(self, outcomes: Mapping[str, Outcome]) -> Mapping[str, Outcome]:
        """Return outcomes with the site that gave them: recipients that share one share the new
        one, too."""
        site = self._next_hop.host
        placed = {id(each): replace(each, site=site) for each in outcomes.values()}
        return {recipient: placed[id(each)] for recipient, each in outcomes.items()}

    async def _transmit(
        self, session: ClientSession, envelope: Envelope, content: OpenContent
    ) -> Mapping[str, Outcome]:
        preparing = self._preparation.of(content, envelope, takes_8bit=session.takes_8bit)
        if preparing is None:
            return await session.transmit(envelope, content)
        async with preparing as ready:
            return await session.transmit(envelope, ready)

    async def close(self) -> None:
        """Close idle sessions; those in use close when they are given back. Idempotent."""
        await self._pool.close()

    async def _open(self) -> ClientSession:
        return await ClientSession.open(self._addresses, self._terms)
