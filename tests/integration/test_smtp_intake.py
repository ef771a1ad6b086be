"""The intake over real sockets: a mail with a 250 is queued as it came, whatever its client
does."""

import asyncio
import gc
import logging
import smtplib
import socket
import ssl
import tempfile
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from email import message_from_bytes
from pathlib import Path
from typing import cast

import pytest
import uvloop

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.domain.mail.mail import Mail, Origin, Outcome, OutcomeKind
from postroad.domain.mail.shapes import MAX_RECEIVED_FIELDS
from postroad.domain.smtp.next_hops import NextHop, TlsMode
from postroad.domain.values.networks import EVERY_ADDRESS, NO_ADDRESS
from postroad.errors import BrokerUnavailable, PostroadError, StoreFull
from postroad.intake.clients import ClientLimits, Clients, Rules
from postroad.intake.context import ClientTimeouts, IntakeContext
from postroad.intake.dialogue import Dialogue, Offer, ReplyAndStep
from postroad.intake.server import SmtpServer
from postroad.intake.sessions import BURST, IntakeSession
from postroad.ports.mail_queue import MailQueue
from support.certificates import Certificates
from support.mails import samples
from support.one_hop import OneHop
from support.recording_queue import RecordingQueue

MAX_RECIPIENTS = 100
MEBIBYTE = 2**20


