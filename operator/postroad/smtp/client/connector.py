"""Opens connections to next hops over SMTP and LMTP, as the port `connections` describes it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from postroad.ports.delivery import BeforeEnd, OnEvent, Signer, at_once
from postroad.routing.routes import ResolvedHop
from postroad.smtp.client.authentication import authentication_at
from postroad.smtp.client.connecting import (
    Addresses,
    KnownAddresses,
    Reached,
    Shunned,
    UnixSocket,
)
from postroad.smtp.client.connections import SmtpConnection
from postroad.smtp.client.opening import SessionTerms, context_for, ehlo_name_to
from postroad.smtp.client.remembered_hops import RememberedHops
from postroad.smtp.client.sessions import ClientSession
from postroad.smtp.client.timeouts import Timeouts
from postroad.smtp.client.transaction.preparation import Preparation

_TIMEOUTS = Timeouts()

MOST_LOGINS = 1000
"""Next hops whose last login is remembered."""


class SmtpConnector:
    """Opens connections. `ehlo_name`, `ca_file` and `signer` as for `SmtpRelay`."""

    def __init__(
        self,
        *,
        ehlo_name: str | None,
        ca_file: Path | None = None,
        signer: Signer | None = None,
        timeouts: Timeouts = _TIMEOUTS,
    ) -> None:
        self._ehlo_name = ehlo_name
        self._timeouts = timeouts
        self._shunned = Shunned()
        self._addresses_of = lru_cache(Addresses)
        self._ca_file = ca_file
        self._context_for = lru_cache(context_for)
        self._broken_tls, self._unfit = RememberedHops(), RememberedHops()
        self._fit_for_tls = RememberedHops()
        self._authentication_of = lru_cache(MOST_LOGINS)(authentication_at)
        self._preparation = Preparation(signer)

    def open(
        self, hop: ResolvedHop, on_event: OnEvent, before_end: BeforeEnd = at_once
    ) -> SmtpConnection:
        """Begin to open a connection (see the port)."""
        next_hop = hop.next_hop
        open_session = partial(
            ClientSession.open,
            self._reach(hop),
            SessionTerms(
                next_hop,
                ehlo_name_to(next_hop, self._ehlo_name),
                self._context_for(
                    next_hop.tls, self._ca_file, next_hop.oldest_tls, by_tlsa=next_hop.by_tlsa
                ),
                self._timeouts_for(hop),
                self._authentication_of(next_hop),
                hop.certificates,
                self._broken_tls,
                self._unfit,
                self._fit_for_tls,
            ),
        )
        return SmtpConnection(open_session, self._preparation, on_event, before_end)

    def _timeouts_for(self, hop: ResolvedHop) -> Timeouts:
        usual, within = self._timeouts, hop.connect_within
        if within is None:
            return usual
        return replace(
            usual, connect=min(usual.connect, within), greeting=min(usual.greeting, 2 * within)
        )

    def _reach(self, hop: ResolvedHop) -> Reached:
        next_hop = hop.next_hop
        if next_hop.socket is not None:
            return UnixSocket(next_hop.socket)
        if hop.addresses:
            return KnownAddresses(hop.addresses, next_hop.port, self._shunned, next_hop.source)
        return self._addresses_of(
            next_hop.host, next_hop.port, self._timeouts.look_up, next_hop.source
        )
