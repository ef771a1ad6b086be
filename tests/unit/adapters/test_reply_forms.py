"""Replies in odd forms at each stage: what becomes of the recipient they are about, of the others
of the mail, and of other mail for the next hop."""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path

import pytest

from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.smtp.next_hops import HopLogin, Protocol
from postroad.domain.smtp.sasl_client import Mechanism
from postroad.ports.delivery import ConnectionClosed, ConnectionOpened, JobFinished
from support.connections import Events, a_job, body_of
from support.fake_hop import FakeHop, HopRule
from support.jumping_loop import jumping
from support.reply_forms import NO_REPLY, READABLE, UNCLEAR, ReplyForm
from support.smtp_connections import connect

DELIVERED, FAILED, DEFERRED = OutcomeKind.DELIVERED, OutcomeKind.FAILED, OutcomeKind.DEFERRED
FORMS = pytest.mark.parametrize("form", READABLE.values(), ids=READABLE)
CHUNKING = ("PIPELINING", "CHUNKING")
BOTH = [("PIPELINING",), ()]
BAD, GOOD, NEXT = "bad@dest.example", "good@dest.example", "b2@dest.example"


async def both_mails(
    hop: FakeHop, protocol: Protocol = Protocol.SMTP, login: HopLogin | None = None
) -> Events:
    """Transmit a mail to BAD and GOOD, then another one to NEXT over the same connection."""
    events = Events()
    connection = connect(hop, events, protocol=protocol, login=login)
    connection.submit(a_job(1, BAD, GOOD))
    while not events.finished and not any(isinstance(e, ConnectionClosed) for e in events.all):
        await events.next()
    connection.submit(a_job(2))
    while len(events.jobs) < 2:
        await events.next()
    connection.close()
    await events.until_closed()
    return events


def kept(hop: FakeHop) -> list[bytes]:
    return [hop.kept[number] + b"\r\n" for number in sorted(hop.taken)]


def end_of(events: Events) -> str:
    return next(each.text for each in events.all if isinstance(each, ConnectionClosed))


def is_failure_of_hop(events: Events) -> bool:
    """Return whether the next hop would rest, so that its other mail waits."""
    if ConnectionOpened() not in events.all:
        return True
    first = next(each for each in events.all if isinstance(each, JobFinished))
    return first.ended_session


def at(verb: str, reply: bytes, mail: int = 1) -> HopRule:
    """Reply so at one stage of a mail; to RCPT, to that of the first recipient."""
    count = 0

    def rule(given: str, number: int) -> bytes | None:
        nonlocal count
        if (verb, number) == ("MAIL", 1) and given in ("RCPT", "DATA") and b"550" in reply:
            return b"503 5.5.1 first MAIL\r\n"
        if given != verb or (number != mail and verb in ("MAIL", "RCPT", "DATA", "DOT")):
            return None
        count += 1
        return reply if verb != "RCPT" or count == 1 else None

    return rule


CONSENTS = {"GREETING": 220, "EHLO": 250, "MAIL": 250, "RCPT": 250, "DATA": 354, "DOT": 250,
            "QUIT": 221}  # fmt: skip


@FORMS
@jumping
async def test_a_consent_in_an_odd_form_delivers_to_all(form: ReplyForm) -> None:
    for (verb, code), extensions in product(CONSENTS.items(), BOTH):
        hop = FakeHop(at(verb, form(code)), extensions=extensions)
        started = asyncio.get_running_loop().time()

        events = await both_mails(hop)

        delivered = {1: {BAD: DELIVERED, GOOD: DELIVERED}, 2: {NEXT: DELIVERED}}
        assert events.finished == delivered, (verb, extensions)
        assert kept(hop) == [body_of(1), body_of(2)]
        assert not is_failure_of_hop(events)
        assert asyncio.get_running_loop().time() - started < 1, (verb, extensions)


REFUSED: dict[str, tuple[dict[str, OutcomeKind], int]] = {
    "MAIL": ({BAD: FAILED, GOOD: FAILED}, 1),
    "RCPT": ({BAD: FAILED, GOOD: DELIVERED}, 2),
    "DATA": ({BAD: FAILED, GOOD: FAILED}, 1),
    "DOT": ({BAD: FAILED, GOOD: FAILED}, 1),
}
"""Stage → the outcomes of the first mail, and how many mails the next hop has."""


@FORMS
@jumping
async def test_a_refusal_in_an_odd_form_is_one(form: ReplyForm) -> None:
    for (verb, (expected, mails)), extensions in product(REFUSED.items(), BOTH):
        hop = FakeHop(at(verb, form(550)), extensions=extensions)

        events = await both_mails(hop)

        assert events.finished == {1: expected, 2: {NEXT: DELIVERED}}, (verb, extensions)
        assert len(hop.taken) == mails
        assert not is_failure_of_hop(events)


@FORMS
@jumping
async def test_lmtp_replies_in_odd_forms_belong_to_their_recipients(form: ReplyForm) -> None:
    hop = FakeHop(at("DOT", form(550) + form(250)))

    events = await both_mails(hop, Protocol.LMTP)

    assert events.finished == {1: {BAD: FAILED, GOOD: DELIVERED}, 2: {NEXT: DELIVERED}}
    assert not is_failure_of_hop(events)


