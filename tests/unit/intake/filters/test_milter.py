"""The MTA's side of the milter protocol, against milters that work, hang, lie or send garbage."""

from __future__ import annotations

import asyncio
import struct
import tracemalloc
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.domain.mail.mail import Origin
from postroad.intake.filters.chain import NOT_CHECKED, Filter, FilterChain, Filtered
from postroad.intake.filters.decisions import (
    FilterDecision,
    FilteredMail,
    FilterFailed,
    HeaderChange,
    applied,
)
from postroad.intake.filters.milter import MilterFilter
from postroad.intake.filters.milter_packets import ACTIONS, STEPS, Changes, Negotiated, ending
from postroad.intake.filters.room import FilterRoom
from support.scripted_milter import CONTINUE, ScriptedMilter, options, packet, running

CONTENT = b"Subject:  a\r\n\tb\r\nX: y\r\n\r\n" + b"0123456789\r\n" * 8000
MAIL = FilteredMail(
    "abcd", "mx.example", "a@x.example", ("b@y.example", "c@z.example"), CONTENT,
    Origin("client.example", "192.0.2.1", "ESMTPSA"), "alice", None, ("TLSv1.3", "AES"),
)  # fmt: skip


async def decided(milter: ScriptedMilter, mail: FilteredMail = MAIL) -> FilterDecision:
    async with running(milter):
        filter_ = MilterFilter(milter.address)
        return await filter_.decide(mail)


@pytest.mark.parametrize("is_unix", [False, True])
async def test_a_milter_gets_the_whole_mail_step_by_step(tmp_path: Path, is_unix: bool) -> None:
    milter = ScriptedMilter()
    async with running(milter, tmp_path if is_unix else None):
        filter_ = MilterFilter(milter.address)
        assert await filter_.decide(MAIL) == FilterDecision()

    assert milter.commands().removesuffix(b"Q") == b"OCHMRRTLLNBBE"
    assert milter.seen[0][1] == struct.pack(">III", 6, ACTIONS, STEPS)
    seen = dict(milter.seen)
    assert seen[b"C"] == b"[192.0.2.1]\x004\0\x00192.0.2.1\0"
    assert (seen[b"H"], seen[b"M"]) == (b"client.example\0", b"<a@x.example>\0")
    assert milter.of(b"R") == [b"<b@y.example>\0", b"<c@z.example>\0"]
    assert milter.of(b"L") == [b"Subject\0a\n\tb\0", b"X\0y\0"]
    assert b"".join(milter.of(b"B")) == CONTENT.partition(b"\r\n\r\n")[2]
    macros = {data[:1]: data[1:].split(b"\0") for data in milter.of(b"D")}
    assert macros[b"C"][:4] == [b"j", b"mx.example", b"{client_addr}", b"192.0.2.1"]
    assert macros[b"H"][:4] == [b"{tls_version}", b"TLSv1.3", b"{cipher}", b"AES"]
    assert macros[b"M"][:6] == [b"i", b"abcd", b"{auth_type}", b"SASL", b"{auth_authen}", b"alice"]
    assert macros[b"R"][:4] == [b"{rcpt_addr}", b"c@z.example", b"{rcpt_host}", b"z.example"]
    assert macros[b"E"][:2] == macros[b"N"][:2] == macros[b"T"][:2] == [b"i", b"abcd"]


async def test_a_null_sender_and_an_unknown_client_have_their_forms() -> None:
    milter = ScriptedMilter()
    await decided(milter, replace(MAIL, sender=None, client=Origin(), content=b"", user=None))

    assert milter.commands().removesuffix(b"Q") == b"OCHMRRTNE"
    seen = dict(milter.seen)
    assert (seen[b"C"], seen[b"H"], seen[b"M"]) == (b"unknown\0U", b"\0", b"<>\0")


async def test_an_ipv6_client_has_its_family() -> None:
    milter = ScriptedMilter()
    await decided(milter, replace(MAIL, client=Origin("c", "2001:db8::1")))

    assert dict(milter.seen)[b"C"] == b"[IPv6:2001:db8::1]\x006\0\x002001:db8::1\0"


