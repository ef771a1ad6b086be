"""Mails that are sent whole before others are answered: what is on the wire, and whose reply is
whose where the next hop refuses, stops, or sends replies too many or too few."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from itertools import repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.smtp.next_hops import NextHop, Protocol, TlsMode
from postroad.ports.delivery import JobFinished, TakesSeries, Transmission
from postroad.smtp.client.connecting import RememberedHops, Timeouts
from postroad.smtp.client.connections import SmtpConnection
from postroad.smtp.client.jobs import MAX_SERIES
from support.connections import Events, HeldEnds, a_job, body_of
from support.fake_hop import CLOSE, FakeHop, HopRule
from support.jumping_loop import jumping
from support.smtp_connections import carried, connect

DELIVERED, FAILED, DEFERRED = OutcomeKind.DELIVERED, OutcomeKind.FAILED, OutcomeKind.DEFERRED
CHUNKING = ("PIPELINING", "CHUNKING")
HASTY = Timeouts(*(timedelta(milliseconds=5) for _ in range(9)))
LATER = b"421 4.3.2 later\r\n"


def chunk_of(job: int) -> bytes:
    content = body_of(job)
    return (
        b"RSET\r\nMAIL FROM:<job%d@origin.example>\r\nRCPT TO:<b%d@dest.example>\r\n" % (job, job)
        + b"BDAT %d LAST\r\n" % len(content)
        + content
    )


async def test_whole_mails_are_on_the_wire_before_one_of_them_is_answered() -> None:
    """The first mail of a session shows that the next hop goes on behind it; the last mail of a
    series goes by DATA."""
    hop = FakeHop(lambda *at: b"" if at == ("DOT", 2) else None, extensions=CHUNKING)
    events = Events()
    connection = connect(hop, events)
    for job in range(1, 7):
        connection.submit(a_job(job))
    await events.until_finished(1)
    while not hop.received.endswith(b"DATA\r\n"):
        await asyncio.sleep(0)

    behind = hop.received.partition(body_of(2) + b".\r\n")[2]
    assert behind == chunk_of(3) + chunk_of(4) + chunk_of(5) + (
        b"RSET\r\nMAIL FROM:<job6@origin.example>\r\nRCPT TO:<b6@dest.example>\r\nDATA\r\n"
    )
    assert list(events.finished) == [1]

    hop.go_on(b"250 kept\r\n")
    await events.until_finished(6)
    connection.close()
    await events.until_closed()
    assert list(hop.kept.values()) == [body_of(job).removesuffix(b"\r\n") for job in range(1, 7)]
    assert all(
        kinds == {f"b{job}@dest.example": DELIVERED} for job, kinds in events.finished.items()
    )
    assert events.jobs == list(range(1, 7))


def silent_at_the_second_dot(verb: str, number: int) -> bytes | None:
    return b"" if (verb, number) == ("DOT", 2) else None


async def amid_a_series(hop: FakeHop, events: Events) -> SmtpConnection:
    """Submit 29 mails, and wait until a series is out behind the second one's end."""
    connection = connect(hop, events)
    for job in range(1, 30):
        connection.submit(a_job(job))
    while hop.verbs.count("BDAT") < MAX_SERIES - 1 or hop.verbs[-1] != "DATA":
        await asyncio.sleep(0)
    return connection


@pytest.mark.parametrize(
    ("sizes", "extensions", "reported"),
    [
        ([100] * 6, CHUNKING, [1 + MAX_SERIES]),
        ([100] * 2, CHUNKING, []),
        ([100] * 6, ("PIPELINING",), []),
        ([100, 100, 100, 100_000, 100_000, 100], CHUNKING, [3, 1, 1 + MAX_SERIES]),
    ],
    ids=["small", "as few as to show nothing", "by DATA", "large ones between"],
)
async def test_a_connection_reports_how_many_mails_are_of_use_on_it(
    sizes: list[int], extensions: tuple[str, ...], reported: list[int]
) -> None:
    hop = FakeHop(extensions=extensions)
    jobs = (a_job(n, content=b"x" * size + b"\r\n") for n, size in enumerate(sizes, 1))
    events = await carried(hop, jobs)

    assert [each.jobs for each in events.all if isinstance(each, TakesSeries)] == reported
    assert events.jobs == list(range(1, 1 + len(sizes)))


async def test_a_series_is_bounded() -> None:
    hop, events = FakeHop(silent_at_the_second_dot, extensions=CHUNKING), Events()
    connection = await amid_a_series(hop, events)

    assert hop.verbs.count("MAIL") == 2 + MAX_SERIES
    connection.abort()
    await events.until_closed()
    assert len(events.jobs) == 29