@FORMS
@jumping
async def test_a_reset_in_an_odd_form_lets_the_next_mail_follow(form: ReplyForm) -> None:
    def rule(verb: str, mail: int) -> bytes | None:
        if verb == "RSET":
            return form(250)
        return b"550 5.7.1 no\r\n" if mail == 1 and verb in ("MAIL", "RCPT", "DATA") else None

    events = await both_mails(FakeHop(rule))

    assert events.finished == {1: {BAD: FAILED, GOOD: FAILED}, 2: {NEXT: DELIVERED}}


@FORMS
@jumping
async def test_chunks_whose_replies_have_odd_forms_are_in_step(form: ReplyForm) -> None:
    stages = [*product(("RSET", "MAIL", "RCPT", "DOT"), (250,)), *product(("RCPT", "DOT"), (550,))]
    for verb, code in stages:
        events = Events()
        hop = FakeHop(at(verb, form(code), mail=3), extensions=CHUNKING)
        connection = connect(hop, events)
        for job in range(1, 6):
            connection.submit(a_job(job))
        await events.until_finished(5)
        connection.close()
        await events.until_closed()

        kinds = {job: next(iter(found.values())) for job, found in events.finished.items()}
        third = {3: FAILED} if code == 550 else {}
        assert kinds == dict.fromkeys(range(1, 6), DELIVERED) | third, (verb, code)
        assert hop.verbs.count("BDAT") >= 2


@pytest.mark.parametrize("code", [334, 235, 535])
@FORMS
async def test_a_login_goes_on_whatever_the_form_of_its_replies(
    form: ReplyForm, code: int, tmp_path: Path
) -> None:
    """A challenge of LOGIN means nothing, but it is in base64."""
    challenge = b"334 VXNlcm5hbWU6\r\n"
    if code == 334:
        challenge = form(334).replace(b"ok", b"VXNlcm5hbWU6")
    replies = iter([challenge, challenge, form(code) if code != 334 else b"235 ok\r\n"])
    (tmp_path / "username").write_text("user")
    (tmp_path / "password").write_text("secret")
    hop = FakeHop(extensions=("AUTH LOGIN",))
    hop.rule = lambda verb, mail: next(replies) if verb in LOGIN_STEPS else None

    login = HopLogin(tmp_path, Mechanism.LOGIN, is_sent_unverified=True)
    events = await both_mails(hop, login=login)

    if code == 535:
        assert end_of(events).startswith("451 4.7.8 the next hop refused the login: 535")
    elif code == 235:
        assert events.finished[2] == {NEXT: DELIVERED}
    else:
        assert events.finished.get(2) == {NEXT: DELIVERED} or "base64" in end_of(events)


LOGIN_STEPS = ("AUTH", "dXNlcg==", "c2VjcmV0", "*")


@pytest.mark.parametrize("form", UNCLEAR.values(), ids=UNCLEAR)
@jumping
async def test_an_unclear_reply_defers_whom_it_is_about_and_rests_no_hop(form: ReplyForm) -> None:
    for verb, extensions in product(("MAIL", "RCPT", "DATA", "DOT"), BOTH):
        hop = FakeHop(at(verb, form(0)), extensions=extensions)
        started = asyncio.get_running_loop().time()

        events = await both_mails(hop)

        assert events.finished[1][BAD] is DEFERRED
        assert events.finished[1][GOOD] is (DELIVERED if verb == "RCPT" else DEFERRED)
        assert events.finished.get(2, {NEXT: DELIVERED}) == {NEXT: DELIVERED}
        assert 2 in events.finished or events.untried == (2,), (verb, extensions)
        assert "4.5.0 the next hop replied" in events.texts[1], (verb, extensions)
        assert b"" not in hop.kept.values()
        assert not is_failure_of_hop(events), (verb, extensions)
        assert asyncio.get_running_loop().time() - started < 1


@pytest.mark.parametrize("form", UNCLEAR.values(), ids=UNCLEAR)
@jumping
async def test_an_unclear_reply_of_lmtp_defers_one_recipient(form: ReplyForm) -> None:
    hop = FakeHop(at("DOT", form(0) + b"250 kept\r\n"))

    events = await both_mails(hop, Protocol.LMTP)

    assert events.finished == {1: {BAD: DEFERRED, GOOD: DELIVERED}, 2: {NEXT: DELIVERED}}


@jumping
async def test_where_a_recipient_may_be_accepted_no_empty_mail_is_sent() -> None:
    """A next hop that took a recipient, and sent 999, takes the dot behind a 354 for a mail."""

    def rule(verb: str, mail: int) -> bytes | None:
        return b"999 what\r\n" if (verb, mail) == ("RCPT", 1) else None

    hop = FakeHop(rule)

    events = await both_mails(hop)

    assert set(events.finished[1].values()) == {DEFERRED}
    assert not hop.kept
    assert not is_failure_of_hop(events)


@pytest.mark.parametrize("form", NO_REPLY.values(), ids=NO_REPLY)
@jumping
async def test_what_is_no_reply_ends_the_session_at_once(form: ReplyForm) -> None:
    for (verb, code), extensions in product(CONSENTS.items(), BOTH):
        if verb == "QUIT":
            continue
        hop = FakeHop(at(verb, form(code)), extensions=extensions)
        started = asyncio.get_running_loop().time()

        events = await both_mails(hop)

        assert end_of(events).startswith("451 4.5.0"), (verb, extensions)
        assert set(events.finished.get(1, {}).values()) <= {DEFERRED}
        assert is_failure_of_hop(events)
        assert asyncio.get_running_loop().time() - started < 1, (verb, extensions)
