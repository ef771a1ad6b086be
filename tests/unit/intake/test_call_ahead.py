"""Recipients that the server of their domain is asked for."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from postroad.domain.smtp.replies import Reply
from postroad.intake import call_ahead
from postroad.intake.call_ahead import (
    AWAY_SECONDS,
    KNOWN,
    MAX_ASKED,
    STILL_KNOWN,
    UNKNOWN,
    CallAhead,
)
from postroad.intake.own_domains import UNKNOWN_RECIPIENT, OwnDomains
from postroad.intake.reply_texts import UNVERIFIED
from postroad.smtp.wire import ConnectionLost

THERE, NOT_THERE, LATER = Reply(250, ("ok",)), Reply(550, ("5.1.1 who",)), Reply(451, ("busy",))
ANN = "ann@example.org"


class Server:
    """What the server of the domain replies; the clock stands until a test moves it."""

    def __init__(self, *, is_backup: bool = False) -> None:
        self.reply: Reply | None = THERE
        self.asked = Counter[str]()
        self.now = 0.0
        self.gate = asyncio.Event()
        self.gate.set()
        self.recipients = CallAhead(self.ask, lambda: self.now, is_backup=is_backup)

    async def ask(self, recipient: str) -> Reply:
        self.asked[recipient] += 1
        await self.gate.wait()
        if self.reply is None:
            raise ConnectionLost("gone")
        return self.reply

    async def verdict(self, recipient: str = ANN) -> Reply | None:
        """Return what RCPT gets, as a session does it."""
        refusal = self.recipients.refusal(recipient)
        return await self.recipients.look_up(recipient) if refusal is UNVERIFIED else refusal


@pytest.mark.parametrize(
    ("reply", "verdict", "holds"),
    [
        (THERE, None, KNOWN),
        (NOT_THERE, UNKNOWN_RECIPIENT, UNKNOWN),
        (Reply(550, ("no such user",)), UNKNOWN_RECIPIENT, UNKNOWN),
        (LATER, UNVERIFIED, 0),
        (Reply(552, ("5.2.2 the mailbox is full",)), UNVERIFIED, 0),
        (Reply(554, ("5.7.1 you are blocked",)), UNVERIFIED, 0),
        (Reply(554, ("go away",)), UNVERIFIED, 0),
    ],
)
async def test_reply_of_the_server_holds_for_its_time(
    reply: Reply, verdict: Reply | None, holds: float
) -> None:
    server = Server()
    server.reply = reply
    assert await server.verdict() == verdict
    server.now = max(0.0, holds - 1)
    assert await server.verdict("Ann@Example.org") == verdict
    assert server.asked.total() == (1 if holds else 2)
    server.now = holds
    await server.verdict()
    assert server.asked.total() == (2 if holds else 3)


@pytest.mark.parametrize(("is_backup", "verdict"), [(False, UNVERIFIED), (True, None)])
async def test_server_that_is_away_is_asked_again_after_a_while(
    is_backup: bool, verdict: Reply | None
) -> None:
    server = Server(is_backup=is_backup)
    server.reply = None
    assert await server.verdict() == verdict
    server.reply, server.now = NOT_THERE, AWAY_SECONDS - 1
    assert await server.verdict() == verdict
    assert server.asked.total() == 1
    server.now = AWAY_SECONDS
    assert await server.verdict() == UNKNOWN_RECIPIENT


async def test_known_recipient_is_taken_for_days_while_the_server_is_away() -> None:
    server = Server()
    assert await server.verdict() is None
    server.reply, server.now = None, STILL_KNOWN - 1
    assert await server.verdict() is None
    server.now = STILL_KNOWN
    assert await server.verdict() == UNVERIFIED


async def test_recipient_is_asked_for_once_by_many_clients_and_few_at_a_time() -> None:
    server = Server(is_backup=True)
    server.gate.clear()
    same = [asyncio.create_task(server.verdict()) for _ in range(5)]
    others = [asyncio.create_task(server.verdict(f"r{each}@example.org")) for each in range(30)]
    for _ in range(100):
        await asyncio.sleep(0)
    assert server.asked.total() == MAX_ASKED
    same[0].cancel()
    server.reply = NOT_THERE
    server.gate.set()

    assert await asyncio.gather(*same[1:], *others) == [UNKNOWN_RECIPIENT] * 34
    assert set(server.asked.values()) == {1}
    assert server.asked.total() == 31


async def test_guesses_push_out_no_recipient_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_ahead, "MAX_REMEMBERED", 3)
    server = Server()
    await server.verdict()
    server.reply = NOT_THERE
    for number in range(5):
        await server.verdict(f"r{number}@example.org")

    assert server.recipients.refusal(ANN) is None
    assert [server.recipients.refusal(f"r{number}@example.org") for number in range(5)] == [
        *[UNVERIFIED] * 2, *[UNKNOWN_RECIPIENT] * 3,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("other", "recipient"),
    [("\u212aate@example.org", "kate@example.org"), ("ÄNN@example.org", "änn@example.org")],
)
async def test_reply_about_another_letter_says_nothing_of_a_recipient(
    other: str, recipient: str
) -> None:
    server = Server()
    server.reply = NOT_THERE
    assert await server.verdict(other) == UNKNOWN_RECIPIENT

    server.reply = THERE
    assert await server.verdict(recipient) is None
    assert await server.verdict(other) == UNKNOWN_RECIPIENT
    assert await server.verdict(recipient.replace("ate", "ATE")) is None
    assert server.asked == {other: 1, recipient: 1}


async def test_postmaster_is_taken_without_a_question() -> None:
    server = Server()
    domains = OwnDomains({"example.org": server.recipients})

    assert domains.refusal("Postmaster@example.org") is None
    assert domains.refusal(ANN) is UNVERIFIED
    assert await domains.look_up(ANN) is None
    assert server.asked.total() == 1