class Client:
    """A client that sends exactly the lines of the test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def reply(self) -> str:
        lines = [(await self.reader.readline()).decode()]
        while lines[-1][3:4] == "-":
            lines.append((await self.reader.readline()).decode())
        return lines[-1].rstrip()

    async def say(self, *lines: str) -> list[str]:
        replies = []
        for line in lines:
            self.writer.write(line.encode() + b"\r\n")
            replies.append(await self.reply())
        return replies

    async def envelope(self, recipient: str = "b@dest.example") -> None:
        """Send all commands up to and including DATA."""
        replies = await self.say("MAIL FROM:<a@origin.example>", f"RCPT TO:<{recipient}>", "DATA")
        assert [reply[:3] for reply in replies] == ["250", "250", "354"]

    async def is_gone(self) -> bool:
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True  # octets on their way to the server make TCP reset


class Intake:
    """A listening intake over a queue that records its mails."""

    def __init__(self, queue: RecordingQueue, server: SmtpServer) -> None:
        self.queue = queue
        self.server = server

    @asynccontextmanager
    async def client(
        self, hello: str | None = "EHLO client.example", *, address: str = "127.0.0.1"
    ) -> AsyncIterator[Client]:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.server.port, local_addr=(address, 0)
        )
        client = Client(reader, writer)
        if hello is not None:
            assert (await client.reply()).startswith("220 intake.example")
            await client.say(hello)
        try:
            yield client
        finally:
            writer.transport.abort()


@asynccontextmanager
async def an_intake(
    *,
    max_size_bytes: int = 2 * MEBIBYTE,
    max_sessions: int = 50,
    tls: ssl.SSLContext | None = None,
    timeouts: ClientTimeouts | None = None,
    client_limits: ClientLimits | None = None,
    normalises_line_ends: bool = False,
) -> AsyncIterator[Intake]:
    queue = RecordingQueue()
    context = IntakeContext(
        cast("MailQueue", queue),
        Offer("intake.example", max_size_bytes, max_recipients=MAX_RECIPIENTS),
        MachineClock(),
        SystemRandomness(),
        None if tls is None else lambda: tls,
        timeouts or ClientTimeouts(),
        rules=Rules(normalise_from=EVERY_ADDRESS if normalises_line_ends else NO_ADDRESS),
    )
    server = SmtpServer(
        context, max_sessions=max_sessions, clients=Clients(client_limits or ClientLimits())
    )
    await server.listen("127.0.0.1", 0)
    try:
        yield Intake(queue, server)
    finally:
        queue.gate.set()
        await server.drain(timedelta(seconds=1))


def without_trace(content: bytes) -> bytes:
    """The content without the field that the intake added: three lines."""
    assert content.startswith(b"Received: from ")
    return content.split(b"\r\n", 3)[3]


async def test_mails_of_every_shape_are_queued_as_they_came() -> None:
    """Our own transport sends a pipelined mail; its envelope arrives whole."""
    sent = list(samples(200))
    async with an_intake() as intake:
        relay = OneHop(
            NextHop("127.0.0.1", intake.server.port, TlsMode.NONE), ehlo_name="client.example"
        )

        async def send(mail: Mail) -> dict[str, Outcome]:
            async def octets() -> AsyncIterator[bytes]:
                assert isinstance(mail.content, bytes)
                yield mail.content

            assert isinstance(mail.content, bytes)
            return dict(await relay.transmit(mail.envelope, octets(), len(mail.content)))

        outcomes = await asyncio.gather(*(send(sample.mail) for sample in sent))
        await relay.close()

    assert {o.kind for each in outcomes for o in each.values()} == {OutcomeKind.DELIVERED}
    arrived = {without_trace(content): mail for mail, content in intake.queue.mails}
    assert len(intake.queue.mails) == len(arrived) == 200
    for sample in sent:
        mail = arrived[sample.sent]
        assert (mail.sender, mail.recipients) == (sample.sender, sample.recipients)
        assert mail.dsn is None  # not offered, so the transport does not ask for it


async def test_another_implementations_client_is_understood() -> None:
    async with an_intake() as intake:

        def send() -> dict[str, tuple[int, bytes]]:
            with smtplib.SMTP("127.0.0.1", intake.server.port, "other.example") as client:
                return client.sendmail(
                    "a@origin.example",
                    ["b@dest.example", "c@dest.example"],
                    b"Subject: x\r\n\r\n.dot\r\n\r\n..\r\n\xe4\r\n",
                    mail_options=["BODY=8BITMIME", "RET=HDRS"],
                    rcpt_options=["NOTIFY=FAILURE"],
                )

        refused = await asyncio.to_thread(send)

    assert refused == {}
    [(mail, content)] = intake.queue.mails
    assert without_trace(content) == b"Subject: x\r\n\r\n.dot\r\n\r\n..\r\n\xe4\r\n"
    assert mail.recipients == ("b@dest.example", "c@dest.example")
    assert mail.origin == Origin("other.example", "127.0.0.1", "ESMTP")


async def test_the_trace_field_leads_to_the_mail_in_the_queue() -> None:
    async with an_intake() as intake, intake.client() as client:
        await client.envelope()
        [reply] = await client.say("Subject: x\r\n\r\nbody\r\n.")

    [(mail, content)] = intake.queue.mails
    trace = message_from_bytes(content)["Received"]
    assert f"id {mail.name};" in trace
    assert "from client.example ([127.0.0.1])" in trace.replace("\r\n\t", " ")
    assert reply == "250 2.0.0 queued as 00000000-0000-0000-0000-000000000001"


async def test_250_is_sent_only_after_the_queue_has_the_mail() -> None:
    async with an_intake() as intake, intake.client() as client:
        intake.queue.gate.clear()
        await client.envelope()
        client.writer.write(b"x\r\n.\r\n")
        reply = asyncio.create_task(client.reply())
        done, _ = await asyncio.wait([reply], timeout=0.05)
        assert not done
        intake.queue.gate.set()

        assert (await reply).startswith("250 ")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (BrokerUnavailable("secret host down"), "451 4.3.0 not now, come again"),
        (StoreFull(), "452 4.3.1 no space left, come again"),
        (PostroadError("odd"), "451 4.3.0 not now, come again"),
        (RuntimeError("a bug"), "451 4.3.0 not now, come again"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_a_failing_queue_makes_the_client_keep_its_mail(
    error: Exception, expected: str
) -> None:
    async with an_intake() as intake, intake.client() as client:
        intake.queue.error = error
        await client.envelope()
        first = await client.say("x\r\n.")
        intake.queue.error = None
        await client.envelope()
        second = await client.say("y\r\n.")

    assert first == [expected]
    assert second[0].startswith("250 ")
    assert [without_trace(content) for _, content in intake.queue.mails] == [b"y\r\n"]


async def test_too_large_a_mail_is_refused_when_announced_and_when_sent() -> None:
    async with an_intake(max_size_bytes=300_000) as intake, intake.client() as client:
        announced = await client.say("MAIL FROM:<> SIZE=300001")
        await client.envelope()
        sent = await client.say("x" * 300_001 + "\r\n.")
        await client.envelope()
        after = await client.say("fits\r\n.")

    assert announced == ["552 5.3.4 the mail is larger than accepted"]
    assert sent == announced
    assert after[0].startswith("250 ")
    assert len(intake.queue.mails) == 1


async def test_a_mail_for_which_there_is_no_room_is_refused_before_it_comes() -> None:
    async with an_intake() as intake, intake.client() as client:
        intake.queue.room_bytes = 1000
        replies = await client.say(
            "MAIL FROM:<a@origin.example> SIZE=1001", "MAIL FROM:<a@origin.example> SIZE=1000"
        )

    assert replies == ["452 4.3.1 no space left, come again", "250 2.1.0 ok"]


async def test_a_client_that_never_ends_its_mail_is_cut_off() -> None:
    async with an_intake(max_size_bytes=10_000) as intake, intake.client() as client:
        await client.envelope()
        client.writer.write(b"x" * 100_000)

        try:
            answer = await client.reader.read()
        except ConnectionResetError:
            answer = b""  # the reset came before the reply
        assert answer in (b"", b"552 5.3.4 the mail is larger than accepted\r\n")
    assert intake.queue.mails == []


async def test_a_large_mail_waits_in_a_file_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    line = b"y" * 76 + b"\r\n"
    body = line * (MEBIBYTE // len(line))
    async with an_intake() as intake, intake.client() as client:
        await client.envelope()
        client.writer.write(body + b".\r\n")
        reply = await client.reply()
        await client.envelope()
        client.writer.write(body)  # and then the client closes the connection
        await client.writer.drain()

    assert reply.startswith("250 ")
    assert [without_trace(content) for _, content in intake.queue.mails] == [body]
    assert list(tmp_path.iterdir()) == []


async def test_a_large_mail_that_no_file_takes_is_not_accepted_and_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    async with an_intake() as intake, intake.client() as client:
        await client.envelope()
        large = await client.say(("y" * 62 + "\r\n") * (MEBIBYTE // 64) + "MAIL FROM:<>\r\n.")
        await client.envelope()
        small = await client.say("fits\r\n.")

    assert large == ["452 4.3.1 no space left, come again"]
    assert small[0].startswith("250 ")
    assert [without_trace(content) for _, content in intake.queue.mails] == [b"fits\r\n"]


@pytest.mark.parametrize(
    "end",
    ["\n.\n", "\n.\r\n", "\r.\r", "\r\n.\n", "\r\n.\r", "\n\n.\r\n"],
    ids=repr,
)
async def test_a_mail_cannot_be_smuggled_inside_another(end: str) -> None:
    """Only CRLF.CRLF ends a mail. A mail that holds another program's end is refused whole."""
    smuggled = "MAIL FROM:<x@y.example>\r\nRCPT TO:<z@y.example>\r\nDATA\r\nsmuggled"
    async with an_intake() as intake, intake.client() as client:
        await client.envelope()
        replies = await client.say(f"Subject: x\r\n\r\nbody{end}{smuggled}\r\n.")
        after = await client.say("NOOP")

    assert replies == ["554 5.6.0 the mail holds a bare CR or LF"]
    assert after == ["250 2.0.0 ok"]
    assert intake.queue.mails == []


