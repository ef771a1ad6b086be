"""The outcome of a mail for every kind of reply at every point of a dialogue: the tables in
docs/smtp-replies.md, which `POSTROAD_WRITE_DOCS=yes` writes anew."""

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

from postroad.domain.mail.mail import Envelope, OutcomeKind
from postroad.domain.smtp.next_hops import Protocol, TlsMode
from postroad.smtp.client.connecting import Timeouts
from support.certificates import Certificates
from support.sink import EXTENSIONS, HALF_CLOSE, HANG_UP, SILENCE, Rule, Sink
from support.smtp_relay import relay_to

DOCUMENT = Path(__file__).parents[2] / "docs/smtp-replies.md"

REPLIES = {
    "2xx": "250 2.0.0 ok",
    "354": "354 go on",
    "421": "421 4.3.2 closing",
    "4xx": "451 4.3.0 later",
    "5xx": "550 5.7.1 no",
    "530": "530 5.7.0 first STARTTLS",
    "garbage": "no reply",
    "hangs up": HANG_UP,
    "half-closes": HALF_CLOSE,
    "silent": SILENCE,
}
POINTS = {
    "greeting": "CONNECT",
    "EHLO": "EHLO",
    "HELO": "HELO",
    "STARTTLS": "STARTTLS",
    "EHLO again": "EHLO",
    "MAIL": "MAIL",
    "RCPT": "RCPT",
    "DATA": "DATA",
    "content": "CONTENT",
    "final dot": "DOT",
    "RSET": "RSET",
    "QUIT": "QUIT",
}
MODES = {
    "pipelined": (Protocol.SMTP, EXTENSIONS),
    "stepwise": (Protocol.SMTP, EXTENSIONS[1:]),
    "LMTP": (Protocol.LMTP, EXTENSIONS),
}
NOT_SPOKEN = {("HELO", "LMTP"), ("EHLO again", "LMTP"), ("STARTTLS", "LMTP")}
BEGIN, REST = b"Subject: x\r\n\r\n" + b"line\r\n" * 10, b"last\r\n" * 10
TRAVEL = 0.5
"""Seconds in which a reply that the sink sends during a mail arrives, before the mail goes on."""

TIMEOUT = timedelta(seconds=5)


def rule_at(point: str, reply: str) -> Rule:
    """Send `reply` at that point, and the usual replies elsewhere."""
    hellos = 0

    def rule(verb: str, argument: str) -> str | None:
        nonlocal hellos
        verb = "EHLO" if verb == "LHLO" else verb
        hellos += verb == "EHLO"
        if point == "EHLO again" and verb == "EHLO":
            return reply if hellos == 2 else None
        if point == "HELO" and verb == "EHLO":
            return "502 5.5.1 unknown"
        if point == "RSET" and verb == "DATA":
            return "451 4.3.0 later"  # without a refusal there is no RSET
        return reply if verb == POINTS[point] else None

    return rule


async def in_two_pieces() -> AsyncIterator[bytes]:
    yield BEGIN
    yield REST
    await asyncio.sleep(TRAVEL)


async def outcome_of(point: str, reply: str, mode: str, certificates: Certificates) -> str:
    protocol, extensions = MODES[mode]
    by_tls = point in ("STARTTLS", "EHLO again")
    tls = certificates.server_context() if by_tls else None
    lmtp = protocol is Protocol.LMTP
    async with Sink(rule_at(point, REPLIES[reply]), extensions=extensions, tls=tls, lmtp=lmtp) as s:
        relay = relay_to(
            s,
            TlsMode.OPPORTUNISTIC if by_tls else TlsMode.NONE,
            protocol=protocol,
            timeouts=Timeouts(*[TIMEOUT] * 8),
        )
        envelope = Envelope("a@origin.example", ("b@dest.example",))
        results = await relay.transmit(envelope, in_two_pieces(), len(BEGIN + REST))
        await relay.close()
        whole = [mail for mail in s.mails if mail.content == BEGIN + REST]
    [outcome] = results.values()
    assert (outcome.kind is OutcomeKind.DELIVERED) <= bool(whole), (point, reply, mode)
    return outcome.kind.value


async def table(mode: str, certificates: Certificates) -> list[str]:
    lines = ["| | " + " | ".join(REPLIES) + " |", "|---" * (len(REPLIES) + 1) + "|"]

    async def row(point: str) -> str:
        cells = (outcome_of(point, reply, mode, certificates) for reply in REPLIES)
        return f"| {point} | " + " | ".join(await asyncio.gather(*cells)) + " |"

    spoken = [point for point in POINTS if (point, mode) not in NOT_SPOKEN]
    return [*lines, *await asyncio.gather(*map(row, spoken))]


async def test_the_table_of_replies_is_what_the_transport_does(certificates: Certificates) -> None:
    parts = DOCUMENT.read_text().split("\n## ")
    for index, mode in enumerate(MODES, start=1):
        lines = [mode, "", *await table(mode, certificates), ""]
        if os.environ.get("POSTROAD_WRITE_DOCS"):
            parts[index:] = ["\n".join(lines)]
            DOCUMENT.write_text("\n## ".join(parts))
        else:
            assert parts[index].splitlines() == lines[:-1]
