"""A transaction assigns each reply to its command: whatever a next hop sends, `delivered` stands
only after the end of a mail that was written and answered with 2xx."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import timedelta
from typing import cast

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from postroad.domain.mail.mail import Envelope, Outcome, OutcomeKind
from postroad.domain.mail.shapes import shape_of
from postroad.domain.smtp.next_hops import NextHop, Protocol, TlsMode
from postroad.domain.smtp.replies import MAX_TEXT
from postroad.ports.delivery import at_once
from postroad.smtp.client.client import ClientWire, Exchange, SessionRefused
from postroad.smtp.client.connecting import Addresses, Timeouts
from postroad.smtp.client.opening import SessionTerms
from postroad.smtp.client.sessions import ClientSession
from postroad.smtp.client.transaction.content import OpenContent
from postroad.smtp.client.transaction.transactions import Outgoing
from postroad.smtp.wire import TooSlow, WireError
from support.transports import FakeTransport

BODY = b"Subject: x\r\n\r\n.first\r\nlast\r\n"
STUFFED = b"Subject: x\r\n\r\n..first\r\nlast\r\n.\r\n"
USUAL_TIMEOUTS, NO_TIME = Timeouts(), Timeouts(*(timedelta(milliseconds=1) for _ in range(9)))
"""The second is for a next hop that may be silent."""

ONE = Envelope("a@origin.example", ("b@dest.example",))
TWO = Envelope("a@origin.example", ("b@dest.example", "c@dest.example"))


class ScriptedHop(FakeTransport):
    """A next hop that answers each command, and the end of a mail, with the next piece of its
    script, whatever the command was. A piece is octets, which may hold no reply, half a reply or
    several; None hangs up."""

    def __init__(self, script: Iterable[bytes | None]) -> None:
        super().__init__()
        self.wire = ClientWire()
        self._script: Iterator[bytes | None] = iter(script)
        self._is_closed = False
        self._is_in_content = False
        self.received = b""
        self.said_after_end = b""
        """The replies after the end of a mail had arrived."""
        self.wire.connection_made(self)
        self._say()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.received += bytes(data)
        if self._is_in_content and not self.received.endswith(b"\r\n.\r\n"):
            return
        commands = 1 if self._is_in_content else bytes(data).count(b"\r\n")
        self._is_in_content = False
        for _ in range(commands):
            self._say()

    def is_closing(self) -> bool:
        return self._is_closed

    def abort(self) -> None:
        self._end()

    def close(self) -> None:
        self._end()

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def _say(self) -> None:
        piece = next(self._script, None)
        loop = asyncio.get_running_loop()
        if piece is None:
            loop.call_soon(self._end)
        else:
            loop.call_soon(self._deliver, piece, STUFFED in self.received)

    def _deliver(self, piece: bytes, is_after_end: bool) -> None:
        if not self._is_closed:
            if is_after_end:
                self.said_after_end += piece
            self._is_in_content |= b"354" in piece
            self.wire.data_received(piece)

    def _end(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.wire.connection_lost(None)


class OneAddress:
    """Leads to a scripted hop."""

    def __init__(self, hop: ScriptedHop) -> None:
        self._next_hop = hop

    async def connect(self, timeout: timedelta) -> ClientWire:
        return self._next_hop.wire


async def body() -> AsyncIterator[bytes]:
    for start in range(0, len(BODY), 9):
        yield BODY[start : start + 9]


async def opened(
    hop: ScriptedHop, protocol: Protocol = Protocol.SMTP, timeouts: Timeouts = USUAL_TIMEOUTS
) -> ClientSession:
    return await ClientSession.open(
        cast("Addresses", OneAddress(hop)),
        SessionTerms(
            NextHop("hop.example", 25, TlsMode.NONE, protocol), "relay.example", None, timeouts
        ),
    )


async def transmit(
    session: ClientSession, envelope: Envelope, content: OpenContent
) -> dict[str, Outcome]:
    """Take the steps of a connection with one mail."""
    mail = session.begin(envelope, content)
    if not isinstance(mail, Outgoing):
        return dict(mail)
    transaction = session.by_data(mail)
    try:
        await session.send(transaction.first_group)
        is_due = await transaction.offer() and await transaction.send_content(at_once)
        if is_due and await transaction.send_end():
            await transaction.conclude()
    except WireError as error:
        return session.interrupted(transaction, envelope, error)
    return session.settled(transaction, envelope)


async def hand_over(
    hop: ScriptedHop,
    envelope: Envelope,
    protocol: Protocol = Protocol.SMTP,
    timeouts: Timeouts = USUAL_TIMEOUTS,
) -> dict[str, Outcome]:
    try:
        session = await opened(hop, protocol, timeouts)
    except SessionRefused as error:
        return dict.fromkeys(envelope.recipients, Outcome.deferred(str(error)))
    content = await OpenContent.peek(body(), len(BODY), shape_of((BODY,)))
    outcomes = await transmit(session, envelope, content)
    session.abort()
    return outcomes


def lines(*replies: str) -> list[bytes]:
    return [f"{reply}\r\n".encode() for reply in replies]


PIPELINED = "250-hop\r\n250 PIPELINING"
GREETED = ["220 hop", PIPELINED]


@pytest.mark.parametrize("hello", [PIPELINED, "250 hop"], ids=["pipelined", "stepwise"])
async def test_a_consent_to_data_without_content_delivers_nothing(hello: str) -> None:
    hop = ScriptedHop(lines("220 hop", hello, "250 ok", "250 ok", "250 ok", "250 ok", "250 ok"))

    outcomes = await hand_over(hop, ONE)

    assert STUFFED not in hop.received
    assert outcomes["b@dest.example"].kind is OutcomeKind.DEFERRED


@pytest.mark.parametrize(
    "script",
    [
        ["220 hop", PIPELINED, "250 sender ok\r\n250 really ok", "250 rcpt", "354 go", "250 kept"],
        ["220 hop", "250 hop", "250 sender ok\r\n250 really ok", "250 rcpt", "354 go", "250 kept"],
        ["220 hop\r\n250 hop", "250 hop", "250 sender ok", "250 rcpt", "354 go", "250 kept"],
        ["220 hop", PIPELINED, "250 sender ok", "250 rcpt", "354 go\r\n250 stray", "250 kept"],
    ],
    ids=["after MAIL", "after MAIL, stepwise", "before EHLO", "after DATA"],
)
async def test_a_reply_to_no_command_delivers_nothing(script: list[str]) -> None:
    outcomes = await hand_over(ScriptedHop(lines(*script)), ONE)

    assert outcomes["b@dest.example"].kind is OutcomeKind.DEFERRED


@pytest.mark.parametrize("hello", [PIPELINED, "250 hop"], ids=["pipelined", "stepwise"])
@pytest.mark.parametrize("answers", [("550 5.1.1 b", "250 c"), ("250 b", "550 5.1.1 c")])
async def test_refusals_that_may_answer_other_commands_end_no_recipient(
    hello: str, answers: tuple[str, str]
) -> None:
    stray = "250 sender ok\r\n250 really ok"
    hop = ScriptedHop(lines("220 hop", hello, stray, *answers, "354 go"))

    outcomes = await hand_over(hop, TWO)

    assert {each.kind for each in outcomes.values()} == {OutcomeKind.DEFERRED}


@pytest.mark.parametrize("at", range(4), ids=["MAIL", "RCPT", "DATA", "end"])
@pytest.mark.parametrize(
    "reply",
    [
        "530 5.7.0 Must issue a STARTTLS command first",
        "534 5.7.9 mechanism too weak",
        "535 authentication failed",
        "538 encryption required",
        "502 not implemented",
        "503 bad sequence",
        "550 5.7.8 credentials invalid",
    ],
)
async def test_a_refusal_of_this_side_ends_no_mail(reply: str, at: int) -> None:
    usual = ["250 ok", "250 ok", "354 go", "250 kept"]
    script = [*usual[:at], reply, *usual[at + 1 :]]

    outcomes = await hand_over(ScriptedHop(lines("220 hop", "250 hop", *script)), ONE)

    assert outcomes["b@dest.example"].kind is OutcomeKind.DEFERRED
    assert reply in outcomes["b@dest.example"].text


@pytest.mark.parametrize("protocol", Protocol)
@pytest.mark.parametrize("at", range(4), ids=["MAIL", "RCPT", "DATA", "end"])
async def test_a_refusal_is_of_one_recipient_where_it_answers_that_alone(
    at: int, protocol: Protocol
) -> None:
    """A reply to MAIL, DATA or the end of a mail may be about its sender or its content."""
    usual = ["250 ok", "250 ok", "354 go", "250 kept"]
    script = [*usual[:at], "550 5.1.1 user unknown", *usual[at + 1 :]]

    outcomes = await hand_over(ScriptedHop(lines("220 hop", "250 hop", *script)), ONE, protocol)

    outcome = outcomes["b@dest.example"]
    assert outcome.kind is OutcomeKind.FAILED
    assert outcome.responder is not None
    answers_recipient = at == 1 or (at == 3 and protocol is Protocol.LMTP)
    assert outcome.responder.is_of_mail is not answers_recipient


@pytest.mark.parametrize(
    "kept",
    [b"250 " + b"x" * 60_000 + b"\r\n", b"250-kept\r\n" * 1000 + b"250 kept\r\n"],
    ids=["a long line", "many lines"],
)
async def test_a_reply_of_any_length_counts_by_its_code(kept: bytes) -> None:
    hop = ScriptedHop([*lines(*GREETED, "250 ok", "250 ok", "354 go"), kept])

    outcomes = await hand_over(hop, ONE)

    assert outcomes["b@dest.example"].kind is OutcomeKind.DELIVERED
    assert len(outcomes["b@dest.example"].text) <= MAX_TEXT


async def test_a_reply_has_its_timeout_as_a_whole() -> None:
    wire = ClientWire()
    wire.connection_made(FakeTransport())
    for number in range(50):
        line = b"250-more\r\n" if number < 49 else b"250 end\r\n"
        asyncio.get_running_loop().call_later(number / 100, wire.data_received, line)

    with pytest.raises(TooSlow):
        await Exchange(wire).reply(timedelta(seconds=0.1))


async def test_an_lmtp_hop_that_takes_no_recipient_is_not_waited_for() -> None:
    hop = ScriptedHop(lines(*GREETED, "250 ok", "550 5.1.1 no", "354 go"))

    outcomes = await hand_over(hop, ONE, Protocol.LMTP)

    assert outcomes == {"b@dest.example": Outcome.failed("550 5.1.1 no")}
    assert not hop.received.endswith(b".\r\n")


@pytest.mark.parametrize(
    ("refusal", "outcome"),
    [
        ("550 5.7.1 no", Outcome.failed("550 5.7.1 no")),
        ("451 4.7.1 later", Outcome.deferred("451 4.7.1 later")),
    ],
)
async def test_a_hop_that_takes_a_recipient_of_a_refused_mail_gets_no_empty_one(
    refusal: str, outcome: Outcome
) -> None:
    hop = ScriptedHop(lines(*GREETED, refusal, "250 ok", "354 go", "250 kept"))

    outcomes = await hand_over(hop, ONE)

    assert outcomes == {"b@dest.example": outcome}
    assert b"\r\n.\r\n" not in hop.received


@pytest.mark.parametrize("behind", [b"250 kept\r\n", None], ids=["answers on", "closes"])
async def test_lmtp_replies_that_come_behind_421_count(behind: bytes | None) -> None:
    """A proxy passes on what one of its back ends replies."""
    to = tuple(f"{each}@dest.example" for each in "bcd")
    hop = ScriptedHop(
        [
            *lines(*GREETED, *["250 ok"] * 4, "354 go"),
            b"250 kept\r\n421 4.3.2 going\r\n" + (behind or b""),
        ]
    )
    if behind is None:
        asyncio.get_running_loop().call_later(0.2, hop.abort)

    outcomes = await hand_over(hop, Envelope("a@origin.example", to), Protocol.LMTP)

    last = OutcomeKind.DEFERRED if behind is None else OutcomeKind.DELIVERED
    kinds = [outcomes[each].kind for each in to]
    assert kinds == [OutcomeKind.DELIVERED, OutcomeKind.DEFERRED, last]
    assert outcomes[to[1]].text == "421 4.3.2 going"


class SlowHop(ScriptedHop):
    """Accepts a mail, and replies to its end for one recipient after the other."""

    def __init__(self, recipients: int) -> None:
        super().__init__(lines(*GREETED, *["250 ok"] * (1 + recipients), "354 go"))
        self._recipients = recipients

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if STUFFED not in self.received + data:
            super().write(data)
            return
        for number in range(self._recipients):
            reply = f"250 {number}\r\n".encode()
            asyncio.get_running_loop().call_later(number / 20, self.wire.data_received, reply)


async def test_what_a_slow_lmtp_hop_has_answered_in_time_is_kept() -> None:
    envelope = Envelope("a@origin.example", tuple(f"{each}@dest.example" for each in range(20)))
    timeouts = Timeouts(all_ends=timedelta(seconds=0.3))

    outcomes = await hand_over(SlowHop(20), envelope, Protocol.LMTP, timeouts)

    kinds = [each.kind for each in outcomes.values()]
    answered = kinds.count(OutcomeKind.DELIVERED)
    assert 0 < answered < 20
    assert kinds[answered:] == [OutcomeKind.DEFERRED] * (20 - answered)


ODD = st.one_of(
    st.sampled_from(
        [
            b"",
            b"220 hop\r\n",
            b"250 ok\r\n",
            b"250 ok\r\n250 stray\r\n",
            b"25",
            b"250-",
            b"354 go\r\n",
            b"354 go\r\n250 stray\r\n",
            b"421 4.3.2 later\r\n",
            b"451 4.3.0 later\r\n",
            b"452 4.5.3 too many\r\n",
            b"530 5.7.0 first STARTTLS\r\n",
            b"550 5.1.1 no\r\n",
        ]
    ),
    st.binary(max_size=12),
    st.none(),
)
USUAL = lines("220 hop", PIPELINED, "250 sender", "250 b", "250 c", "354 go", "250 kept", "250 c")


@st.composite
def scripts(draw: st.DrawFn) -> list[bytes | None]:
    """A usual dialogue in which some pieces are replaced, left out or added."""
    script: list[bytes | None] = list(USUAL)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(script)))
        script[at : at + draw(st.integers(0, 1))] = draw(st.lists(ODD, max_size=2))
    return script


STREAMS = int(os.environ.get("POSTROAD_TEST_REPLY_STREAMS", "150"))
"""Random streams of replies; `make test` draws more."""


@settings(max_examples=STREAMS, deadline=None)
@given(scripts(), st.sampled_from(list(Protocol)))
def test_delivered_is_reported_only_after_an_end_that_was_answered(
    script: list[bytes | None], protocol: Protocol
) -> None:
    async def run() -> None:
        hop = ScriptedHop(script)
        outcomes = await hand_over(hop, TWO, protocol, NO_TIME)
        assert outcomes
        assert set(outcomes) <= set(TWO.recipients)
        if any(each.kind is OutcomeKind.DELIVERED for each in outcomes.values()):
            event("delivered")
            assert STUFFED in hop.received
            assert b"2" in hop.said_after_end

    asyncio.run(run())
