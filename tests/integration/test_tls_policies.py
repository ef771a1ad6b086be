"""Each way to secure a connection against each attack on it: mail goes as it must, or waits."""

import asyncio
import ssl
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import uvloop

from postroad.adapters.dns import DnsResolver, NameServer
from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.smtp.next_hops import NextHop, OldestTls, TlsMode
from postroad.ports.delivery import ConnectionClosed, JobFinished
from postroad.routing.answers import TlsaRecord
from postroad.routing.routes import ResolvedHop, Route, RoutingPlan
from postroad.routing.securing import (
    DomainPolicy,
    MxSecurity,
    PublishedSecurity,
    StsMode,
    StsPolicy,
    TlsaRecords,
)
from postroad.routing.tables import RouteRequest, RoutingTable
from postroad.smtp.client.connections import SmtpConnector
from postroad.worker.route_finder import RouteFinder
from support.connections import Events, a_job
from support.dns_server import DnsServer, running
from support.issuing import Issued, issue
from support.memory.clock import SeededRandomness
from support.sink import EXTENSIONS, Sink
from support.smtp_relay import refusing

AUTHORITY = issue("authority", is_authority=True)
SERVER = issue("localhost", AUTHORITY)
ANOTHER = issue("localhost", issue("another authority", is_authority=True))
ELSEWHERE = issue("elsewhere.example", AUTHORITY)

TLS, CLEAR, WAITS = "over TLS", "in clear", "waits"


def context(folder: Path, server: Issued, *others: Issued) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(*server.write(folder, *others))
    return made


def hop(tls: TlsMode, *records: TlsaRecord, oldest: OldestTls = OldestTls.TLS_1_2) -> ResolvedHop:
    next_hop = NextHop("localhost", 25, tls, oldest_tls=oldest, by_tlsa=bool(records))
    certificates = TlsaRecords("localhost", records) if records else None
    return ResolvedHop(next_hop, ("127.0.0.1",), certificates)


@pytest.fixture
def connector(tmp_path_factory: pytest.TempPathFactory) -> SmtpConnector:
    authorities, _ = AUTHORITY.write(tmp_path_factory.mktemp("authority"))
    return SmtpConnector(ehlo_name="relay.example", ca_file=authorities)


async def carried(connector: SmtpConnector, sink: Sink, to: ResolvedHop) -> tuple[str, str]:
    """Return what becomes of a mail, and why the connection ended."""
    before, events = len(sink.mails), Events()
    to = replace(to, next_hop=replace(to.next_hop, port=sink.port))
    connection = connector.open(to, events)
    connection.submit(a_job(1))
    while not (events.finished or (events.all and isinstance(events.all[-1], ConnectionClosed))):
        await events.next()
    connection.close()
    closed = await events.until_closed()
    if len(sink.mails) == before:
        assert OutcomeKind.DELIVERED not in events.finished.get(1, {}).values()
        return WAITS, closed.text
    return (TLS if sink.mails[-1].tls else CLEAR), closed.text


MODES = {
    "none": hop(TlsMode.NONE),
    "opportunistic": hop(TlsMode.OPPORTUNISTIC),
    "encrypted": hop(TlsMode.ENCRYPTED),
    "required": hop(TlsMode.REQUIRED),
    "DANE-EE": hop(TlsMode.REQUIRED, SERVER.record(3)),
    "DANE-TA": hop(TlsMode.REQUIRED, AUTHORITY.record(2)),
}
"""MTA-STS is `required`, once routing has left out hosts."""

EXPECTED = {
    "right": (CLEAR, TLS, TLS, TLS, TLS, TLS),
    "pulled": (CLEAR, CLEAR, WAITS, WAITS, WAITS, WAITS),
    "refused": (CLEAR, CLEAR, WAITS, WAITS, WAITS, WAITS),
    "broken": (CLEAR, CLEAR, WAITS, WAITS, WAITS, WAITS),
    "another authority": (CLEAR, TLS, TLS, WAITS, WAITS, WAITS),
    "another name": (CLEAR, TLS, TLS, WAITS, WAITS, WAITS),
    "1.1 at most": (CLEAR, CLEAR, WAITS, WAITS, WAITS, WAITS),
}
"""What becomes of mail by what the server, or who is on the way to it, does; by mode."""