@pytest.mark.parametrize(
    ("steps", "commands"),
    [
        (0x1, b"OHMRRTLLNBBE"),
        (0x2 | 0x4 | 0x8, b"OCTLLNBBE"),
        (0x10 | 0x20 | 0x40 | 0x200, b"OCHMRRE"),
        (0x27F, b"OE"),
    ],
)
async def test_a_milter_leaves_out_steps(steps: int, commands: bytes) -> None:
    milter = ScriptedMilter(options(steps=steps))
    await decided(milter)

    assert milter.commands().removesuffix(b"Q") == commands


async def test_a_milter_leaves_out_replies_and_keeps_leading_space() -> None:
    steps = 0x1000 | 0x2000 | 0x4000 | 0x8000 | 0x10000 | 0x80 | 0x40000 | 0x80000 | 0x100000
    milter = ScriptedMilter(options(steps=steps), has_no_reply=b"CHMRTLNB")

    assert await decided(milter) == FilterDecision()
    assert milter.of(b"L") == [b"Subject\0  a\n\tb\0", b"X\0 y\0"]


async def test_a_milter_skips_the_rest_of_a_body() -> None:
    milter = ScriptedMilter(options(steps=0x400), {b"B": packet(b"s")})

    assert await decided(milter) == FilterDecision()
    assert milter.commands().removesuffix(b"Q") == b"OCHMRRTLLNBE"


async def test_a_milter_of_an_old_version_hears_no_data() -> None:
    milter = ScriptedMilter(options(version=2))
    await decided(milter)

    assert milter.commands() == b"OCHMRRLLNBBEQ"[: len(milter.commands())]
    assert b"T" not in milter.commands()


@pytest.mark.parametrize("command", [bytes([each]) for each in b"CHMRTLNBE"])
@pytest.mark.parametrize(
    ("reply", "decision"),
    [
        (b"a", FilterDecision()),
        (b"r", FilterDecision("reject")),
        (b"t", FilterDecision("defer")),
        (b"d", FilterDecision("discard")),
        (b"4", FilterDecision("defer")),
        (b"y550 5.7.1 100%% spam\0", FilterDecision("reject", "550 5.7.1 100% spam")),
        (b"y451 4.7.1 grey\0", FilterDecision("defer", "451 4.7.1 grey")),
    ],
)
async def test_a_milter_ends_a_mail_at_any_step(
    command: bytes, reply: bytes, decision: FilterDecision
) -> None:
    milter = ScriptedMilter(replies={command: packet(b"p") * 3 + packet(reply[:1], reply[1:])})

    assert await decided(milter) == decision
    assert milter.commands().rstrip(b"Q").endswith(command)


def number(index: int) -> bytes:
    return struct.pack(">I", index)


CHANGES = (
    packet(b"h", b"X-A\0one\n\ttwo\0"),
    packet(b"i", number(0) + b"X-B\0 \xe9\0"),
    packet(b"m", number(1) + b"X\0z\0"),
    packet(b"p"),
    packet(b"m", number(1) + b"Subject\0\0"),
    packet(b"b", b"new "),
    packet(b"b", b"body\n"),
    packet(b"+", b"<d@y.example>\0"),
    packet(b"-", b"<b@y.example>\0"),
    packet(b"e", b"<>\0"),
    packet(b"q", b"spam\0"),
)


async def test_a_milter_changes_a_mail() -> None:
    milter = ScriptedMilter(replies={b"E": b"".join(CHANGES) + CONTINUE})

    decision = await decided(milter)

    assert decision.hold == "spam"
    changed = applied(MAIL, decision)
    assert changed.content == (b"X-B: \xe9\r\nX: z\r\nX-A: one\r\n\ttwo\r\n\r\nnew body\r\n")
    assert (changed.sender, changed.recipients) == (None, ("c@z.example", "d@y.example"))


async def test_a_milter_removes_all_but_one_of_many_recipients() -> None:
    recipients = tuple(f"{number}@y.example" for number in range(5000))
    removed = b"".join(packet(b"-", f"<{each}>\0".encode()) for each in recipients[1:])
    milter = ScriptedMilter(replies={b"E": removed + CONTINUE})
    mail = replace(MAIL, recipients=recipients, content=b"A: 1\r\n\r\n")

    assert applied(mail, await decided(milter, mail)).recipients == recipients[:1]