async def test_of_mails_that_may_not_end_a_next_hop_has_one_series() -> None:
    """The second mail ends, and nothing is recorded from then on: it and the chunks behind it are
    what a process that is killed repeats."""
    hop, events = FakeHop(extensions=CHUNKING), Events()
    held = HeldEnds(events, first=3)
    connection = connect(hop, events, before_end=held)
    for job in range(1, 40):
        connection.submit(a_job(job))
    await held.until_held()
    for _ in range(50):
        await asyncio.sleep(0)

    assert len(hop.kept) == 1 + MAX_SERIES
    held.go_on()
    await events.until_finished(39)
    connection.close()
    await events.until_closed()
    assert len(hop.kept) == 39


async def test_a_close_amid_a_series_finishes_what_was_sent() -> None:
    hop, events = FakeHop(silent_at_the_second_dot, extensions=CHUNKING), Events()
    connection = await amid_a_series(hop, events)
    connection.close()
    hop.go_on(b"250 kept\r\n")
    await events.until_closed()

    assert list(events.finished) == list(range(1, 3 + MAX_SERIES))
    assert events.untried == tuple(range(3 + MAX_SERIES, 30))


async def test_large_mails_go_by_data_and_lines_as_they_go_there() -> None:
    large = b"Subject: x\r\n\r\n" + b"word\r\n" * 20_000
    dots = b"Subject: x\r\n\r\n.\r\n..dots\nbare\r\n.end"
    jobs = [a_job(1), a_job(2), a_job(3, content=dots), a_job(4, content=large), a_job(5)]
    hop = FakeHop(extensions=CHUNKING)
    events = await carried(hop, jobs)

    assert {kind for kinds in events.finished.values() for kind in kinds.values()} == {DELIVERED}
    assert hop.kept[3] == dots.replace(b"\nbare", b"\r\nbare")
    assert hop.kept[4] == large.removesuffix(b"\r\n")
    assert hop.verbs.count("BDAT") == 1


@pytest.mark.parametrize("turns", range(12))
async def test_what_a_closed_connection_was_to_carry_is_untried(turns: int) -> None:
    """The next hop closes so many turns of the loop after mails have come."""
    hop, events, unfit = FakeHop(extensions=CHUNKING), Events(), RememberedHops()
    connection = connect(hop, events, unfit=unfit)
    for job in (1, 2):
        connection.submit(a_job(job))
    await events.until_finished(2)
    for _ in range(50):
        await asyncio.sleep(0)
    for job in range(3, 7):
        connection.submit(a_job(job))
    for _ in range(turns):
        await asyncio.sleep(0)
    hop.abort()
    was_sent = "BDAT" in hop.verbs
    await events.until_closed()

    if not was_sent:
        assert events.untried == (3, 4, 5, 6)
        assert not unfit.has(NextHop("hop.example", 25, TlsMode.NONE))


@pytest.mark.parametrize(("protocol", "chunking"), [(Protocol.LMTP, True), (Protocol.SMTP, False)])
async def test_an_lmtp_server_and_a_hop_without_chunking_get_no_chunks(
    protocol: Protocol, chunking: bool
) -> None:
    hop, events = FakeHop(extensions=CHUNKING), Events()
    connection = connect(hop, events, protocol=protocol, chunking=chunking)
    for job in range(1, 6):
        connection.submit(a_job(job))
    await events.until_finished(5)
    connection.close()
    await events.until_closed()
    assert "BDAT" not in hop.verbs


WHAT_BECOMES_OF_SIX_JOBS = {
    ("DOT", 2, "closes"): "delivered doubt untried untried untried untried",
    ("DOT", 2, "silent"): "delivered doubt doubt doubt doubt untried",
    ("DOT", 2, "421"): "delivered deferred untried untried untried untried",
    ("MAIL", 3, "closes"): "delivered delivered doubt doubt doubt untried",
    ("MAIL", 3, "silent"): "delivered delivered doubt doubt doubt untried",
    ("MAIL", 3, "421"): "delivered delivered untried untried untried untried",
    ("RCPT", 4, "closes"): "delivered delivered delivered doubt doubt untried",
    ("RCPT", 4, "silent"): "delivered delivered doubt doubt doubt untried",
    ("RCPT", 4, "421"): "delivered delivered delivered untried untried untried",
    ("DOT", 4, "closes"): "delivered delivered delivered doubt doubt untried",
    ("DOT", 4, "silent"): "delivered delivered doubt doubt doubt untried",
    ("DOT", 4, "421"): "delivered delivered delivered deferred untried untried",
    ("MAIL", 6, "closes"): "delivered delivered delivered delivered delivered untried",
    ("DATA", 6, "421"): "delivered delivered delivered delivered delivered deferred",
    ("DATA", 6, "silent"): "delivered delivered doubt doubt doubt deferred",
    ("CONTENT", 6, "closes"): "delivered delivered delivered delivered delivered deferred",
    ("DOT", 6, "closes"): "delivered delivered delivered delivered delivered doubt",
}
"""By the point and the mail at which the next hop stops; 3 to 5 are chunks. Silence may be a reply
that is missing, so it leaves all of a series in doubt."""


