"""The SMTP transport hands mails to a real server over loopback, and records the outcomes of its
replies."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from email import message_from_bytes
from pathlib import Path

import pytest
import uvloop

from postroad.domain.mail.mail import Envelope, Origin, Outcome, OutcomeKind
from postroad.domain.smtp.next_hops import NextHop, Protocol, TlsMode
from postroad.errors import BlobsUnavailable
from postroad.smtp.client.connecting import Timeouts
from support.certificates import Certificates
from support.mails import Sample, samples
from support.one_hop import OneHop
from support.sink import EXTENSIONS, HANG_UP, SILENCE, Rule, Sink
from support.smtp_relay import a_mail, chunks, hand_over, kinds, refusing, relay_to


@pytest.mark.parametrize("extensions", [EXTENSIONS, EXTENSIONS[1:]], ids=["pipelined", "stepwise"])
async def test_mails_of_every_shape_arrive_as_they_were(extensions: tuple[str, ...]) -> None:
    sent = list(samples(34))
    async with Sink(extensions=extensions) as sink:
        relay = relay_to(sink)
        for sample in sent:
            outcomes = await hand_over(relay, sample.mail)
            assert set(kinds(outcomes).values()) == {OutcomeKind.DELIVERED}
        await relay.close()

    assert [each.content for each in sink.mails] == [sample.sent for sample in sent]
    assert [each.sender for each in sink.mails] == [sample.sender or "" for sample in sent]
    assert [tuple(each.recipients) for each in sink.mails] == [s.recipients for s in sent]
    assert sink.connections == 1


def test_mails_of_every_shape_arrive_on_uvloop_as_in_the_pods() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test_mails_of_every_shape_arrive_as_they_were(EXTENSIONS))


async def test_parameters_are_passed_on_where_they_are_offered() -> None:
    sample: Sample = next(each for each in samples() if each.shape == "dsn")
    async with Sink() as sink:
        relay = relay_to(sink)
        await hand_over(relay, sample.mail)
        await relay.close()
    async with Sink(extensions=()) as bare:
        relay = relay_to(bare)
        await hand_over(relay, sample.mail)
        await relay.close()

    assert sample.dsn is not None
    recipient = sample.recipients[0]
    assert sink.mails[0].mail_parameters == [
        f"SIZE={len(sample.content)}",
        f"RET={sample.dsn.ret}",
        f"ENVID=id+2B{sample.number}+20+3Dx",
    ]
    assert sink.mails[0].recipient_parameters[recipient] == [
        "NOTIFY=SUCCESS,FAILURE",
        f"ORCPT=rfc822;first+2B{recipient}",
    ]
    assert bare.mails[0].mail_parameters == []
    assert bare.mails[0].recipient_parameters[recipient] == []


async def test_each_recipient_gets_the_answer_that_was_given_for_it() -> None:
    def rule(verb: str, argument: str) -> str | None:
        if verb != "RCPT":
            return None
        return {"TO:<no": "550 5.1.1 no", "TO:<la": "450 4.2.1 later"}.get(argument[:6])

    recipients = ("yes@x.example", "no@x.example", "later@x.example", "yes2@x.example")
    async with Sink(rule) as sink:
        relay = relay_to(sink)
        outcomes = await hand_over(relay, a_mail(*recipients))
        await relay.close()

    assert outcomes == {
        "yes@x.example": Outcome.delivered("250 2.0.0 kept"),
        "no@x.example": Outcome.failed("550 5.1.1 no"),
        "later@x.example": Outcome.deferred("450 4.2.1 later"),
        "yes2@x.example": Outcome.delivered("250 2.0.0 kept"),
    }
    assert sink.mails[0].recipients == ["yes@x.example", "yes2@x.example"]


@pytest.mark.parametrize("extensions", [EXTENSIONS, ()], ids=["pipelined", "stepwise"])
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (refusing("MAIL", "550 5.7.1 not you"), OutcomeKind.FAILED),
        (refusing("MAIL", "451 4.3.0 later"), OutcomeKind.DEFERRED),
        (refusing("RCPT", "550 5.1.1 unknown"), OutcomeKind.FAILED),
        (refusing("RCPT", "552 too many recipients"), OutcomeKind.DEFERRED),
        (refusing("DATA", "554 5.6.0 no"), OutcomeKind.FAILED),
        (refusing("DATA", "451 4.3.0 no"), OutcomeKind.DEFERRED),
        (refusing("DATA", "250 ok"), OutcomeKind.DEFERRED),
        (refusing("MAIL", "250 ok\r\n250 stray"), OutcomeKind.DEFERRED),
        (refusing("MAIL", "530 5.7.0 first STARTTLS"), OutcomeKind.DEFERRED),
        (refusing("DOT", "554 5.6.0 no"), OutcomeKind.FAILED),
        (refusing("DOT", "452 4.3.1 full"), OutcomeKind.DEFERRED),
        (refusing("DOT", "421 4.3.2 going down"), OutcomeKind.DEFERRED),
        (refusing("RCPT", "421 4.3.2 going down"), OutcomeKind.DEFERRED),
        (refusing("CONNECT", "554 5.7.1 go away"), OutcomeKind.DEFERRED),
        (refusing("CONNECT", "not SMTP"), OutcomeKind.DEFERRED),
        (refusing("CONNECT", HANG_UP), OutcomeKind.DEFERRED),
        (refusing("MAIL", HANG_UP), OutcomeKind.DEFERRED),
        (refusing("DATA", HANG_UP), OutcomeKind.DEFERRED),
        (refusing("DOT", HANG_UP), OutcomeKind.DEFERRED),
    ],
)
async def test_a_failure_is_final_only_by_a_reply_of_the_next_hop(
    rule: Rule, expected: OutcomeKind, extensions: tuple[str, ...]
) -> None:
    async with Sink(rule, extensions=extensions) as sink:
        relay = relay_to(sink)
        outcomes = await hand_over(relay, a_mail("b@x.example", "c@x.example"))
        sink.rule = lambda verb, argument: None
        after = await hand_over(relay, a_mail("d@x.example"))
        await relay.close()

    assert set(kinds(outcomes).values()) == {expected}
    assert kinds(after) == {"d@x.example": OutcomeKind.DELIVERED}
    assert [each.recipients for each in sink.mails] == [["d@x.example"]]


async def test_a_loss_between_the_end_of_a_mail_and_its_answer_is_in_doubt() -> None:
    async with Sink(refusing("DOT", HANG_UP)) as sink:
        relay = relay_to(sink)
        outcomes = await hand_over(relay, a_mail())
        await relay.close()

    text = "451 4.4.2 the connection was lost; the end of the mail was sent, so it may be delivered"
    assert outcomes == {"b@dest.example": Outcome.deferred(text)}


async def test_a_data_reply_without_recipients_is_answered_with_a_lone_dot() -> None:
    """RFC 2920 3.1: a server may accept a pipelined DATA although every recipient was refused."""
    lines: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 x\r\n")
        replies = {b"EHLO": b"250-x\r\n250 PIPELINING", b"RCPT": b"550 no", b"DATA": b"354 go"}
        while line := await reader.readline():
            lines.append(line)
            reply = b"554 no recipients" if line == b".\r\n" else replies.get(line[:4], b"250 ok")
            writer.write(reply + b"\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    hop = NextHop("127.0.0.1", server.sockets[0].getsockname()[1], TlsMode.NONE)
    relay = OneHop(hop, ehlo_name="relay.example")
    outcomes = await hand_over(relay, a_mail())
    await relay.close()
    server.close()

    assert kinds(outcomes) == {"b@dest.example": OutcomeKind.FAILED}
    assert [line.split()[0] for line in lines] == [
        *(b"EHLO", b"MAIL", b"RCPT", b"DATA", b".", b"RSET", b"QUIT")
    ]


async def test_more_recipients_than_fit_one_group_are_all_answered() -> None:
    recipients = tuple(f"r{number}@x.example" for number in range(1000))
    async with Sink(refusing("RCPT", "550 no", "7@")) as sink:
        relay = relay_to(sink)
        outcomes = await hand_over(relay, a_mail(*recipients))
        await relay.close()

    assert list(outcomes) == list(recipients)
    assert sink.mails[0].recipients == [each for each in recipients if "7@" not in each]


async def test_nothing_is_sent_that_the_next_hop_cannot_take() -> None:
    needy = {
        "SMTPUTF8": a_mail("bü@x.example"),
        "8BITMIME": a_mail(content=b"Subject: \xff\r\n\r\n"),
        "SIZE 10": a_mail(),
    }
    offered = {"SMTPUTF8": (), "8BITMIME": (), "SIZE 10": ("SIZE 10",)}
    for need, mail in needy.items():
        async with Sink(extensions=offered[need]) as sink:
            relay = relay_to(sink)
            outcomes = await hand_over(relay, mail)
            await relay.close()

        assert set(kinds(outcomes).values()) == {OutcomeKind.FAILED}, need
        assert sink.mails == []


async def test_eight_bit_mail_is_converted_for_a_next_hop_without_8bitmime() -> None:
    header = b"Subject: x\r\nContent-Type: text/plain; charset=utf-8\r\nMIME-Version: 1.0\r\n"
    text = b"word \r\n" * 10_000 + "Grüße\r\n.\r\n".encode()
    content = header + b"Content-Transfer-Encoding: 8bit\r\n\r\n" + text
    async with Sink(extensions=("SIZE 104857600",)) as sink:
        relay = relay_to(sink)
        outcomes = await hand_over(relay, a_mail(content=content))
        await relay.close()

    assert kinds(outcomes) == {"b@dest.example": OutcomeKind.DELIVERED}
    [mail] = sink.mails
    assert mail.content.isascii()
    assert mail.content.startswith(header)
    assert message_from_bytes(mail.content).get_payload(decode=True) == text
    assert mail.mail_parameters == [f"SIZE={len(mail.content)}"]


async def test_signed_eight_bit_mail_fails_before_mail_where_it_cannot_be_converted() -> None:
    signed = b"DKIM-Signature: v=1; b=x\r\nSubject: x\r\n\r\n" + b"a\r\n" * 50_000 + b"\xff\r\n"
    async with Sink(extensions=()) as sink:
        relay = relay_to(sink)
        outcomes = await hand_over(relay, a_mail(content=signed))
        again = await hand_over(relay, a_mail())
        await relay.close()

    assert kinds(outcomes) == {"b@dest.example": OutcomeKind.FAILED}
    assert outcomes["b@dest.example"].text.startswith("554 5.6.3 ")
    assert kinds(again) == {"b@dest.example": OutcomeKind.DELIVERED}
    assert len(sink.mails) == sink.connections == 1  # the session goes on with the next mail


@pytest.mark.parametrize("known", [True, False], ids=["looked at", "not looked at"])
@pytest.mark.parametrize("size", [100, 100_000])
@pytest.mark.parametrize("has_8bit", [True, False])
async def test_eight_bits_are_declared_where_they_are_or_may_be(
    known: bool, size: int, has_8bit: bool
) -> None:
    content = b"a" * 98 + b"\r\n"
    content = content * (size // 100) + b"\xff" * has_8bit
    mail = a_mail(content=content)
    async with Sink() as sink:
        relay = relay_to(sink)
        if known:
            await hand_over(relay, mail)
        else:
            await relay.transmit(mail.envelope, chunks(content), len(content))
        await relay.close()

    may_have = has_8bit or (not known and size > 65536)
    assert ("BODY=8BITMIME" in sink.mails[0].mail_parameters) == may_have


async def test_a_large_mail_without_a_shape_is_looked_at_for_an_old_next_hop() -> None:
    text = b"Subject: x\r\n\r\n" + b"word\n" * 50_000
    for content in (text, text + b"\xff\n"):
        async with Sink(extensions=()) as sink:
            relay = relay_to(sink)
            await relay.transmit(a_mail().envelope, chunks(content), len(content))
            await relay.close()

        [mail] = sink.mails
        assert mail.content.isascii()
        assert mail.content.endswith(text.replace(b"\n", b"\r\n")[-100:]) == (content == text)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"Subject: x\n\n" + b"line\n" * 1000, id="line feeds"),
        pytest.param(b"Subject: x\r\n\r\n" + b".\r\n" * 1000, id="dots"),
        pytest.param(b"Subject: x\r\n\r\nno end", id="no end"),
        pytest.param(b"Subject: x\n\n" + b"." * 5000 + b"\r\n", id="a long line"),
    ],
)
async def test_the_size_that_is_declared_is_what_arrives(content: bytes) -> None:
    async with Sink() as sink:
        relay = relay_to(sink)
        await hand_over(relay, a_mail(content=content))
        await relay.close()

    [mail] = sink.mails
    assert mail.mail_parameters == [f"SIZE={len(mail.content)}"]


async def test_long_lines_are_folded_and_those_of_signed_mail_go_as_they_are() -> None:
    line = bytes(97 + number % 26 for number in range(100_000))
    plain = b"Subject: x\r\n\r\n" + line + b"\r\nend\r\n"
    signed = b"DKIM-Signature: v=1; b=x\r\n" + plain
    async with Sink() as sink:
        relay = relay_to(sink)
        for content in (plain, signed):
            await hand_over(relay, a_mail(content=content))
        await relay.close()

    folded, whole = sink.mails
    assert max(map(len, folded.content.split(b"\r\n"))) == 998
    assert folded.content.replace(b"\r\n ", b"") == plain
    assert whole.content == signed
    assert [each.mail_parameters for each in sink.mails] == [
        [f"SIZE={len(each.content)}"] for each in sink.mails
    ]


async def test_a_mail_that_came_by_smtputf8_leaves_by_it() -> None:
    envelope = Envelope("a@x.example", ("b@x.example",), origin=Origin(protocol="UTF8SMTPS"))
    async with Sink() as sink:
        relay = relay_to(sink)
        await relay.transmit(envelope, chunks(b"x\r\n"), 3)
        await relay.close()

    assert "SMTPUTF8" in sink.mails[0].mail_parameters


async def test_an_error_of_the_content_is_the_callers_and_no_half_mail_is_taken() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"Subject: x\r\n\r\n"
        raise BlobsUnavailable

    async with Sink() as sink:
        relay = relay_to(sink)
        with pytest.raises(BlobsUnavailable):
            await relay.transmit(a_mail().envelope, broken(), 100)
        await relay.close()

    assert sink.mails == []


async def test_a_session_the_server_closed_meanwhile_is_replaced_unseen() -> None:
    async with Sink() as sink:
        relay = relay_to(sink)
        await hand_over(relay, a_mail())
        once = iter([HANG_UP])
        sink.rule = lambda verb, argument: next(once, None) if verb == "MAIL" else None
        outcomes = await hand_over(relay, a_mail("c@x.example"))
        await relay.close()

    assert kinds(outcomes) == {"c@x.example": OutcomeKind.DELIVERED}
    assert sink.connections == 2


async def test_a_side_without_a_name_names_its_address() -> None:
    async with Sink() as sink:
        relay = relay_to(sink, ehlo_name=None)
        await hand_over(relay, a_mail())
        await relay.close()

    assert sink.commands[0] == "EHLO [127.0.0.1]"


@pytest.mark.parametrize("verb", ["CONNECT", "MAIL", "DATA", "DOT"])
async def test_a_silent_next_hop_is_given_up_in_time(verb: str) -> None:
    moment = timedelta(milliseconds=50)
    timeouts = Timeouts(*(moment for _ in range(8)))
    async with Sink(refusing(verb, SILENCE)) as sink:
        relay = relay_to(sink, timeouts=timeouts)
        outcomes = await hand_over(relay, a_mail())
        await relay.close()

    assert kinds(outcomes) == {"b@dest.example": OutcomeKind.DEFERRED}


async def test_a_port_without_a_listener_defers() -> None:
    async with Sink() as sink:
        pass
    relay = relay_to(sink)
    outcomes = await hand_over(relay, a_mail())
    await relay.close()

    assert kinds(outcomes) == {"b@dest.example": OutcomeKind.DEFERRED}


async def test_a_cancelled_transmission_leaves_no_half_mail() -> None:
    arrived = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"Subject: x\r\n\r\n"
        arrived.set()
        await asyncio.Event().wait()

    async with Sink() as sink:
        relay = relay_to(sink)
        task = asyncio.create_task(relay.transmit(a_mail().envelope, slow(), 100))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        outcomes = await hand_over(relay, a_mail())
        await relay.close()

    assert kinds(outcomes) == {"b@dest.example": OutcomeKind.DELIVERED}
    assert len(sink.mails) == 1


async def test_lmtp_answers_for_each_recipient_after_the_mail() -> None:
    async with Sink(refusing("DOT", "452 4.2.2 full", "c@"), lmtp=True) as sink:
        relay = relay_to(sink, protocol=Protocol.LMTP)
        outcomes = await hand_over(relay, a_mail("b@x.example", "c@x.example", "d@x.example"))
        await relay.close()

    assert sink.commands[0] == "LHLO relay.example"
    assert kinds(outcomes) == {
        "b@x.example": OutcomeKind.DELIVERED,
        "c@x.example": OutcomeKind.DEFERRED,
        "d@x.example": OutcomeKind.DELIVERED,
    }


@pytest.mark.parametrize("protocol", [Protocol.SMTP, Protocol.LMTP])
async def test_a_recipient_that_needs_smtputf8_fails_alone(protocol: Protocol) -> None:
    async with Sink(lmtp=protocol is Protocol.LMTP, extensions=("PIPELINING",)) as sink:
        relay = relay_to(sink, protocol=protocol)
        refused = await hand_over(relay, a_mail("bü@x.example", "b@x.example", "c@x.example"))
        taken = await hand_over(relay, a_mail("b@x.example", "c@x.example"))
        await relay.close()

    assert kinds(refused) == {"bü@x.example": OutcomeKind.FAILED}
    assert kinds(taken) == dict.fromkeys(("b@x.example", "c@x.example"), OutcomeKind.DELIVERED)
    assert [each.recipients for each in sink.mails] == [["b@x.example", "c@x.example"]]


async def test_lmtp_over_a_unix_socket_answers_for_each_recipient(tmp_path: Path) -> None:
    socket = tmp_path / "lmtp"
    relay = OneHop(NextHop.at_socket(socket), ehlo_name=None)
    before = await hand_over(relay, a_mail("b@x.example"))
    async with Sink(refusing("DOT", "552 5.2.2 full", "c@"), lmtp=True, socket=socket) as sink:
        outcomes = await hand_over(relay, a_mail("b@x.example", "c@x.example"))
        await relay.close()

    assert kinds(before) == {"b@x.example": OutcomeKind.DEFERRED}
    assert "No such file" in before["b@x.example"].text
    assert sink.commands[0] == "LHLO localhost"
    assert kinds(outcomes) == {
        "b@x.example": OutcomeKind.DELIVERED,
        "c@x.example": OutcomeKind.FAILED,
    }


@pytest.mark.parametrize(
    ("mode", "offered", "trusted", "host", "delivered", "secured"),
    [
        (TlsMode.NONE, True, True, "localhost", True, False),
        (TlsMode.OPPORTUNISTIC, False, True, "localhost", True, False),
        (TlsMode.OPPORTUNISTIC, True, False, "127.0.0.1", True, True),
        (TlsMode.REQUIRED, True, True, "localhost", True, True),
        (TlsMode.REQUIRED, True, False, "localhost", False, False),
        (TlsMode.REQUIRED, True, True, "127.0.0.1", False, False),
        (TlsMode.REQUIRED, False, True, "localhost", False, False),
    ],
)
async def test_tls_is_used_as_far_as_the_mode_says(
    certificates: Certificates,
    mode: TlsMode,
    offered: bool,
    trusted: bool,
    host: str,
    delivered: bool,
    secured: bool,
) -> None:
    async with Sink(tls=certificates.server_context() if offered else None) as sink:
        ca_file = certificates.authority if trusted else None
        relay = relay_to(sink, tls=mode, host=host, ca_file=ca_file)
        outcomes = await hand_over(relay, a_mail())
        await relay.close()

    expected = OutcomeKind.DELIVERED if delivered else OutcomeKind.DEFERRED
    assert kinds(outcomes) == {"b@dest.example": expected}
    assert [each.tls for each in sink.mails] == ([secured] if delivered else [])


def test_tls_runs_on_uvloop_as_in_the_pods(certificates: Certificates) -> None:
    async def required() -> None:
        async with Sink(tls=certificates.server_context()) as sink:
            relay = relay_to(
                sink, TlsMode.REQUIRED, host="localhost", ca_file=certificates.authority
            )
            await hand_over(relay, a_mail())
            await relay.close()
        assert [each.tls for each in sink.mails] == [True]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(required())
        runner.run(test_what_arrives_in_clear_before_tls_ends_the_session(certificates))


async def test_opportunistic_tls_goes_on_in_clear_where_tls_is_broken() -> None:
    async with Sink(refusing("STARTTLS", "220 come"), extensions=(*EXTENSIONS, "STARTTLS")) as sink:
        relay = relay_to(sink, tls=TlsMode.OPPORTUNISTIC)
        outcomes = await hand_over(relay, a_mail())
        await relay.close()

    assert kinds(outcomes) == {"b@dest.example": OutcomeKind.DELIVERED}
    assert [each.tls for each in sink.mails] == [False]


@pytest.mark.parametrize(
    ("tls", "outcome", "mails"),
    [
        (TlsMode.OPPORTUNISTIC, OutcomeKind.DELIVERED, 1),
        (TlsMode.REQUIRED, OutcomeKind.DEFERRED, 0),
    ],
)
async def test_a_next_hop_that_refuses_to_start_tls_gets_mail_in_clear_unless_tls_is_required(
    certificates: Certificates, tls: TlsMode, outcome: OutcomeKind, mails: int
) -> None:
    rule = refusing("STARTTLS", "454 4.7.0 not now")
    async with Sink(rule, extensions=(*EXTENSIONS, "STARTTLS")) as sink:
        relay = relay_to(sink, tls=tls, host="localhost", ca_file=certificates.authority)
        outcomes = await hand_over(relay, a_mail())
        await relay.close()

    assert kinds(outcomes) == {"b@dest.example": outcome}
    assert [each.tls for each in sink.mails] == [False] * mails


async def test_what_arrives_in_clear_before_tls_ends_the_session(
    certificates: Certificates,
) -> None:
    """A reply injected after STARTTLS must not count as a reply under TLS."""
    rule = refusing("STARTTLS", "220 go\r\n250 injected")
    async with Sink(rule, tls=certificates.server_context()) as sink:
        relay = relay_to(
            sink, tls=TlsMode.REQUIRED, host="localhost", ca_file=certificates.authority
        )
        outcomes = await hand_over(relay, a_mail())
        await relay.close()

    assert kinds(outcomes) == {"b@dest.example": OutcomeKind.DEFERRED}
    assert sink.mails == []


async def test_a_next_hop_whose_name_no_resolver_takes_defers() -> None:
    relay = OneHop(NextHop(f"{'x' * 64}.example", 25, TlsMode.NONE), ehlo_name="relay.example")
    outcomes = await hand_over(relay, a_mail())
    await relay.close()

    assert kinds(outcomes) == {"b@dest.example": OutcomeKind.DEFERRED}
