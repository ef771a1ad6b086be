"""How long a client may take with all it says, on a loop whose time the test moves."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.intake.clients import Rights
from postroad.intake.context import ClientTimeouts, IntakeContext
from postroad.intake.dialogue import Offer
from postroad.intake.sessions import IntakeSession
from postroad.ports.mail_queue import MailQueue
from postroad.smtp.server import ServingWire
from support.manual_loop import PASSES, move, run
from support.recording_queue import RecordingQueue
from support.transports import FakeTransport

TIMEOUTS = ClientTimeouts()
COMMAND, GRACE = TIMEOUTS.command.total_seconds(), TIMEOUTS.grace.total_seconds()
STALLED = TIMEOUTS.stalled.total_seconds()
SESSION, RATE = TIMEOUTS.session.total_seconds(), TIMEOUTS.least_bytes_per_second

MAIL = b"MAIL FROM:<>\r\nRCPT TO:<b@dest.example>\r\nDATA\r\n"
TOO_LONG = b"421 4.7.0 this session is too long, come again\r\n"
TOO_SLOW = b"421 4.7.0 the mail comes too slowly\r\n"
IDLE = b"421 4.4.2 idle for too long\r\n"


class Talk:
    """A session, and a client that says what a test wants."""

    def __init__(self) -> None:
        self.queue = RecordingQueue()
        self.transport = FakeTransport()
        self.wire = ServingWire()
        self.wire.connection_made(self.transport)
        offer = Offer("intake.example", 10**9)
        context = IntakeContext(
            cast("MailQueue", self.queue),
            offer,
            MachineClock(),
            SystemRandomness(),
            timeouts=TIMEOUTS,
        )
        self.session = IntakeSession(self.wire, context, Rights(may_relay=True))
        self._running = asyncio.create_task(self.session.run())

    async def say(self, data: bytes) -> None:
        self.wire.data_received(data)
        for _ in range(PASSES):
            await asyncio.sleep(0)

    @property
    def last(self) -> bytes:
        return self.transport.written[-1]

    async def __aenter__(self) -> Talk:
        await self.say(b"")
        await self.say(b"EHLO x\r\n")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.wire.connection_lost(None)
        await self._running


def test_a_command_has_its_time_as_a_whole_however_its_octets_come() -> None:
    async def dripped() -> None:
        async with Talk() as talk:
            for _ in range(int(COMMAND) - 1):
                await talk.say(b"x")
                await move(1)
            assert talk.last != IDLE
            await move(1)
            assert talk.last == IDLE

    run(dripped())


def test_a_mail_that_comes_a_block_now_and_then_is_cut_off() -> None:
    """The same blocks, one each two minutes, keep a session open for ever when each of them renews
    the client's time."""

    async def dripped() -> None:
        async with Talk() as talk:
            await talk.say(MAIL)
            for _ in range(2):
                await talk.say(b"x")
                await move(120)
            assert talk.last.endswith(b"354 end with <CRLF>.<CRLF>\r\n")
            await talk.say(b"x")
            await move(GRACE - 239)
            assert talk.last == TOO_SLOW
        assert talk.queue.mails == []

    run(dripped())


def test_a_mail_that_comes_just_fast_enough_is_accepted() -> None:
    async def steady() -> None:
        async with Talk() as talk:
            await talk.say(MAIL)
            for _ in range(8):
                await talk.say((b"x" * 78 + b"\r\n") * (60 * RATE // 80 + 1))
                await move(60)
            await talk.say(b"\r\n.\r\n")
            assert talk.queue.mails

    run(steady())


def test_a_client_that_stops_within_its_mail_has_the_time_of_a_block() -> None:
    async def stops() -> None:
        async with Talk() as talk:
            await talk.say(MAIL)
            await talk.say((b"x" * 98 + b"\r\n") * 1000)
            await move(TIMEOUTS.data_block.total_seconds() + 1)
            assert talk.last == IDLE

    run(stops())


def test_noop_keeps_no_session_open_for_ever() -> None:
    async def noops() -> None:
        async with Talk() as talk:
            for _ in range(int(SESSION / 299)):
                await move(299)
                await talk.say(b"NOOP\r\n")
                assert talk.last == b"250 2.0.0 ok\r\n"
            await move(SESSION % 299 + 1)
            assert talk.last == TOO_LONG

    run(noops())


def test_a_session_that_is_too_long_ends_behind_its_mail() -> None:
    async def sends() -> None:
        async with Talk() as talk:
            for _ in range(int(SESSION / 240)):
                await move(239)
                await talk.say(b"NOOP\r\n")
            await talk.say(MAIL)
            await talk.say((b"x" * 98 + b"\r\n") * 1000)
            await move(60)
            await talk.say(b"\r\n.\r\n")
            assert talk.transport.written[-2].startswith(b"250 2.0.0 queued as ")
            assert talk.last == TOO_LONG

    run(sends())


@pytest.mark.parametrize("without_progress", [b"", b"NOOP\r\n", b"x", b"MAIL x\r\n"])
def test_a_session_without_progress_is_stalled_and_ends_when_it_makes_room(
    without_progress: bytes,
) -> None:
    async def stalls() -> None:
        async with Talk() as talk:
            for _ in range(int(STALLED) - 1):
                await talk.say(without_progress)
                await move(1)
            found = [talk.session.is_stalled]
            await move(1)
            found += [talk.session.is_stalled]
            assert found == [False, True]
            talk.session.make_room()
            await move(1)
            assert talk.last == IDLE

    run(stalls())


def test_a_session_with_a_mail_on_its_way_is_stalled_only_when_the_mail_is_slow() -> None:
    async def sends() -> None:
        async with Talk() as talk:
            await talk.say(MAIL)
            for _ in range(int(STALLED)):
                await talk.say(b"x" * (RATE - 2) + b"\r\n")
                await move(1)
                assert not talk.session.is_stalled
            for _ in range(int(STALLED) + 1):
                await talk.say(b"x")
                await move(1)
            assert talk.session.is_stalled
            talk.session.make_room()
            await move(1)
            assert talk.last == IDLE
        assert talk.queue.mails == []

    run(sends())


def test_a_session_that_waits_for_the_queue_is_not_stalled() -> None:
    async def waits() -> None:
        async with Talk() as talk:
            talk.queue.gate.clear()
            await talk.say(MAIL)
            await talk.say(b"x\r\n.\r\n")
            await move(2 * STALLED)
            assert not talk.session.is_stalled
            talk.queue.gate.set()
            await move(1)
            assert b"250 2.0.0 queued" in talk.last

    run(waits())


def test_a_client_that_does_not_read_its_answers_is_aborted_to_make_room() -> None:
    async def never_reads() -> None:
        async with Talk() as talk:
            talk.wire.pause_writing()
            await move(STALLED)
            assert talk.session.is_stalled
            talk.session.make_room()
            assert talk.transport.aborted == 1

    run(never_reads())