@pytest.mark.parametrize(
    ("point", "expected"),
    WHAT_BECOMES_OF_SIX_JOBS.items(),
    ids=[" ".join(map(str, each)) for each in WHAT_BECOMES_OF_SIX_JOBS],
)
@jumping
async def test_what_becomes_of_chunks_wherever_a_next_hop_stops(
    point: tuple[str, int, str], expected: str
) -> None:
    reply = {"closes": CLOSE, "silent": b"", "421": LATER}[point[2]]
    events = await carried(*stopping(point[:2], reply))

    assert " ".join(became(events, job) for job in range(1, 7)) == expected
    assert events.jobs == list(range(1, 7))


async def test_421_to_a_chunk_is_the_reply_of_the_next_hop() -> None:
    events = await carried(*stopping(("DOT", 4), LATER))
    (refused,) = (e for e in events.all if isinstance(e, JobFinished) and e.job == 4)
    (outcome,) = refused.outcomes.values()

    assert (outcome.text, outcome.responder is None) == ("421 4.3.2 later", False)


def stopping(point: tuple[str, int], reply: bytes) -> tuple[FakeHop, Iterator[Transmission]]:
    def rule(verb: str, mail: int) -> bytes | None:
        return reply if (verb, mail) == point else None

    return FakeHop(rule, extensions=CHUNKING), (a_job(job, is_slow=job == 6) for job in range(1, 7))


def became(events: Events, job: int) -> str:
    if job in events.untried:
        return "untried"
    [kind] = events.finished[job].values()
    return "doubt" if "may be delivered" in events.texts[job] else kind.value


@pytest.mark.parametrize(
    ("verb", "mail", "reply", "is_remembered"),
    [
        ("DOT", 4, CLOSE, True),
        ("DOT", 4, b"500 what?\r\n", True),
        ("DOT", 4, LATER, False),
        ("DOT", 4, b"550 5.7.1 no\r\n", False),
        ("MAIL", 6, CLOSE, False),
    ],
)
async def test_a_next_hop_that_leaves_chunks_in_doubt_gets_none_for_an_hour(
    verb: str, mail: int, reply: bytes, *, is_remembered: bool
) -> None:
    unfit = RememberedHops()
    for times in (1, 2):
        hop, events = FakeHop(at(verb, mail, reply), extensions=CHUNKING), Events()
        connection = connect(hop, events, unfit=unfit)
        for job in range(1, 7):
            connection.submit(a_job(job))
        while len(events.jobs) < 6:
            await events.next()
        connection.close()
        await events.until_closed()
        assert ("BDAT" in hop.verbs) == (times == 1 or not is_remembered)


def at(verb: str, mail: int, reply: bytes) -> HopRule:
    return lambda *given: reply if given == (verb, mail) else None


async def test_a_refusal_that_is_about_the_command_ends_no_mail() -> None:
    hop = FakeHop(at("DOT", 3, b"501 5.5.4 BDAT?\r\n"), extensions=CHUNKING)
    events = await carried(hop, map(a_job, range(1, 7)))

    assert FAILED not in {kind for kinds in events.finished.values() for kind in kinds.values()}


POINTS = st.tuples(st.sampled_from(["MAIL", "RCPT", "DATA", "DOT"]), st.integers(3, 8))
REFUSALS = (b"550 5.1.1 no\r\n", b"451 4.2.1 later\r\n")
TOO_MANY = (
    b"250 2.0.0 ok\r\n250 2.0.0 ok\r\n",
    b"250 ok\r\n550 no\r\n",
    b"550 5.1.1 no\r\n250 2.0.0 ok\r\n",
)
STRAYS = st.dictionaries(POINTS, st.sampled_from((*TOO_MANY, *REFUSALS)), min_size=1, max_size=4)
ENDS = st.dictionaries(
    POINTS, st.sampled_from((CLOSE, LATER, b"", *REFUSALS)), min_size=1, max_size=4
)
A_STRAY_354 = st.dictionaries(POINTS, st.just(b"250 ok\r\n354 go\r\n"), min_size=1, max_size=1)


@settings(max_examples=200, deadline=None)
@given(st.one_of(STRAYS, ENDS, A_STRAY_354), st.sampled_from([1, 7, 1000]))
def test_delivered_are_mails_that_were_taken_and_failed_those_that_were_not(
    odd: dict[tuple[str, int], bytes], size: int
) -> None:
    """With replies too many in any place, and with an end in any place; what a next hop that sends
    a reply too many and then ends the connection leads to, is in ADR 0066."""

    async def run() -> None:
        hop = FakeHop(
            lambda verb, mail: odd.get((verb, mail)), extensions=CHUNKING, sizes=repeat(size)
        )
        events = await carried(hop, map(a_job, range(1, 9)), HASTY)

        assert events.jobs == list(range(1, 9))
        for job, kinds in events.finished.items():
            if DELIVERED in kinds.values():
                assert job in hop.taken
            if FAILED in kinds.values():
                assert job not in hop.taken

    asyncio.run(run())
