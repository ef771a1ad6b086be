"""Next hops that accept part of a mail at a time, reply early, or have dead addresses."""

import asyncio
import socket
from collections.abc import Iterator
from datetime import timedelta

import pytest

from postroad.domain.mail.mail import Envelope, Mail, Origin, Outcome, OutcomeKind
from postroad.domain.smtp.next_hops import NextHop, TlsMode
from postroad.smtp.client.connecting import Timeouts
from support.one_hop import OneHop
from support.sink import EXTENSIONS, Rule, Sink
from support.smtp_relay import a_mail, chunks, hand_over, kinds, relay_to

RECIPIENTS = tuple(f"r{number}@dest.example" for number in range(25))


def taking(most: int, reply: str) -> Rule:
    """Accept so many recipients in a transaction."""
    taken = 0

    def rule(verb: str, argument: str) -> str | None:
        nonlocal taken
        if verb == "MAIL":
            taken = 0
        if verb != "RCPT":
            return None
        taken += 1
        return None if taken <= most else reply

    return rule


@pytest.mark.parametrize(
    "reply",
    [
        "452 4.5.3 too many recipients",
        "452 too many",
        "552 too many",
        "451 4.5.3 Too many recipients",
    ],
)
@pytest.mark.parametrize("extensions", [EXTENSIONS, ()], ids=["pipelined", "stepwise"])
async def test_recipients_beyond_what_a_transaction_takes_are_left_for_the_next_one(
    reply: str, extensions: tuple[str, ...]
) -> None:
    async with Sink(taking(10, reply), extensions=extensions) as sink:
        relay = relay_to(sink)
        left = RECIPIENTS
        rounds = []
        while left:
            outcomes = await hand_over(relay, a_mail(*left))
            assert set(kinds(outcomes).values()) == {OutcomeKind.DELIVERED}
            rounds.append(len(outcomes))
            left = tuple(each for each in left if each not in outcomes)
        await relay.close()

    assert rounds == [10, 10, 5]
    assert sink.connections == 1
    assert [each.recipients for each in sink.mails] == [
        list(RECIPIENTS[start : start + 10]) for start in (0, 10, 20)
    ]
    offered = sum(command.startswith("RCPT") for command in sink.commands)
    assert offered == 25 + 15  # the session remembers the number after the first transaction


async def test_a_next_hop_without_room_for_one_recipient_defers() -> None:
    async with Sink(taking(0, "452 4.5.3 too many recipients")) as sink:
        relay = relay_to(sink)
        outcomes = await hand_over(relay, a_mail(*RECIPIENTS))
        await relay.close()

    assert kinds(outcomes) == dict.fromkeys(RECIPIENTS, OutcomeKind.DEFERRED)


async def test_a_full_disk_is_not_taken_for_too_many_recipients() -> None:
    async with Sink(taking(10, "452 4.3.1 insufficient storage")) as sink:
        relay = relay_to(sink)
        outcomes = await hand_over(relay, a_mail(*RECIPIENTS))
        await relay.close()

    assert [each.kind for each in outcomes.values()].count(OutcomeKind.DEFERRED) == 15


async def test_limits_that_the_next_hop_declares_are_kept() -> None:
    async with Sink(extensions=(*EXTENSIONS, "LIMITS RCPTMAX=20 MAILMAX=2")) as sink:
        relay = relay_to(sink)
        rounds = [len(await hand_over(relay, a_mail(*RECIPIENTS))) for _ in range(3)]
        await relay.close()

    assert rounds == [20, 20, 20]
    assert [each.connection for each in sink.mails] == [1, 1, 2]


@pytest.mark.parametrize(
    ("early", "kind"),
    [
        ("552 5.3.4 too big", OutcomeKind.FAILED),
        ("452 4.3.1 full", OutcomeKind.DEFERRED),
        ("250 2.0.0 kept", OutcomeKind.DEFERRED),
    ],
)
async def test_an_answer_in_the_midst_of_the_content_is_heard(
    early: str, kind: OutcomeKind
) -> None:
    content = b"Subject: x\r\n\r\n" + b"x" * 70 * 1024 + b"\r\n"
    async with Sink(lambda verb, argument: early if verb == "CONTENT" else None) as sink:
        relay = relay_to(sink)
        outcomes = await hand_over(relay, a_mail(content=content * 100))
        await relay.close()

    assert kinds(outcomes) == {"b@dest.example": kind}
    assert early[:3] in outcomes["b@dest.example"].text or kind is OutcomeKind.DEFERRED
    assert sink.mails == []