def sink_of(case: str, folder: Path) -> Sink:
    shown = {"another authority": ANOTHER, "another name": ELSEWHERE}.get(case, SERVER)
    tls = context(folder, shown, AUTHORITY)
    if case == "1.1 at most":
        tls.set_ciphers("DEFAULT@SECLEVEL=0")
        tls.minimum_version, tls.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    if case == "pulled":
        return Sink()
    if case == "refused":
        return Sink(refusing("STARTTLS", "454 4.7.0 not now"), tls=tls)
    if case == "broken":
        return Sink(refusing("STARTTLS", "220 go"), extensions=(*EXTENSIONS, "STARTTLS"))
    return Sink(tls=tls)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("case", EXPECTED)
async def test_mail_goes_as_the_mode_requires_or_waits(
    connector: SmtpConnector, tmp_path: Path, case: str
) -> None:
    async with sink_of(case, tmp_path) as sink:
        found = [(await carried(connector, sink, each))[0] for each in MODES.values()]

    assert dict(zip(MODES, found, strict=True)) == dict(zip(MODES, EXPECTED[case], strict=True))


async def test_an_outcome_tells_over_which_connection_the_next_hop_replied(
    connector: SmtpConnector, tmp_path: Path
) -> None:
    found = {}
    async with Sink(tls=context(tmp_path, SERVER, AUTHORITY)) as sink:
        for name in ("none", "opportunistic", "required", "DANE-EE"):
            events = Events()
            to = replace(MODES[name], next_hop=replace(MODES[name].next_hop, port=sink.port))
            connection = connector.open(to, events)
            connection.submit(a_job(1))
            while 1 not in events.finished:
                await events.next()
            connection.close()
            await events.until_closed()
            (finished,) = (each for each in events.all if isinstance(each, JobFinished))
            (outcome,) = finished.outcomes.values()
            assert outcome.responder is not None
            facts = found[name] = outcome.responder.connection
            assert facts is not None
            assert (facts.address, facts.port, facts.source) == (
                "127.0.0.1",
                sink.port,
                "127.0.0.1",
            )

    seen = {name: facts and (facts.tls, facts.verified) for name, facts in found.items()}
    assert seen == {
        "none": ("", False),
        "opportunistic": ("TLSv1.3", False),
        "required": ("TLSv1.3", True),
        "DANE-EE": ("TLSv1.3", True),
    }


async def test_broken_tls_is_remembered_for_mail_that_may_go_in_clear(
    connector: SmtpConnector, tmp_path: Path
) -> None:
    async with sink_of("broken", tmp_path) as sink:
        for _ in range(3):
            assert (await carried(connector, sink, hop(TlsMode.OPPORTUNISTIC)))[0] == CLEAR
        assert (sink.connections, sink.commands.count("STARTTLS")) == (4, 1)

        assert (await carried(connector, sink, hop(TlsMode.ENCRYPTED)))[0] == WAITS
        assert sink.commands.count("STARTTLS") == 2


@pytest.mark.parametrize(("oldest", "expected"), [("1.2", TLS), ("1.3", WAITS)])
async def test_a_connection_has_at_least_the_version_that_is_required(
    connector: SmtpConnector, tmp_path: Path, oldest: str, expected: str
) -> None:
    tls = context(tmp_path, SERVER)
    tls.maximum_version = ssl.TLSVersion.TLSv1_2
    async with Sink(tls=tls) as sink:
        found, _ = await carried(connector, sink, hop(TlsMode.REQUIRED, oldest=OldestTls(oldest)))

    assert found == expected


