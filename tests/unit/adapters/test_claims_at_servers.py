"""Claims on a keyspace and on a queue's objects: answers that no test can ask of a server."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from postroad.adapters.cassandra import statements
from postroad.adapters.cassandra.store import KEY, KeyspaceClaim
from postroad.adapters.rabbitmq import topology
from postroad.adapters.rabbitmq.management import Vhost
from postroad.adapters.rabbitmq.queue_users import QueueClaim
from postroad.adapters.rabbitmq.topology import Topology
from postroad.domain.queues.names import QueueName
from postroad.domain.queues.ownership import Claim, Claimant
from postroad.errors import BrokerRefused, BrokerUnavailable, ViewRefused
from support.scripted_session import ScriptedSession

FIRST = Claimant("one", "mail", "main")
SECOND = Claimant("two", "mail", "main")
APPLIED: list[dict[str, Any]] = [{"[applied]": True}]


def row(number: int, claimant: Claimant | None) -> dict[str, Any]:
    document = json.dumps(claimant.encode() if claimant else None)
    return {"sequence": number, "document": document, "[applied]": False}


@pytest.fixture
async def session() -> ScriptedSession:
    made = ScriptedSession()
    table = {"table_name": "configuration_events", "default_time_to_live": 0}
    made.schema = {"system_schema.tables": [table | {"compaction": {}, "gc_grace_seconds": 0}]}
    return made


def appended(session: ScriptedSession) -> list[tuple[int, str, object]]:
    """Return the number, the kind and the document of each claim that was to be appended."""
    sent = session.values_of(statements.APPEND_KEYSPACE_EVENT)
    assert all(each[0] == KEY for each in sent)
    return [(each[1], each[2], json.loads(each[4])) for each in sent]


async def test_a_keyspace_without_tables_has_no_claim(session: ScriptedSession) -> None:
    session.schema = {}

    assert await KeyspaceClaim(session).claim(FIRST) is None

    assert session.sent == []


async def test_a_claim_follows_those_that_were_released(session: ScriptedSession) -> None:
    session.answer(statements.SELECT_KEYSPACE_EVENTS, [row(1, FIRST), row(2, None)])
    session.answer(statements.APPEND_KEYSPACE_EVENT, APPLIED)

    claim = await KeyspaceClaim(session).claim(SECOND)

    assert claim == Claim.of(SECOND, 3, frozenset([FIRST.token]))
    assert appended(session) == [(3, "Claimed", SECOND.encode())]
    assert statements.APPEND_KEYSPACE_EVENT.everywhere


async def test_a_number_that_another_took_is_its_claim_or_its_release(
    session: ScriptedSession,
) -> None:
    session.answer(statements.SELECT_KEYSPACE_EVENTS, [])
    session.answer(statements.APPEND_KEYSPACE_EVENT, [row(1, FIRST)], [row(1, None)], APPLIED)
    claims = KeyspaceClaim(session)

    assert await claims.claim(SECOND) == Claim.of(FIRST, 1)
    assert await claims.claim(SECOND) == Claim.of(SECOND, 2)


async def test_a_claim_that_was_released_meanwhile_is_transferred_too(
    session: ScriptedSession,
) -> None:
    session.answer(statements.SELECT_KEYSPACE_EVENTS, [row(1, FIRST)])
    session.answer(statements.APPEND_KEYSPACE_EVENT, [row(2, None)], APPLIED)

    transferred = await KeyspaceClaim(session).transfer(Claim.of(FIRST, 1), SECOND)

    assert transferred == Claim.of(SECOND, 3, frozenset([FIRST.token]))
    assert [number for number, *_ in appended(session)] == [2, 3]


async def test_only_the_holder_releases_a_claim(session: ScriptedSession) -> None:
    session.answer(
        statements.SELECT_KEYSPACE_EVENTS, [row(1, FIRST)], [row(1, None)], [row(1, FIRST)]
    )
    session.answer(statements.APPEND_KEYSPACE_EVENT, APPLIED)
    claims = KeyspaceClaim(session)

    await claims.release(SECOND)
    await claims.release(FIRST)
    assert appended(session) == []
    await claims.release(FIRST)

    assert appended(session) == [(2, "Released", None)]


@pytest.mark.parametrize("document", ["{", "[1]", '{"kubernetes": "one"}', None])
async def test_a_claim_that_cannot_be_read_is_named(
    session: ScriptedSession, document: str | None
) -> None:
    session.answer(statements.SELECT_KEYSPACE_EVENTS, [{"sequence": 7, "document": document}])

    with pytest.raises(ViewRefused, match="claim 7 on the keyspace"):
        await KeyspaceClaim(session).claim(FIRST)


QUEUE = QueueName("mail", "outgoing")
INEQUIVALENT = (
    "PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for exchange 'x' in vhost '/':"
    " received 'postroad.{0}' but current is 'postroad.{1}', has alternate-exchange postroad.{1},"
)


class PlayedVhost:
    """A vhost that refuses to declare, as long as `refusal` says why."""

    def __init__(self, refusal: str = "", shown: object = None) -> None:
        self.refusal = refusal
        self.done: list[tuple[str, Topology]] = []
        self.management = None if shown is None else SimpleNamespace(exchange_arguments=self._show)
        self._shown = shown

    async def administer(self, action: Any, wanted: Topology) -> None:
        self.done.append((action.__name__, wanted))
        if action is topology.declare and self.refusal:
            raise BrokerRefused(self.refusal)

    async def _show(self, exchange: str) -> dict[str, object]:
        assert exchange == QUEUE.claim_exchange
        if isinstance(self._shown, Exception):
            raise self._shown
        return {"claimant": self._shown}

    @property
    def actions(self) -> list[str]:
        return [action for action, _ in self.done]


def claim_in(vhost: PlayedVhost) -> QueueClaim:
    return QueueClaim(cast("Vhost", vhost), QUEUE)


async def test_a_claim_at_rabbitmq_is_an_exchange_with_the_claimant() -> None:
    vhost = PlayedVhost()

    assert await claim_in(vhost).claim(FIRST) == Claim.of(FIRST)

    [(action, wanted)] = vhost.done
    [exchange] = wanted.exchanges
    assert (action, exchange.name) == ("declare", QUEUE.claim_exchange)
    assert exchange.arguments == {
        "alternate-exchange": f"postroad.{FIRST.token}",
        "claimant": json.dumps(FIRST.encode()),
    }
    assert wanted.queues == ()


@pytest.mark.parametrize(
    "shown", [None, BrokerUnavailable("away"), "{", "7", json.dumps(FIRST.encode())]
)
async def test_the_refusal_of_a_second_claim_tells_whose_the_first_is(shown: object) -> None:
    vhost = PlayedVhost(INEQUIVALENT.format(SECOND.token, FIRST.token), shown)

    claim = await claim_in(vhost).claim(SECOND)

    assert claim.token == FIRST.token
    assert (claim.claimant == FIRST) == (shown == json.dumps(FIRST.encode()))


async def test_a_refusal_that_is_cut_tells_that_there_is_a_claim() -> None:
    text = INEQUIVALENT.format(SECOND.token, FIRST.token)

    claim = await claim_in(PlayedVhost(text[: text.index("has alt")])).claim(SECOND)

    assert claim == Claim("", None)
    assert not claim.is_of(SECOND)


async def test_any_other_refusal_is_an_error() -> None:
    vhost = PlayedVhost("ACCESS_REFUSED - access to exchange 'x' refused")

    with pytest.raises(BrokerRefused, match="ACCESS_REFUSED"):
        await claim_in(vhost).claim(FIRST)


async def test_only_the_claim_that_was_found_is_transferred() -> None:
    vhost = PlayedVhost(INEQUIVALENT.format(SECOND.token, FIRST.token))
    found = Claim(FIRST.token, None)

    assert await claim_in(vhost).transfer(Claim("0" * 12, None), SECOND) == found
    await claim_in(vhost).release(SECOND)
    assert vhost.actions == ["declare"] * 2

    await claim_in(vhost).transfer(found, SECOND)
    assert vhost.actions[2:] == ["declare", "delete", "declare"]
