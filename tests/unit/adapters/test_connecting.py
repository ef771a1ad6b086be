"""The addresses of a next hop: which one is tried first, and a name server that does not answer."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from datetime import timedelta

import pytest

from postroad.domain.smtp.next_hops import HopTimeouts, NextHop
from postroad.routing.routes import ResolvedHop
from postroad.smtp.client import connecting
from postroad.smtp.client.client import SessionRefused
from postroad.smtp.client.connecting import SHUN, Addresses, Timeouts
from postroad.smtp.client.connections import SmtpConnector
from postroad.smtp.client.opening import SessionTerms
from postroad.smtp.client.sessions import ClientSession
from postroad.smtp.wire import ConnectionLost, TooSlow
from support.connections import Events

NO_TIME, A_MINUTE = timedelta(milliseconds=1), timedelta(minutes=1)


class Resolver:
    """A resolver that answers when it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lookups = 0
        self.may_answer = asyncio.Event()
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self._look_up)

    async def _look_up(self, *_: object, **__: object) -> list[object]:
        self.lookups += 1
        await self.may_answer.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "no name server answers")


async def test_connections_that_begin_together_share_one_lookup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolver, addresses = Resolver(monkeypatch), Addresses("hop.example", 25, A_MINUTE)
    tasks = [asyncio.create_task(addresses.connect(A_MINUTE)) for _ in range(20)]
    await asyncio.sleep(0)
    tasks.pop().cancel()
    await asyncio.sleep(0)

    resolver.may_answer.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert resolver.lookups == 1
    assert {str(each) for each in results} == {"no connection: [Errno -3] no name server answers"}
    with pytest.raises(ConnectionLost):
        await addresses.connect(A_MINUTE)
    assert resolver.lookups == 2, "the next connection looks the name up anew"


async def test_a_lookup_that_takes_long_is_not_begun_again_by_those_that_wait_no_longer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    resolver, addresses = Resolver(monkeypatch), Addresses("hop.example", 25, NO_TIME)

    for _ in range(3):
        with pytest.raises(ConnectionLost, match="not resolved in time"):
            await addresses.connect(A_MINUTE)

    assert resolver.lookups == 1
    resolver.may_answer.set()
    await asyncio.sleep(0.01)
    assert not caplog.records


async def test_a_name_is_looked_up_for_as_long_as_usual_where_connections_have_little_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolver = Resolver(monkeypatch)
    hop = ResolvedHop(NextHop("hop.example"), (), connect_within=NO_TIME)
    events = Events()
    SmtpConnector(ehlo_name="w.example").open(hop, events)
    while not resolver.lookups:
        await asyncio.sleep(0)
    await asyncio.sleep(5 * NO_TIME.total_seconds())
    resolver.may_answer.set()

    closed = await events.until_closed()
    assert "no name server answers" in closed.text


@pytest.mark.parametrize(("within", "tried_for"), [(None, 30), (5, 5), (40, 30)])
async def test_a_hop_may_have_less_time_for_its_connection_than_usual(
    monkeypatch: pytest.MonkeyPatch, within: int | None, tried_for: int
) -> None:
    tried: list[timedelta] = []

    async def connect(address: str, port: int, timeout: timedelta, source: str | None) -> None:
        tried.append(timeout)
        raise TooSlow

    monkeypatch.setattr(connecting, "connect", connect)
    limit = None if within is None else timedelta(seconds=within)
    hop = ResolvedHop(NextHop("hop.example"), ("192.0.2.1", "192.0.2.2"), connect_within=limit)
    events = Events()
    SmtpConnector(ehlo_name="w.example").open(hop, events)
    await events.until_closed()

    assert tried == [timedelta(seconds=tried_for)] * 2


@pytest.mark.parametrize(("within", "greets_within"), [(None, 300), (5, 10), (400, 300)])
async def test_a_hop_with_little_time_for_its_connection_has_twice_that_to_greet(
    monkeypatch: pytest.MonkeyPatch, within: int | None, greets_within: int
) -> None:
    """Some delay the greeting by six seconds, to find clients that do not wait for it."""
    given: list[Timeouts] = []

    async def opened(_: object, terms: SessionTerms) -> None:
        given.append(terms.timeouts)
        raise SessionRefused("421 4.3.2 no")

    monkeypatch.setattr(ClientSession, "open", opened)
    limit = None if within is None else timedelta(seconds=within)
    events = Events()
    SmtpConnector(ehlo_name="w.example").open(
        ResolvedHop(NextHop("hop.example"), (), connect_within=limit), events
    )
    await events.until_closed()

    assert [each.greeting for each in given] == [timedelta(seconds=greets_within)]
    assert given[0].command == Timeouts().command


async def test_a_hop_has_the_times_that_an_administrator_gives_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Timeouts] = []

    async def opened(_: object, terms: SessionTerms) -> None:
        given.append(terms.timeouts)
        raise SessionRefused("421 4.3.2 no")

    monkeypatch.setattr(ClientSession, "open", opened)
    times = HopTimeouts(greeting=A_MINUTE, data_end=A_MINUTE)
    hop = ResolvedHop(NextHop("hop.example"), (), timeouts=times)
    events = Events()
    SmtpConnector(ehlo_name="w.example").open(hop, events)
    await events.until_closed()

    assert given == [replace(Timeouts(), greeting=A_MINUTE, data_end=A_MINUTE)]


async def test_an_address_that_did_not_answer_is_tried_last_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []
    now = 0.0

    async def both(*_: object, **__: object) -> list[object]:
        return [(0, 0, 0, "", (address, 25)) for address in ("192.0.2.1", "192.0.2.2")]

    async def connect(address: str, port: int, timeout: timedelta, source: str | None) -> None:
        tried.append(address)
        if address == "192.0.2.1":
            raise TooSlow

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", both)
    monkeypatch.setattr(connecting, "connect", connect)
    monkeypatch.setattr(connecting, "_now", lambda: now)
    addresses = Addresses("hop.example", 25, A_MINUTE)

    await addresses.connect(A_MINUTE)
    await addresses.connect(A_MINUTE)
    now = SHUN.total_seconds()
    await addresses.connect(A_MINUTE)

    assert tried == ["192.0.2.1", "192.0.2.2", "192.0.2.2", "192.0.2.1", "192.0.2.2"]
