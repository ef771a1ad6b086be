"""Forms of recipients that made servers relay for clients outside their networks.

From outside the networks the intake refuses each of them; from inside it refuses the form for its
syntax, or accepts it as the one mailbox that it names: no form becomes another address on the way.
Source: RFC 5321 4.1.1.3, 4.1.2, 4.5.1, C; RFC 5322 3.2.2; RFC 1123 5.2.16.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from postroad.domain.values.networks import Networks
from postroad.intake.clients import Rules
from postroad.intake.server import ANY_HOST
from support.intakes import an_intake

INSIDE, OUTSIDE = "127.0.0.1", "127.0.0.2"


@dataclass(frozen=True)
class Form:
    """The argument of RCPT; `mailbox` is the mailbox that it names from inside, None where it is
    refused."""

    argument: str
    mailbox: str | None = None

    def __str__(self) -> str:
        return ascii(self.argument)


FORMS = (
    Form("TO:<victim@dest.example>", "victim@dest.example"),
    Form("to:<ViCtIm@DeSt.ExAmPlE>", "ViCtIm@DeSt.ExAmPlE"),
    Form("TO: <victim@dest.example>", "victim@dest.example"),
    Form("TO:<victim%dest.example@intake.example>", "victim%dest.example@intake.example"),
    Form("TO:<victim%dest.example@[127.0.0.1]>", "victim%dest.example@[127.0.0.1]"),
    Form("TO:<victim%dest.example>"),
    Form("TO:<dest.example!victim>"),
    Form("TO:<dest.example!victim@intake.example>", "dest.example!victim@intake.example"),
    Form("TO:<a!b!victim%dest.example@intake.example>", "a!b!victim%dest.example@intake.example"),
    Form("TO:<@intake.example:victim@dest.example>", "victim@dest.example"),
    Form("TO:<@intake.example,@b.example:victim@dest.example>", "victim@dest.example"),
    Form("TO:<@[127.0.0.1]:victim@dest.example>", "victim@dest.example"),
    Form('TO:<"victim@dest.example">'),
    Form('TO:<"victim@dest.example"@intake.example>', '"victim@dest.example"@intake.example'),
    Form("TO:<victim@dest.example@intake.example>"),
    Form('TO:<"victim"@dest.example>', '"victim"@dest.example'),
    Form("TO:<victim@dest.example@>"),
    Form("TO:<victim@>"),
    Form("TO:<@>"),
    Form("TO:<>"),
    Form("TO:<victim@[192.0.2.1]>", "victim@[192.0.2.1]"),
    Form("TO:<victim@[IPv6:2001:db8::1]>", "victim@[IPv6:2001:db8::1]"),
    Form("TO:<victim@192.0.2.1>", "victim@192.0.2.1"),
    Form("TO:<victim@dest.example.>"),
    Form("TO:<victim@intake.example>", "victim@intake.example"),
    Form("TO:<victim@localhost>", "victim@localhost"),
    Form("TO:<victim>"),
    Form("TO:<postmaster>", "postmaster@intake.example"),
    Form("TO:<PostMaster@dest.example>", "PostMaster@dest.example"),
    Form("TO:victim@dest.example"),
    Form("TO:<<victim@dest.example>>"),
    Form("TO:<victim@dest.example> <other@dest.example>"),
    Form("TO:<victim@intake.example>,<victim@dest.example>"),
    Form("TO:< victim@dest.example >"),
    Form("TO:<victim @dest.example>"),
    Form("TO:<victim@dest .example>"),
    Form("TO:<(comment)victim@dest.example>"),
    Form("TO:<victim(@intake.example)@dest.example>"),
    Form("TO:<victim@dest.example(comment)>"),
    Form("TO:Victim <victim@dest.example>"),
    Form("TO:<vict\xefm@dest.example>"),
    Form("TO:<victim@d\xebst.example>"),
    Form("TO:<victim@dest.example\0@intake.example>"),
    Form("TO:<victim@dest.example\r@intake.example>"),
    Form("TO:<|/bin/sh@dest.example>", "|/bin/sh@dest.example"),
    Form("TO:<:include:/etc/passwd@dest.example>"),
)


RULES = Rules(relay_from=Networks.of((f"{INSIDE}/32",)))


async def hand_in(port: int, argument: str, *, address: str) -> str:
    """Send a whole mail with one recipient, whatever the replies are. Return the reply to RCPT."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    replies = [await reader.readline()]
    for line in (b"HELO client.example", b"MAIL FROM:<>", b"RCPT " + argument.encode("latin-1")):
        writer.write(line + b"\r\n")
        replies.append(await reader.readline())
    writer.write(b"DATA\r\n")
    if (await reader.readline()).startswith(b"354"):
        writer.write(b"body\r\n.\r\n")
        assert (await reader.readline()).startswith(b"250")
    writer.transport.abort()
    return replies[-1].decode().rstrip()


@pytest.mark.parametrize("form", FORMS, ids=str)
async def test_no_form_of_a_recipient_is_relayed_for_a_client_outside(form: Form) -> None:
    async with an_intake(RULES) as (queue, port):
        reply = await hand_in(port, form.argument, address=OUTSIDE)

    assert queue.mails == []
    if form.mailbox is None:
        assert reply[:1] == "5"
    else:
        assert reply == "550 5.7.1 relaying denied: your address may not send to this recipient"


@pytest.mark.parametrize("form", FORMS, ids=str)
async def test_a_form_from_inside_is_one_mailbox_or_an_error_of_syntax(form: Form) -> None:
    async with an_intake(RULES) as (queue, port):
        reply = await hand_in(port, form.argument, address=INSIDE)

    assert [mail.recipients for mail, _ in queue.mails] == (
        [] if form.mailbox is None else [(form.mailbox,)]
    )
    assert reply[:3] in (("500", "501", "553") if form.mailbox is None else ("250",))


async def test_a_client_is_known_by_its_ipv4_address_on_a_socket_for_both_families() -> None:
    """The socket shows it as ::ffff:127.0.0.1."""
    async with an_intake(RULES, ANY_HOST) as (_, port):
        inside = await hand_in(port, "TO:<a@dest.example>", address=INSIDE)
        outside = await hand_in(port, "TO:<a@dest.example>", address=OUTSIDE)

    assert inside.startswith("250 ")
    assert outside.startswith("550 5.7.1 ")