@pytest.mark.parametrize("end", ["\n.\n", "\n.\r\n", "\r.\r", "\r\n.\n", "\r\n.\r", "\r.\r\n"])
async def test_line_ends_that_are_made_crlf_smuggle_no_mail(end: str) -> None:
    inner = "MAIL FROM:<x@evil.example>\r\nRCPT TO:<b@dest.example>\r\nDATA\r\nforged"
    async with an_intake(normalises_line_ends=True) as intake, intake.client() as client:
        await client.envelope()
        reply = await client.say(f"outer{end}{inner}\r\n.")
        assert reply[0].startswith("250 ")
        assert await client.say("NOOP") == ["250 2.0.0 ok"]

    [(_, content)] = intake.queue.mails
    left = without_trace(content).replace(b"\r\n", b"")
    assert b"MAIL FROM:<x@evil.example>" in left
    assert b"\r" not in left
    assert b"\n" not in left


@pytest.mark.parametrize("end", ["\r\n\0.\r\n", "\r\n.\0\r\n", "\0\r\n.\0\r\n", "\r\n\0.\0\r\n"])
async def test_a_mail_with_nul_is_refused_to_its_end(end: str) -> None:
    async with an_intake() as intake, intake.client() as client:
        await client.envelope()
        replies = await client.say(f"Subject: x\r\n\r\nbody{end}MAIL FROM:<x@evil.example>\r\n.")
        after = await client.say("NOOP")

    assert replies == ["554 5.6.0 the mail holds a NUL octet"]
    assert after == ["250 2.0.0 ok"]
    assert intake.queue.mails == []