async def test_a_milter_removes_all_of_many_forged_fields() -> None:
    name = b"Authentication-Results"
    removed = b"".join(packet(b"m", number(each) + name + b"\0\0") for each in range(4999, 0, -1))
    milter = ScriptedMilter(replies={b"E": removed + CONTINUE})
    mail = replace(MAIL, content=(name + b": x\r\n") * 4999 + b"\r\nbody\r\n")

    assert applied(mail, await decided(milter, mail)).content == b"\r\nbody\r\n"


@pytest.mark.parametrize("change", [each for each in CHANGES if each != packet(b"p")])
async def test_a_change_that_was_not_negotiated_or_comes_early_fails(change: bytes) -> None:
    for milter in (
        ScriptedMilter(options(actions=0), {b"E": change + CONTINUE}),
        ScriptedMilter(replies={b"N": change + CONTINUE}),
    ):
        with pytest.raises(FilterFailed):
            await decided(milter)


HUGE = struct.pack(">I", 0xFFFFFFFF)
ATTACKS = {
    "hangs at the negotiation": ScriptedMilter(None),
    "hangs at the end": ScriptedMilter(replies={b"E": None}),
    "hangs amid a packet": ScriptedMilter(replies={b"E": struct.pack(">I", 100) + b"h"}),
    "breaks off at the negotiation": ScriptedMilter(b""),
    "breaks off amid the header": ScriptedMilter(replies={b"L": b""}),
    "breaks off at the end": ScriptedMilter(replies={b"E": b""}),
    "an SMTP greeting": ScriptedMilter(b"220 mx.example ESMTP\r\n"),
    "garbage": ScriptedMilter(replies={b"M": bytes(range(255, -1, -1)) * 100}),
    "an empty packet": ScriptedMilter(replies={b"C": struct.pack(">I", 0)}),
    "a huge packet": ScriptedMilter(replies={b"C": HUGE + b"c"}),
    "a version from the future": ScriptedMilter(options(version=7)),
    "no version": ScriptedMilter(options(version=0)),
    "actions that were not offered": ScriptedMilter(options(actions=0x180)),
    "steps that were not offered": ScriptedMilter(options(steps=0x800)),
    "short options": ScriptedMilter(packet(b"O", b"123")),
    "SKIP that was not negotiated": ScriptedMilter(replies={b"B": packet(b"s")}),
    "SKIP of a header": ScriptedMilter(options(steps=0x400), {b"L": packet(b"s")}),
    "data behind a decision": ScriptedMilter(replies={b"E": packet(b"a", b"x")}),
    "a reply that accepts": ScriptedMilter(replies={b"E": packet(b"y", b"250 ok\0")}),
    "a reply without a code": ScriptedMilter(replies={b"E": packet(b"y", b"no\0")}),
    "a reply without an end": ScriptedMilter(replies={b"E": packet(b"y", b"550 no")}),
    "octets behind a reply": ScriptedMilter(replies={b"E": packet(b"y", b"550 no\0x")}),
    "a field that is two": ScriptedMilter(
        replies={b"E": packet(b"h", b"X\0a\nBcc: b@y.example\0") + CONTINUE}
    ),
    "a field that ends the header": ScriptedMilter(
        replies={b"E": packet(b"h", b"X\0a\r\n\r\nbody\0") + CONTINUE}
    ),
    "a name that is a field": ScriptedMilter(
        replies={b"E": packet(b"h", b"X: a\nBcc\0b\0") + CONTINUE}
    ),
    "a field without a value": ScriptedMilter(replies={b"E": packet(b"h", b"X\0") + CONTINUE}),
    "an index alone": ScriptedMilter(replies={b"E": packet(b"m", b"\0") + CONTINUE}),
    "a recipient that is a command": ScriptedMilter(
        replies={b"E": packet(b"+", b"<b@y.example>\r\nDATA\0") + CONTINUE}
    ),
    "a sender with parameters": ScriptedMilter(
        replies={b"E": packet(b"e", b"<b@y.example>\0SIZE=1\0") + CONTINUE}
    ),
    "no recipient left": ScriptedMilter(
        replies={
            b"E": packet(b"-", b"b@y.example\0") + packet(b"-", b"c@z.example\0") + CONTINUE
        }
    ),
    "a million fields": ScriptedMilter(endless=(b"E", packet(b"h", b"X\0y\0") * 1000)),
    "a million recipients": ScriptedMilter(endless=(b"E", packet(b"+", b"a@y.example\0") * 1000)),
    "an endless body": ScriptedMilter(endless=(b"E", packet(b"b", b"x" * 65535))),
    "an endless body of single octets": ScriptedMilter(endless=(b"E", packet(b"b", b"x") * 1000)),
    "signs of life at each step": ScriptedMilter(replies={b"L": packet(b"p") * 4000 + CONTINUE}),
    "endless signs of life": ScriptedMilter(endless=(b"E", packet(b"p") * 1000)),
    "endless removals": ScriptedMilter(endless=(b"E", packet(b"-", b"a@y.example\0") * 1000)),
    "a field without an end": ScriptedMilter(endless=(b"E", HUGE + b"h" * 65536)),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("on_error", ["Accept", "Defer"])
async def test_a_milter_that_attacks_costs_bounded_memory_and_ends_as_on_error_has_it(
    attack: str, on_error: Any
) -> None:
    milter = ATTACKS[attack]
    hangs = attack.startswith("hangs")

    async with running(milter):
        deciding = MilterFilter(milter.address)
        filter_ = Filter("m", deciding.decide, on_error, timedelta(seconds=0.05 if hangs else 60))
        chain = FilterChain("test.attack", (filter_,), FilterRoom())
        tracemalloc.start()
        try:
            found = await chain.run(MAIL, 1000)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert found == Filtered(MAIL, None if on_error == "Accept" else NOT_CHECKED)
    # What else the process allocates meanwhile is in it; a million items are tens of megabytes.
    assert peak < 8 * len(CONTENT) + 2**22, f"{peak} octets"


async def test_a_milter_that_cannot_be_reached_fails() -> None:
    milter = ScriptedMilter()
    async with running(milter):
        pass

    with pytest.raises(OSError):
        await MilterFilter(milter.address).decide(MAIL)


async def test_a_mail_that_is_given_up_leaves_no_connection() -> None:
    milter = ScriptedMilter(replies={b"E": None})
    async with running(milter):
        task = asyncio.create_task(MilterFilter(milter.address).decide(MAIL))
        while not milter.of(b"E"):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        while len(asyncio.all_tasks()) > 1:  # the milter's, until the connection is closed
            await asyncio.sleep(0.001)


@given(st.binary(max_size=1), st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_any_packet_is_read_or_fails(command: bytes, data: bytes) -> None:
    changes = Changes(ACTIONS)
    for read in (changes.add, ending, Negotiated):
        with suppress(FilterFailed):
            read(command, data)
    with suppress(FilterFailed):
        applied(MAIL, changes.decision())


@given(
    st.lists(
        st.builds(
            HeaderChange,
            st.sampled_from(["add", "insert", "change", "remove"]),
            st.sampled_from(["X", "Subject", "A b", ""]),
            st.text(alphabet="ab \t\r\n:\0\udce9", max_size=20),
            st.integers(0, 5),
        ),
        max_size=5,
    ).map(tuple)
)
@settings(max_examples=300, deadline=None)
def test_no_change_makes_another_field_than_it_names(changes: tuple[HeaderChange, ...]) -> None:
    try:
        content = applied(MAIL, FilterDecision(headers=changes)).content
    except FilterFailed:
        return
    header, _, body = content.partition(b"\r\n\r\n")
    if content.startswith(b"\r\n"):
        header, body = b"", content[2:]
    assert body == CONTENT.partition(b"\r\n\r\n")[2]
    names = {line.partition(b":")[0] for line in header.split(b"\r\n") if line[:1] not in b" \t"}
    assert names <= {b"X", b"Subject"}
    assert b"\0" not in header
