"""Handing mails to a sink by the SMTP transport."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from postroad.domain.mail.mail import Mail, Outcome, OutcomeKind
from postroad.domain.mail.shapes import Shape, shape_of
from postroad.domain.smtp.next_hops import NextHop, Protocol, TlsMode
from postroad.ports.delivery import Signer
from postroad.smtp.client.connecting import Timeouts
from support.one_hop import OneHop
from support.sink import Rule, Sink


async def chunks(content: bytes, size: int = 65536) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


def relay_to(
    sink: Sink,
    tls: TlsMode = TlsMode.NONE,
    *,
    host: str = "127.0.0.1",
    protocol: Protocol = Protocol.SMTP,
    ca_file: Path | None = None,
    timeouts: Timeouts | None = None,
    ehlo_name: str | None = "relay.example",
    signer: Signer | None = None,
) -> OneHop:
    return OneHop(
        NextHop(host, sink.port, tls, protocol),
        ehlo_name=ehlo_name,
        signer=signer,
        ca_file=ca_file,
        timeouts=timeouts or Timeouts(),
    )


async def hand_over(relay: OneHop, mail: Mail) -> dict[str, Outcome]:
    content = mail.content
    assert isinstance(content, bytes)

    async def shape() -> Shape:
        return shape_of((content,))

    result = await relay.transmit(mail.envelope, chunks(content), len(content), shape)
    return dict(result)


def a_mail(*recipients: str, content: bytes = b"Subject: x\r\n\r\nbody\r\n") -> Mail:
    return Mail("a@origin.example", recipients or ("b@dest.example",), content)


def kinds(outcomes: dict[str, Outcome]) -> dict[str, OutcomeKind]:
    return {recipient: outcome.kind for recipient, outcome in outcomes.items()}


def refusing(verb: str, reply: str, only: str = "") -> Rule:
    return lambda given, argument: reply if given == verb and only in argument else None