async def test_a_next_hop_by_tlsa_without_records_gets_nothing(
    connector: SmtpConnector, tmp_path: Path
) -> None:
    """Its certificate would be compared with nothing."""
    bare = replace(hop(TlsMode.REQUIRED, SERVER.record(3)), certificates=None)
    async with Sink(tls=context(tmp_path, SERVER)) as sink:
        assert (await carried(connector, sink, bare))[0] == WAITS


def test_certificates_are_compared_so_on_uvloop_as_in_the_pods(tmp_path: Path) -> None:
    async def run() -> None:
        connector = SmtpConnector(ehlo_name="relay.example")
        async with Sink(tls=context(tmp_path, SERVER, AUTHORITY)) as sink:
            right = hop(TlsMode.REQUIRED, AUTHORITY.record(2))
            wrong = hop(TlsMode.REQUIRED, ANOTHER.record(3))
            assert (await carried(connector, sink, right))[0] == TLS
            assert (await carried(connector, sink, wrong))[0] == WAITS

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


SCRIPT = """
d.example MX 10 localhost
localhost A 192.0.2.1
d.example AD; localhost AD; _25._tcp.localhost AD
"""


class Enforced:
    """A policy that lists some hosts."""

    def __init__(self, *hosts: str) -> None:
        self._policy = StsPolicy(StsMode.ENFORCE, hosts, timedelta(days=1))

    async def find(self, domain: str) -> DomainPolicy:
        return DomainPolicy(self._policy, "kept")


async def routed(
    script: str, honoured: PublishedSecurity, sts: Enforced | None = None
) -> ResolvedHop:
    """Return the next hop that routing finds, with the address of this machine."""
    async with running(DnsServer(SCRIPT + script)) as server:
        resolver = DnsResolver([NameServer("127.0.0.1", server.port)], timedelta(seconds=10))
        plan = RoutingPlan(RoutingTable(), security=MxSecurity(honoured=frozenset({honoured})))
        finder = RouteFinder(plan, resolver, SeededRandomness(), sts)
        route = await finder.route(RouteRequest("d.example"))
    assert isinstance(route, Route), route
    ((found,),) = route.tiers
    return replace(found, addresses=("127.0.0.1",))


@pytest.mark.parametrize(
    ("case", "expected"),
    [("right", TLS), ("pulled", WAITS), ("another authority", WAITS), ("another name", WAITS)],
)
async def test_mail_to_a_domain_with_an_enforced_policy_of_mta_sts(
    connector: SmtpConnector, tmp_path: Path, case: str, expected: str
) -> None:
    to = await routed("", PublishedSecurity.STS, Enforced("localhost"))
    async with sink_of(case, tmp_path) as sink:
        assert (await carried(connector, sink, to))[0] == expected


@pytest.mark.parametrize(
    ("server", "usage", "case", "expected"),
    [
        (SERVER, 3, "right", TLS),
        (SERVER, 3, "pulled", WAITS),
        (SERVER, 3, "another authority", WAITS),
        (SERVER, 3, "another name", WAITS),
        (AUTHORITY, 2, "right", TLS),
        (AUTHORITY, 2, "pulled", WAITS),
        (AUTHORITY, 2, "another authority", WAITS),
        (AUTHORITY, 2, "another name", WAITS),
        (SERVER, 1, "another name", TLS),  # unusable: encrypted, and not verified
        (SERVER, 1, "pulled", WAITS),
    ],
)
async def test_mail_to_a_server_with_tlsa_records(
    connector: SmtpConnector,
    tmp_path: Path,
    server: Issued,
    usage: int,
    case: str,
    expected: str,
) -> None:
    record = server.record(usage)
    script = f"_25._tcp.localhost TLSA {usage} 1 1 {record.data.hex()}"
    to = await routed(script, PublishedSecurity.DANE)
    async with sink_of(case, tmp_path) as sink:
        assert (await carried(connector, sink, to))[0] == expected