async def test_a_refusal_in_the_midst_of_the_only_piece_of_a_mail_is_its_outcome() -> None:
    content = b"Subject: x\r\n\r\n" + b"line\r\n" * 1_000_000
    early = "552 5.3.4 too big"
    async with Sink(lambda verb, argument: early if verb == "CONTENT" else None) as sink:
        relay = relay_to(sink)
        outcomes = await relay.transmit(a_mail().envelope, chunks(content, len(content)), 6_000_014)
        await relay.close()

    assert outcomes == {"b@dest.example": Outcome.failed(early)}


@pytest.fixture
def black_hole() -> Iterator[socket.socket]:
    """A listener on 127.0.0.2 that completes no connection: its backlog is full."""
    listener = socket.socket()
    listener.bind(("127.0.0.2", 0))
    listener.listen(0)
    waiting = []
    for _ in range(4):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(listener.getsockname())
        waiting.append(client)
    yield listener
    for each in (*waiting, listener):
        each.close()


async def test_each_address_of_a_next_hop_gets_its_own_time(
    black_hole: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = black_hole.getsockname()[1]
    resolved = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
        for address in ("127.0.0.2", "127.0.0.1")
    ]

    async def two_addresses(*args: object, **options: object) -> object:
        return resolved

    loop = asyncio.get_running_loop()
    async with Sink(port=port) as sink:
        relay = OneHop(
            NextHop("two.example", port, TlsMode.NONE),
            ehlo_name="relay.example",
            timeouts=Timeouts(connect=timedelta(milliseconds=300)),
        )
        with monkeypatch.context() as patched:
            patched.setattr(loop, "getaddrinfo", two_addresses)
            first = await hand_over(relay, a_mail())
        await relay.close()

    assert kinds(first) == {"b@dest.example": OutcomeKind.DELIVERED}
    assert sink.connections == 1


async def test_only_an_internationalised_mail_needs_smtputf8() -> None:
    origin = Origin(protocol="UTF8SMTPS")
    header, plain = (
        "Subject: Grüße\r\n\r\nx\r\n".encode(),
        b"Subject: x\r\n\r\nGr\xc3\xbc\xc3\x9fe\r\n",
    )
    cases = [
        (Envelope("a@x.example", ("b@x.example",), origin=origin), b"x\r\n", True),
        (Envelope("a@x.example", ("b@x.example",), origin=origin), plain, True),
        (Envelope("a@x.example", ("b@x.example",), origin=origin), header, False),
        (Envelope("a@bücher.example", ("b@bücher.example",)), b"x\r\n", True),
        (Envelope("bü@x.example", ("b@x.example",)), b"x\r\n", False),
    ]
    for envelope, content, goes in cases:
        async with Sink(extensions=("8BITMIME",)) as sink:
            relay = relay_to(sink)
            outcomes = await relay.transmit(envelope, chunks(content), len(content))
            await relay.close()

        expected = OutcomeKind.DELIVERED if goes else OutcomeKind.FAILED
        assert {each.kind for each in outcomes.values()} == {expected}, envelope.recipients
        assert len(sink.mails) == goes
        if goes:
            assert sink.mails[0].sender.isascii()
            assert sink.mails[0].recipients[0].endswith((".example",))
            assert sink.mails[0].recipients[0].isascii()


async def test_a_domain_is_written_as_it_came_where_the_next_hop_takes_it() -> None:
    async with Sink() as sink:
        relay = relay_to(sink)
        await hand_over(relay, Mail("a@x.example", ("b@bücher.example",), b"x\r\n"))
        await relay.close()

    assert sink.mails[0].recipients == ["b@bücher.example"]
    assert "SMTPUTF8" in sink.mails[0].mail_parameters


async def test_a_next_hop_that_is_slow_over_recipients_gets_the_rest_in_another_transaction() -> (
    None
):
    async with Sink(extensions=()) as sink:
        timeouts = Timeouts(envelope=timedelta(0))
        relay = relay_to(sink, timeouts=timeouts)
        outcomes = await hand_over(relay, a_mail(*RECIPIENTS))
        await relay.close()

    assert kinds(outcomes) == {"r0@dest.example": OutcomeKind.DELIVERED}
    assert sink.mails[0].recipients == ["r0@dest.example"]
