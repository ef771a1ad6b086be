"""From which address of this machine a next hop is connected to, and by which name."""

from dataclasses import replace

import pytest

from postroad.domain.smtp.next_hops import NextHop, SourceAddresses, TlsMode
from postroad.routing.routes import ResolvedHop, RoutedSite
from postroad.smtp.client.connections import SmtpConnector
from support.connections import Events, a_job
from support.sink import Sink

HOP = NextHop("127.0.0.1", 25, TlsMode.NONE)


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        (None, ("127.0.0.1", "relay.example")),
        (SourceAddresses(("127.0.0.2",)), ("127.0.0.2", "relay.example")),
        (SourceAddresses(("::1", "127.0.0.3"), "mx3.example"), ("127.0.0.3", "mx3.example")),
    ],
)
async def test_a_next_hop_sees_the_source(
    source: SourceAddresses | None, seen: tuple[str, str]
) -> None:
    connector = SmtpConnector(ehlo_name="relay.example")
    async with Sink() as sink:
        for addresses in ((), ("127.0.0.1",)):
            hop = ResolvedHop(replace(HOP, port=sink.port, source=source), addresses)
            events = Events()
            connection = connector.open(hop, events)
            connection.submit(a_job(1))
            await events.until_finished(1)
            connection.close()
            await events.until_closed()

    hellos = [each.removeprefix("EHLO ") for each in sink.commands if each.startswith("EHLO")]
    assert list(zip(sink.clients, hellos, strict=True)) == [seen, seen]


@pytest.mark.parametrize(
    ("source", "said"),
    [(SourceAddresses(("::1",)), "family"), (SourceAddresses(("192.0.2.1",)), "no connection")],
    ids=["another family", "another machine's"],
)
async def test_mail_waits_where_the_source_cannot_be_used(
    source: SourceAddresses, said: str
) -> None:
    async with Sink() as sink:
        events = Events()
        hop = ResolvedHop(replace(HOP, port=sink.port, source=source), ("127.0.0.1",))
        connection = SmtpConnector(ehlo_name=None).open(hop, events)
        connection.submit(a_job(1))
        closed = await events.until_closed()

    assert closed.untried == (1,)
    assert said in closed.text
    assert sink.connections == 0


def test_mail_from_another_source_is_another_site() -> None:
    hops = [replace(HOP, source=each) for each in (None, SourceAddresses(("192.0.2.1",)))]
    assert len({RoutedSite.of([[each]]).name for each in hops}) == 2