async def test_nul_is_left_out_of_mail_that_is_normalised() -> None:
    async with an_intake(normalises_line_ends=True) as intake, intake.client() as client:
        await client.envelope()
        reply = await client.say("a\0b\r\n\0.\r\nMAIL FROM:<x@evil.example>\r\n.")
        assert reply[0].startswith("250 ")
        assert await client.say("NOOP") == ["250 2.0.0 ok"]

    [(_, content)] = intake.queue.mails
    assert without_trace(content) == b"ab\r\n.\r\nMAIL FROM:<x@evil.example>\r\n"


async def test_a_command_with_a_bare_line_end_is_not_two_commands() -> None:
    async with an_intake() as intake, intake.client() as client:
        replies = await client.say("NOOP\nMAIL FROM:<a@b.example>", "RCPT TO:<a@b.example>")

    assert [reply[:3] for reply in replies] == ["500", "503"]


async def test_pipelined_commands_are_answered_in_order() -> None:
    async with an_intake() as intake, intake.client() as client:
        client.writer.write(
            b"MAIL FROM:<a@b.example>\r\nRCPT TO:<no>\r\nRCPT TO:<c@d.example>\r\nDATA\r\n"
        )
        envelope = [await client.reply() for _ in range(4)]
        client.writer.write(b"one\r\n.\r\nMAIL FROM:<>\r\nRCPT TO:<e@f.example>\r\nDATA\r\n")
        second = [await client.reply() for _ in range(4)]
        client.writer.write(b"two\r\n.\r\nQUIT\r\n")
        end = [await client.reply() for _ in range(2)]

    codes = [reply[:3] for reply in (*envelope, *second, *end)]
    assert codes == ["250", "501", "250", "354", "250", "250", "250", "354", "250", "221"]
    assert [without_trace(content) for _, content in intake.queue.mails] == [b"one\r\n", b"two\r\n"]


async def test_thousands_of_pipelined_commands_are_answered_and_delay_no_other_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count, answered, honest = 50 * BURST, list[bytes](), Dialogue.answer

    def answer(dialogue: Dialogue, line: bytes, *, is_followed: bool) -> ReplyAndStep:
        answered.append(line)
        return honest(dialogue, line, is_followed=is_followed)

    async with an_intake() as intake, intake.client() as busy, intake.client() as other:
        monkeypatch.setattr(Dialogue, "answer", answer)
        await busy.say("MAIL FROM:<>")
        recipients = b"".join(b"RCPT TO:<r%d@b.example>\r\n" % n for n in range(count))
        busy.writer.write(recipients + b"HELP\r\n")
        assert await other.say("RSET") == ["250 2.0.0 ok"]
        replies = [await busy.reply() for _ in range(count + 1)]

    refused = ["452 4.5.3 too many recipients"] * (count - MAX_RECIPIENTS)
    assert replies[:-1] == ["250 2.1.5 ok"] * MAX_RECIPIENTS + refused
    assert replies[-1].startswith("214 ")
    assert answered.index(b"RSET") < count, "it need not wait until the other is through"


async def test_all_commands_are_executed_though_the_client_sends_no_more() -> None:
    said = (
        b"body\r\n.\r\n"
        b"MAIL FROM:<>\r\nRCPT TO:<c@d.example>\r\nRCPT TO:<e@f.example>\r\nRSET\r\nQUIT\r\n"
    )
    async with an_intake() as intake, intake.client() as client:
        await client.envelope()
        client.writer.write(said)
        client.writer.write_eof()
        replies = (await client.reader.read()).decode().splitlines()

    assert [reply[:3] for reply in replies] == ["250", "250", "250", "250", "250", "221"]
    assert [without_trace(content) for _, content in intake.queue.mails] == [b"body\r\n"]


