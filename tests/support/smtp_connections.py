"""SMTP connections to a fake hop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from postroad.domain.mail.return_paths import plain_path
from postroad.domain.smtp.next_hops import HopLogin, NextHop, Protocol, TlsMode
from postroad.ports.delivery import (
    BeforeEnd,
    ConnectionClosed,
    OnEvent,
    Transmission,
    at_once,
)
from postroad.smtp.client.authentication import authentication_at
from postroad.smtp.client.connecting import Addresses, RememberedHops, Timeouts
from postroad.smtp.client.connections import SmtpConnection
from postroad.smtp.client.opening import PathOf, SessionTerms
from postroad.smtp.client.sessions import ClientSession
from postroad.smtp.client.transaction.content import Preparation
from support.connections import Events
from support.fake_hop import FakeHop

USUAL = Timeouts()


def connect(
    hop: FakeHop,
    events: OnEvent,
    timeouts: Timeouts = USUAL,
    protocol: Protocol = Protocol.SMTP,
    unfit: RememberedHops | None = None,
    before_end: BeforeEnd = at_once,
    *,
    chunking: bool = True,
    verp: bool = False,
    login: HopLogin | None = None,
    path_of: PathOf = plain_path,
) -> SmtpConnection:
    next_hop = NextHop(
        "hop.example", 25, TlsMode.NONE, protocol, login=login, chunking=chunking, verp=verp
    )
    unfit = unfit or RememberedHops()
    authentication = authentication_at(next_hop)
    terms = SessionTerms(
        next_hop, "relay.example", None, timeouts, authentication, unfit=unfit, path_of=path_of
    )

    async def open_session() -> ClientSession:
        return await ClientSession.open(cast("Addresses", hop), terms)

    return SmtpConnection(open_session, Preparation(), events, before_end)


async def carried(hop: FakeHop, jobs: Iterable[Transmission], timeouts: Timeouts = USUAL) -> Events:
    """Transmit jobs over one connection until each has an event, or the connection has ended."""
    events = Events()
    connection = connect(hop, events, timeouts)
    count = 0
    for job in jobs:
        connection.submit(job)
        count += 1
    while len(events.jobs) < count and not any(isinstance(e, ConnectionClosed) for e in events.all):
        await events.next()
    connection.close()
    await events.until_closed()
    return events
