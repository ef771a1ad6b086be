"""How long a client may take with all it says, on a loop whose time the test moves."""

from __future__ import annotations

import asyncio
from typing import cast

from postroad.adapters.machine.clocks import MachineChance, MachineClock
from postroad.adapters.network.serving import ServingWire
from postroad.intake.dialogue import Offer
from postroad.intake.patience import Patience
from postroad.intake.rights import Rights
from postroad.intake.sessions import Receiver, Session
from postroad.ports.queue import MailQueue
from support.accounts import Accounts
from support.moved_time import TURNS, move, run
from support.transports import FakeTransport

PATIENCE = Patience()
COMMAND, GRACE = PATIENCE.command.total_seconds(), PATIENCE.grace.total_seconds()
SESSION, RATE = PATIENCE.session.total_seconds(), PATIENCE.least_bytes_per_second

MAIL = b"MAIL FROM:<>\r\nRCPT TO:<b@dest.example>\r\nDATA\r\n"
TOO_LONG = b"421 4.7.0 this session is too long, come again\r\n"
TOO_SLOW = b"421 4.7.0 the mail comes too slowly\r\n"
IDLE = b"421 4.4.2 idle for too long\r\n"


class Talk:
    """A session, and a client that says what a test wants."""

    def __init__(self) -> None:
        self.queue = Accounts()
        self.transport = FakeTransport()
        self.wire = ServingWire()
        self.wire.connection_made(self.transport)
        offer = Offer("intake.example", 10**9)
        receiver = Receiver(
            cast("MailQueue", self.queue), offer, MachineClock(), MachineChance(), patience=PATIENCE
        )
        self._running = asyncio.create_task(
            Session(self.wire, receiver, Rights(may_relay=True)).run()
        )

    async def say(self, data: bytes) -> None:
        self.wire.data_received(data)
        for _ in range(TURNS):
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
            await talk.say(b"x" * 10**5)
            await move(PATIENCE.data_block.total_seconds() + 1)
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
            await talk.say(b"x" * 10**5)
            await move(60)
            await talk.say(b"\r\n.\r\n")
            assert talk.transport.written[-2].startswith(b"250 2.0.0 queued as ")
            assert talk.last == TOO_LONG

    run(sends())