async def test_a_client_that_says_all_at_once_hands_in_no_mail() -> None:
    """The commands of a web page's request, and of a program that knows no SMTP, arrive all at
    once."""
    dialogue = b"HELO x\r\nMAIL FROM:<>\r\nRCPT TO:<a@b.example>\r\nDATA\r\nbody\r\n.\r\nQUIT\r\n"
    for said, last in (
        (dialogue, "554 5.5.0"),
        (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n" + dialogue, "421 4.7.0"),
    ):
        async with an_intake() as intake, intake.client(hello=None) as client:
            client.writer.write(said)
            replies = (await client.reader.read()).decode().splitlines()

        assert [reply[:9] for reply in replies[1:]] == [last]
        assert intake.queue.mails == []


async def test_one_malformed_recipient_in_each_of_many_mails_ends_no_session() -> None:
    async with an_intake() as intake, intake.client() as client:
        for _ in range(40):
            refused = await client.say("MAIL FROM:<a@origin.example>", "RCPT TO:<no>")
            assert [reply[:3] for reply in refused] == ["250", "501"]
            await client.say("RCPT TO:<b@dest.example>", "DATA")
            client.writer.write(b"body\r\n")
            assert (await client.say("."))[0].startswith("250 2.0.0")

    assert len(intake.queue.mails) == 40


async def test_a_bug_met_while_answering_ends_its_session_and_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(dialogue: Dialogue, line: bytes, *, is_followed: bool) -> object:
        raise ZeroDivisionError

    async with an_intake() as intake, intake.client() as client, intake.client() as other:
        with monkeypatch.context() as patched:
            patched.setattr(Dialogue, "answer", answer)
            client.writer.write(b"NOOP\r\n")
            assert await client.is_gone()
        assert await other.say("NOOP") == ["250 2.0.0 ok"]

    assert "unexpected error in a session" in caplog.text


@pytest.mark.parametrize("end", ["QUIT", "drain"])
async def test_a_session_that_is_over_waits_for_no_collector(end: str) -> None:
    async with an_intake() as intake:
        earlier = _sessions()
        gc.disable()
        try:
            async with intake.client() as client:
                [session] = [weakref.ref(each) for each in _sessions() if each not in earlier]
                await client.envelope()
                await client.say("x\r\n.")
                if end == "QUIT":
                    await client.say("QUIT")
                    assert await client.is_gone()
                else:
                    await intake.server.drain(timedelta(seconds=5))
            await intake.server.drain(timedelta(seconds=5))
            async with asyncio.timeout(60):  # the last steps of its task run after ours
                while session() is not None:
                    await asyncio.sleep(0.01)
        finally:
            gc.enable()


def _sessions() -> list[IntakeSession]:
    # A proxy whose object is gone has no class.
    return [each for each in gc.get_objects() if type(each) is IntakeSession]


async def test_a_mail_that_goes_round_in_circles_is_stopped() -> None:
    async with an_intake() as intake, intake.client() as client:
        await client.envelope()
        looping = await client.say("Received: x\r\n" * MAX_RECEIVED_FIELDS + "\r\nbody\r\n.")
        await client.envelope()
        well_travelled = await client.say(
            "Received: x\r\n" * (MAX_RECEIVED_FIELDS - 1) + "\r\nbody\r\n."
        )

    assert looping == ["554 5.4.6 too many hops: the mail goes round in circles"]
    assert well_travelled[0].startswith("250 ")


async def test_a_line_too_long_for_a_command_costs_nothing() -> None:
    async with an_intake() as intake, intake.client() as client:
        replies = await client.say("NOOP " + "x" * 500_000, "NOOP")

    assert replies == ["500 5.5.2 line too long", "250 2.0.0 ok"]


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n", b"EHLO client.example\r\n"])
async def test_a_client_that_is_sent_away_while_it_sends_gets_the_reply(sent: bytes) -> None:
    """A connection that is closed with unread input is reset, and the reply may be lost."""
    async with an_intake() as intake, intake.client(None) as client:
        await client.reply()
        client.writer.write(sent + b"NOOP\r\n" * 20_000)
        replies = await client.reader.read()

    assert replies in (
        b"421 4.7.0 this is a mail server\r\n",
        b"554 5.5.0 wait for the reply before sending more\r\n",
    )


async def test_a_client_that_goes_on_with_a_mail_that_is_far_too_large_gets_the_reply() -> None:
    async with an_intake(max_size_bytes=65536) as intake, intake.client() as client:
        await client.envelope()
        client.writer.write((b"x" * 998 + b"\r\n") * 4000)
        replies = await client.reader.read()

    assert replies == b"552 5.3.4 the mail is larger than accepted\r\n"


async def test_an_idle_client_is_sent_away() -> None:
    timeouts = ClientTimeouts(command=timedelta(milliseconds=50))
    async with an_intake(timeouts=timeouts) as intake, intake.client() as client:
        assert await client.reply() == "421 4.4.2 idle for too long"
        assert await client.is_gone()


async def test_a_client_that_stops_within_its_mail_is_sent_away_and_nothing_is_queued() -> None:
    timeouts = ClientTimeouts(data_block=timedelta(milliseconds=50))
    async with an_intake(timeouts=timeouts) as intake, intake.client() as client:
        await client.envelope()
        client.writer.write(b"Subject: half")

        assert await client.reply() == "421 4.4.2 idle for too long"
    assert intake.queue.mails == []


async def test_slow_clients_delay_no_other_client() -> None:
    async with an_intake() as intake, intake.client() as slow, intake.client() as fast:
        await slow.envelope("slow@dest.example")
        slow.writer.write(b"half a mail\r\n")
        await fast.envelope("fast@dest.example")
        await fast.say("quick\r\n.")
        assert [mail.recipients for mail, _ in intake.queue.mails] == [("fast@dest.example",)]
        assert (await slow.say("the rest\r\n."))[0].startswith("250 ")


async def test_a_client_that_finds_the_intake_full_waits_until_there_is_room() -> None:
    async with (
        an_intake(max_sessions=1) as intake,
        intake.client() as first,
        intake.client(hello=None) as second,
    ):
        greeting = asyncio.create_task(second.reply())
        assert await first.say("NOOP") == ["250 2.0.0 ok"]
        assert not greeting.done()
        first.writer.close()

        assert await greeting == "220 intake.example ESMTP"


async def test_a_full_intake_ends_a_session_that_makes_no_progress() -> None:
    timeouts = ClientTimeouts(stalled=timedelta())
    async with (
        an_intake(max_sessions=1, timeouts=timeouts) as intake,
        intake.client() as idle,
        intake.client(hello=None) as second,
    ):
        assert await second.reply() == "220 intake.example ESMTP"
        assert await idle.reply() == "421 4.4.2 idle for too long"


async def test_a_client_has_its_share_of_sessions_and_another_client_its_own() -> None:
    limits = ClientLimits(sessions=2)
    async with an_intake(client_limits=limits) as intake, AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(intake.client(address="127.0.0.1"))
        async with intake.client(hello=None, address="127.0.0.1") as third:
            reply = await third.reply()
            assert reply == "421 4.7.0 too many sessions from your address, come again"
            assert await third.is_gone()
        async with intake.client(address="127.0.0.2") as other:
            assert await other.say("NOOP") == ["250 2.0.0 ok"]


async def test_a_client_that_sends_too_many_mails_is_sent_away_at_mail() -> None:
    async with an_intake(client_limits=ClientLimits(mails_per_minute=1)) as intake:
        async with intake.client() as client:
            await client.envelope()
            assert (await client.say("x\r\n."))[0].startswith("250 ")
            reply = "421 4.7.0 too many mails from your address, come again"
            assert await client.say("MAIL FROM:<a@origin.example>") == [reply]
            assert await client.is_gone()
        async with intake.client(address="127.0.0.2") as other:
            await other.envelope()


async def test_a_drain_finishes_mails_and_sends_the_others_away() -> None:
    async with an_intake() as intake, intake.client() as idle, intake.client() as sending:
        port = intake.server.port
        await sending.envelope()
        sending.writer.write(b"half\r\n")
        draining = asyncio.create_task(intake.server.drain(timedelta(seconds=10)))
        assert await idle.reply() == "421 4.3.2 closing, come again"
        assert await idle.is_gone()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        replies = await sending.say("whole\r\n.")
        assert replies[0].startswith("250 ")
        assert await sending.reply() == "421 4.3.2 closing, come again"
        await draining

    assert [without_trace(content) for _, content in intake.queue.mails] == [b"half\r\nwhole\r\n"]


async def test_a_drain_cuts_off_who_does_not_finish() -> None:
    async with an_intake() as intake, intake.client() as client:
        await client.envelope()
        await intake.server.drain(timedelta(milliseconds=50))

        assert await client.is_gone()
    assert intake.queue.mails == []


async def test_mail_under_tls_is_accepted_and_said_to_be(certificates: Certificates) -> None:
    async with an_intake(tls=certificates.server_context()) as intake:

        def send() -> None:
            with smtplib.SMTP("localhost", intake.server.port, "other.example") as client:
                client.starttls(context=certificates.client_context())
                client.sendmail("a@origin.example", ["b@dest.example"], b"under TLS\r\n")

        await asyncio.to_thread(send)

    [(mail, content)] = intake.queue.mails
    assert mail.origin is not None
    assert mail.origin.protocol == "ESMTPS"
    assert b" with ESMTPS id " in content


async def test_commands_sent_in_clear_behind_starttls_are_not_taken(
    certificates: Certificates,
) -> None:
    async with an_intake(tls=certificates.server_context()) as intake, intake.client() as client:
        client.writer.write(b"STARTTLS\r\nMAIL FROM:<x@y.example>\r\n")

        assert (await client.reply()).startswith("220 ")
        assert await client.is_gone()


async def test_under_tls_nothing_is_done_for_a_client_that_took_its_leave_at_once(
    certificates: Certificates,
) -> None:
    """The client would not learn what happened to its mail, and send it again."""
    said = b"EHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<a@b.example>\r\nDATA\r\nx\r\n.\r\nQUIT\r\n"
    async with an_intake(tls=certificates.server_context()) as intake, intake.client() as client:
        assert (await client.say("STARTTLS"))[0].startswith("220 ")
        arrived, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = certificates.client_context()
        secured = context.wrap_bio(arrived, leaving, server_hostname="localhost")
        while True:
            try:
                secured.do_handshake()
                break
            except ssl.SSLWantReadError:
                client.writer.write(leaving.read())
                arrived.write(await client.reader.read(65536))
        secured.write(said)
        with suppress(ssl.SSLWantReadError):
            secured.unwrap()
        client.writer.write(leaving.read())  # all of it in one packet
        await client.is_gone()

    assert intake.queue.mails == []


def test_tls_and_a_drain_run_on_uvloop_as_in_the_pods(certificates: Certificates) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test_mail_under_tls_is_accepted_and_said_to_be(certificates))
        runner.run(test_commands_sent_in_clear_behind_starttls_are_not_taken(certificates))
        runner.run(
            test_under_tls_nothing_is_done_for_a_client_that_took_its_leave_at_once(certificates)
        )
        runner.run(test_a_drain_finishes_mails_and_sends_the_others_away())


