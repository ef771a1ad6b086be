"""How long the answers of a name server hold, by what it sends beside them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from postroad.adapters.dns import KEPT_FAILURE, DnsResolver, NameServer
from postroad.routing.answers import Answer, AnswerKind, Question, RecordType
from support.dns_server import NEGATIVE_TTL_SECONDS, TTL_SECONDS, DnsServer, running

SCRIPT = """
    a        A   192.0.2.1
    hasty    CNAME a
    hasty    TTL 7
    partly   CNAME a ; partly TTL 9 ; partly !CNAME-ONLY
    vague    TXT x   ; vague  !NO-SOA
    vanished !NO-SOA
    ringed   CNAME ring ; ring CNAME ringed ; ringed !CNAME-ONLY ; ring !CNAME-ONLY
    shy      A   192.0.2.2 ; shy !NO-EDNS
    old      A   192.0.2.3 ; old !NOTIMP
"""


async def answer_to(name: str, server: DnsServer) -> Answer:
    resolver = DnsResolver([NameServer("127.0.0.1", server.port)], timedelta(seconds=10))
    (answer,) = await resolver.look_up(Question(name, RecordType.A))
    return answer


@pytest.mark.parametrize(
    ("name", "kind", "seconds"),
    [
        pytest.param("a", AnswerKind.RECORDS, TTL_SECONDS, id="records"),
        pytest.param("hasty", AnswerKind.RECORDS, 7, id="the shortest of a chain"),
        pytest.param("partly", AnswerKind.RECORDS, 9, id="the shortest of two messages"),
        pytest.param("gone", AnswerKind.NO_NAME, NEGATIVE_TTL_SECONDS, id="SOA, no name"),
        pytest.param("vague", AnswerKind.NO_DATA, 30, id="no SOA, no data"),
        pytest.param("vanished", AnswerKind.NO_NAME, 30, id="no SOA, no name"),
        pytest.param(
            "ringed", AnswerKind.UNAVAILABLE, KEPT_FAILURE.total_seconds(), id="endless chain"
        ),
        pytest.param("old", AnswerKind.UNAVAILABLE, KEPT_FAILURE.total_seconds(), id="refused"),
    ],
)
async def test_an_answer_holds_as_long_as_its_records_allow(
    name: str, kind: AnswerKind, seconds: float
) -> None:
    """Source: RFC 2181 5.2; RFC 2308 5; RFC 9520 3.2."""
    async with running(DnsServer(SCRIPT)) as server:
        answer = await answer_to(name, server)

    assert (answer.kind, answer.ttl.total_seconds()) == (kind, seconds)


async def test_a_chain_that_is_left_to_the_client_has_an_end() -> None:
    async with running(DnsServer(SCRIPT)) as server:
        answer = await answer_to("ringed", server)

        assert len(server.received) == 8
    assert "CNAME" in answer.reason


async def test_a_name_that_is_too_long_for_dns_does_not_exist() -> None:
    """As `_25._tcp.` before the longest name of a host."""
    async with running(DnsServer("a A 192.0.2.1")) as server:
        answer = await answer_to("_25._tcp." + ".".join(["a" * 62] * 4), server)

        assert (answer.kind, server.received) == (AnswerKind.NO_NAME, [])


async def test_a_server_without_edns_is_asked_without_it() -> None:
    """Source: RFC 6891 7."""
    async with running(DnsServer(SCRIPT)) as server:
        answer = await answer_to("shy", server)

        assert [each.has_edns for each in server.received] == [True, False]
    assert answer.addresses == ("192.0.2.2",)


async def test_a_failure_names_the_server_and_what_it_answered() -> None:
    async with running(DnsServer("a !REFUSED")) as server:
        answer = await answer_to("a", server)

        assert answer.reason == f"REFUSED from 127.0.0.1 port {server.port}"
        assert len(server.received) == 2, "each server is asked twice"
