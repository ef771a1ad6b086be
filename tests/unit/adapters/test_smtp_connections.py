"""A connection: what is on the wire when, which reply belongs to which job, and what becomes of the
jobs wherever the next hop stops."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from itertools import repeat

import pytest

from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.mail.shapes import shape_of
from postroad.domain.smtp.next_hops import Protocol
from postroad.errors import BlobsUnavailable
from postroad.ports.delivery import ConnectionClosed, ConnectionOpened, JobFinished
from postroad.smtp.client.transaction.transactions import MAX_END
from support.connections import Events, HeldEnds, a_job, body_of
from support.fake_hop import CLOSE, FakeHop, HopRule
from support.jumping_loop import jumping
from support.smtp_connections import carried, connect

DELIVERED, FAILED, DEFERRED = OutcomeKind.DELIVERED, OutcomeKind.FAILED, OutcomeKind.DEFERRED
MODES = pytest.mark.parametrize("extensions", [("PIPELINING",), ()], ids=["pipelined", "stepwise"])


async def quiet(turns: int = 50) -> None:
    """Let all happen that waits for no time and no reply."""
    for _ in range(turns):
        await asyncio.sleep(0)


def silent_at(verb: str, mail: int) -> HopRule:
    return lambda given, number: b"" if (given, number) == (verb, mail) else None


@pytest.mark.parametrize("is_late", [False, True], ids=["waiting", "submitted afterwards"])
@MODES
async def test_the_next_mail_is_on_the_wire_before_the_end_of_a_mail_is_answered(
    extensions: tuple[str, ...], *, is_late: bool
) -> None:
    hop, events = FakeHop(silent_at("DOT", 1), extensions=extensions), Events()
    connection = connect(hop, events)
    connection.submit(a_job(1))
    if is_late:
        while hop.verbs[-1] != "DOT":
            await asyncio.sleep(0)
    connection.submit(a_job(2))
    connection.submit(a_job(3))
    await quiet()

    behind = hop.received.partition(body_of(1) + b".\r\n")[2]
    if extensions:
        assert behind == (
            b"MAIL FROM:<job2@origin.example>\r\nRCPT TO:<b2@dest.example>\r\nDATA\r\n"
        )
    else:
        assert behind == b""
    assert events.all == [ConnectionOpened()]

    hop.go_on(b"250 kept\r\n")
    await events.until_finished(3)
    connection.close()
    await events.until_closed()
    assert list(hop.kept.values()) == [body_of(job).removesuffix(b"\r\n") for job in (1, 2, 3)]
    assert events.finished == {job: {f"b{job}@dest.example": DELIVERED} for job in (1, 2, 3)}


async def test_the_next_mail_goes_in_one_write_with_the_end_of_the_mail_before() -> None:
    hop = FakeHop()
    await carried(hop, map(a_job, (1, 2)))

    assert any(body_of(1) + b".\r\nMAIL" in each for each in hop.written)


async def test_an_end_that_waits_blocks_neither_commands_nor_content() -> None:
    hop, events = FakeHop(), Events()
    held = HeldEnds(events, first=2)
    connection = connect(hop, events, before_end=held)
    large = b"Subject: x\r\n\r\n" + b"word\r\n" * 20_000
    for job in (a_job(1), a_job(2, content=large), a_job(3)):
        connection.submit(job)
    await held.until_held()
    await quiet()

    assert hop.received.endswith(large[-MAX_END:])
    assert hop.kept.keys() == {1}

    held.go_on()
    await events.until_finished(3)
    connection.close()
    await events.until_closed()
    assert hop.kept.keys() == {1, 2, 3}


@pytest.mark.parametrize("says", [b"", b"421 4.4.2 too slow\r\n"], ids=["closes", "421"])
async def test_a_next_hop_that_goes_while_an_end_waits_has_no_mail(says: bytes) -> None:
    hop, events = FakeHop(), Events()
    held = HeldEnds(events)
    connection = connect(hop, events, before_end=held)
    for job in (1, 2):
        connection.submit(a_job(job))
    await held.until_held()
    hop.say(says)
    hop.end()
    await quiet()
    held.go_on()
    await events.until_closed()

    assert events.finished == {1: {"b1@dest.example": DEFERRED}}
    assert "may be delivered" not in events.texts[1]
    assert (events.untried, hop.kept) == ((2,), {})


async def test_a_close_leaves_out_a_mail_whose_first_commands_went_out() -> None:
    """Its DATA cannot be taken back, so the connection ends without QUIT."""
    hop, events = FakeHop(silent_at("DOT", 1)), Events()
    connection = connect(hop, events)
    for job in (1, 2, 3):
        connection.submit(a_job(job))
    while hop.verbs[-1] != "DATA" or "DOT" not in hop.verbs:
        await asyncio.sleep(0)
    connection.close()
    hop.go_on(b"250 kept\r\n")
    await events.until_closed()

    assert events.finished == {1: {"b1@dest.example": DELIVERED}}
    assert (events.untried, list(hop.kept)) == ((2, 3), [1])
    assert hop.verbs[-1] == "DATA"


LATER = b"421 4.3.2 later\r\n"


@MODES
async def test_an_idle_session_ends_at_421_although_the_next_hop_does_not_close(
    extensions: tuple[str, ...],
) -> None:
    """What is submitted then is untried, and goes elsewhere."""
    hop, events = FakeHop(extensions=extensions), Events()
    connection = connect(hop, events)
    connection.submit(a_job(1))
    await events.until_finished(1)
    for _ in range(20):
        await asyncio.sleep(0)
    hop.say(LATER)
    connection.submit(a_job(2))
    await events.until_closed()

    assert events.finished == {1: {"b1@dest.example": DELIVERED}}
    assert events.untried == (2,)
    assert hop.is_closing()
    assert events.all[-1] == ConnectionClosed("421 4.3.2 later", (2,))


@pytest.mark.parametrize("verb", ["MAIL", "RCPT", "DATA", "CONTENT", "DOT"])
@MODES
async def test_421_is_the_reply_of_the_next_hop_wherever_it_comes(
    verb: str, extensions: tuple[str, ...]
) -> None:
    """Else it counts for no suspension of the site."""
    hop = FakeHop(lambda given, _: LATER if given == verb else None, extensions=extensions)
    events = await carried(hop, [a_job(1)])

    (finished,) = (each for each in events.all if isinstance(each, JobFinished))
    (outcome,) = finished.outcomes.values()
    assert (outcome.kind, outcome.text) == (DEFERRED, "421 4.3.2 later")
    assert outcome.responder is not None
    assert outcome.responder.host == "hop.example"


WHAT_BECOMES_OF_THREE_JOBS = {
    ("GREETING", 0): "untried untried untried",
    ("EHLO", 0): "untried untried untried",
    ("MAIL", 1): "deferred untried untried",
    ("RCPT", 1): "deferred untried untried",
    ("DATA", 1): "deferred untried untried",
    ("CONTENT", 1): "deferred untried untried",
    ("DOT", 1): "doubt untried untried",
    ("MAIL", 2): "delivered untried untried",
    ("RCPT", 2): "delivered untried untried",
    ("DATA", 2): "delivered deferred untried",
    ("CONTENT", 2): "delivered deferred untried",
    ("DOT", 2): "delivered doubt untried",
    ("MAIL", 3): "delivered delivered untried",
    ("RCPT", 3): "delivered delivered untried",
    ("DATA", 3): "delivered delivered deferred",
    ("CONTENT", 3): "delivered delivered deferred",
    ("DOT", 3): "delivered delivered doubt",
}
"""By the point and the mail at which the next hop stops. Its first job is never untried once it was
sent: else a next hop that stops there would have it come for ever."""


@pytest.mark.parametrize(
    ("point", "expected", "how"),
    [
        pytest.param(point, expected, how, id=f"{point[0]} {point[1]} {name}")
        for point, expected in WHAT_BECOMES_OF_THREE_JOBS.items()
        for name, how in (("closes", CLOSE), ("silent", b""), ("421", LATER))
        if (point[0], name) != ("CONTENT", "silent")  # a next hop sends nothing there
    ],
)
@MODES
@jumping
async def test_what_becomes_of_jobs_wherever_a_next_hop_stops(
    point: tuple[str, int], expected: str, how: bytes, extensions: tuple[str, ...]
) -> None:
    hop = FakeHop(lambda verb, mail: how if (verb, mail) == point else None, extensions=extensions)
    jobs = (a_job(job, is_slow=True) for job in (1, 2, 3))
    events = await carried(hop, jobs)

    if how == LATER:
        expected = expected.replace("doubt", "deferred")  # a reply, which names what it is about
    assert " ".join(became(events, job) for job in (1, 2, 3)) == expected
    assert events.jobs == [1, 2, 3]
    assert {job for job, kinds in events.finished.items() if DELIVERED in kinds.values()} <= set(
        hop.kept
    )
    for event in events.all:
        if isinstance(event, JobFinished):
            assert event.ended_session is (DEFERRED in events.finished[event.job].values())


def became(events: Events, job: int) -> str:
    if job in events.untried:
        return "untried"
    [kind] = events.finished[job].values()
    return "doubt" if "may be delivered" in events.texts[job] else kind.value


async def test_a_next_hop_that_only_greets_finishes_a_job() -> None:
    """Else its caller would try one connection after the other, and count no attempt."""
    hop = FakeHop()
    events = Events()
    connection = connect(hop, events)
    connection.submit(replace(a_job(1), content=never))
    connection.submit(a_job(2))
    await events.until_opened()
    hop.end()
    await events.until_closed()

    assert events.finished == {1: {"b1@dest.example": DEFERRED}}
    assert events.untried == (2,)


async def test_an_abort_before_an_answer_leaves_the_first_job_untried() -> None:
    hop, events = FakeHop(silent_at("MAIL", 1)), Events()
    connection = connect(hop, events)
    for job in (1, 2):
        connection.submit(a_job(job))
    while "DATA" not in hop.verbs:
        await asyncio.sleep(0)
    connection.abort()
    await events.until_closed()

    assert events.finished == {}
    assert events.untried == (1, 2)


async def test_a_mail_that_the_next_hop_cannot_take_is_finished_without_a_command() -> None:
    hop = FakeHop()
    jobs = [a_job(1), a_job(2, "bü@dest.example"), a_job(3)]
    events = await carried(hop, jobs)

    assert [set(kinds.values()) for kinds in events.finished.values()] == [
        {DELIVERED}, {FAILED}, {DELIVERED},
    ]  # fmt: skip
    assert hop.verbs.count("MAIL") == 2


async def test_a_content_that_cannot_be_opened_blocks_no_other_mail() -> None:
    hop = FakeHop()
    events = await carried(hop, [a_job(1), replace(a_job(2), content=unopened), a_job(3)])

    assert list(events.finished) == [1, 3]
    assert isinstance(events.errors[2], BlobsUnavailable)
    assert events.jobs == [1, 2, 3]


@pytest.mark.parametrize("has_shape", [True, False])
async def test_a_content_at_hand_is_sent_without_being_opened(*, has_shape: bool) -> None:
    content = b"Subject: x\r\n\r\nat hand\r\n"
    shape = shape_of((content,)) if has_shape else None
    hop = FakeHop()
    job = replace(a_job(1), content=unopened, at_hand=lambda: (content, shape))
    events = await carried(hop, [job, a_job(2)])

    assert [set(kinds.values()) for kinds in events.finished.values()] == [{DELIVERED}] * 2
    assert [each + b"\r\n" for each in hop.kept.values()] == [content, body_of(2)]


async def test_a_content_at_hand_that_must_be_converted_is_opened() -> None:
    content = b"Subject: x\r\n\r\n\xff\r\n"
    hop = FakeHop()
    job = replace(a_job(1, content=content), at_hand=lambda: (content, shape_of((content,))))
    events = await carried(hop, [job])

    assert list(events.finished) == [1]
    [sent] = hop.kept.values()
    assert sent.isascii()


async def never() -> AsyncGenerator[bytes, None]:
    await asyncio.Event().wait()
    yield b""


async def unopened() -> AsyncGenerator[bytes, None]:
    for chunk in list[bytes]():
        yield chunk
    raise BlobsUnavailable


async def test_mails_with_eight_bits_are_converted_one_after_the_other() -> None:
    content = b"Subject: x\r\n\r\n" + b"word\r\n" * 20_000 + b"\xff\r\n"
    hop = FakeHop()
    events = await carried(hop, (a_job(job, content=content) for job in (1, 2, 3)))

    assert list(events.finished) == [1, 2, 3]
    assert len(hop.kept) == 3
    assert all(each.isascii() for each in hop.kept.values())


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("stray", ["DOT", "RCPT", "DATA"])
async def test_a_reply_too_many_fails_no_recipient_of_the_next_mail(stray: str, size: int) -> None:
    """All later replies are shifted by one: a refusal would count for the wrong recipient. In
    chunks of one octet, the last one comes after RSET was sent."""
    usual = {"DOT": b"250 kept\r\n", "RCPT": b"250 ok\r\n", "DATA": b"354 go\r\n"}
    refused = iter([b"550 5.1.1 no\r\n", b"451 4.2.1 later\r\n"])

    def rule(verb: str, mail: int) -> bytes | None:
        if (verb, mail) == (stray, 1):
            return usual[stray] + usual[stray]
        if (verb, mail) == ("RCPT", 2):
            return next(refused)
        return b"554 5.5.1 no recipients\r\n" if (verb, mail) == ("DATA", 2) else None

    jobs = [a_job(1), a_job(2, "no@dest.example", "later@dest.example"), a_job(3)]
    events = await carried(FakeHop(rule, sizes=repeat(size)), jobs)

    assert FAILED not in {kind for kinds in events.finished.values() for kind in kinds.values()}


async def test_a_limit_on_mails_leaves_the_others_untried() -> None:
    events = await carried(
        FakeHop(extensions=("PIPELINING", "LIMITS MAILMAX=2")), map(a_job, range(5))
    )

    assert list(events.finished) == [0, 1]
    assert events.untried == (2, 3, 4)


async def test_a_peer_that_closes_while_no_job_is_there_is_noticed() -> None:
    hop, events = FakeHop(), Events()
    connection = connect(hop, events)
    await events.until_opened()
    await quiet()
    hop.end()

    assert (await events.until_closed()).untried == ()
    connection.submit(a_job(1))
    await quiet()
    assert events.untried == (1,)


async def test_a_connection_that_is_closed_waits_for_the_reply_to_quit() -> None:
    hop, events = FakeHop(lambda verb, _: b"" if verb == "QUIT" else None), Events()
    connection = connect(hop, events)
    await events.until_opened()
    connection.close()
    await quiet()

    assert hop.verbs[-1] == "QUIT"
    assert not hop.is_closing()

    hop.go_on(b"221 bye\r\n")
    await events.until_closed()


async def test_lmtp_replies_for_each_recipient_belong_to_their_mail() -> None:
    hop, events = FakeHop(lmtp_rule), Events()
    connection = connect(hop, events, protocol=Protocol.LMTP)
    for job in (1, 2):
        connection.submit(a_job(job, "b@dest.example", "c@dest.example"))
    await events.until_finished(2)
    connection.close()
    await events.until_closed()

    assert hop.verbs[:6] == ["GREETING", "LHLO", "MAIL", "RCPT", "RCPT", "DATA"]
    assert events.finished == {
        1: {"b@dest.example": DELIVERED, "c@dest.example": FAILED},
        2: {"b@dest.example": DELIVERED, "c@dest.example": DELIVERED},
    }


def lmtp_rule(verb: str, mail: int) -> bytes | None:
    second = b"250 kept\r\n" if mail == 2 else b"550 5.2.2 full\r\n"
    return b"250 kept\r\n" + second if verb == "DOT" else None


@MODES
async def test_a_recipient_that_needs_smtputf8_fails_alone_and_the_others_go_again(
    extensions: tuple[str, ...],
) -> None:
    hop, events = FakeHop(extensions=extensions), Events()
    connection = connect(hop, events)
    connection.submit(a_job(1, "b@dest.example", "jörg@dest.example", "c@bücher.example"))
    await events.until_finished(1)
    left = ("b@dest.example", "c@bücher.example")
    connection.submit(a_job(2, *left))
    await events.until_finished(2)
    connection.close()
    await events.until_closed()

    assert events.finished == {
        1: {"jörg@dest.example": FAILED},
        2: dict.fromkeys(left, DELIVERED),
    }
    assert hop.received.isascii()
    assert hop.received.count(b"MAIL FROM") == 1
    assert b"RCPT TO:<c@xn--bcher-kva.example>" in hop.received