async def test_a_client_that_leaves_at_any_moment_harms_no_other_client() -> None:
    said = b"EHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<a@b.example>\r\nDATA\r\nbody\r\n"
    async with an_intake() as intake:
        for length in range(0, len(said), 7):
            client = socket.create_connection(("127.0.0.1", intake.server.port))
            client.sendall(said[:length])
            client.close()
        async with intake.client() as other:
            assert await other.say("NOOP") == ["250 2.0.0 ok"]

    assert intake.queue.mails == []


WITH_CLIENT = ("command refused", "mail accepted", "mail refused")


async def test_the_log_names_the_client_of_a_refused_recipient_and_of_a_mail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "postroad.intake")
    async with an_intake() as intake, intake.client() as client:
        await client.say("MAIL FROM:<a@origin.example>", "RCPT TO:<no>")
        await client.say("RCPT TO:<b@dest.example>", "DATA")
        client.writer.write(b"body\r\n")
        await client.say(".")
        await client.envelope()
        client.writer.write(b"a bare\nline end\r\n")
        await client.say(".")

    lines = {each.message: vars(each) for each in caplog.records}
    clients = [lines[each]["client"] for each in WITH_CLIENT]
    assert clients == ["127.0.0.1"] * 3
    assert lines["command refused"]["command"] == "RCPT"
    assert not any("@dest" in str(each) for each in lines.values()), "it names no mailbox"
