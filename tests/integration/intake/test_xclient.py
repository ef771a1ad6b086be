"""Proxies that describe their clients by XCLIENT."""

from __future__ import annotations

import asyncio
import smtplib
from pathlib import Path
from typing import Any

import pytest

from postroad.domain.mail.mail import Origin
from support.intake_files import SUBMISSION, RunningIntake, an_intake_by_file

RELAY: dict[str, Any] = {
    "listeners": [
        {"name": "relay", "role": "relay", "from": ["192.0.2.1"], "xclientFrom": ["127.0.0.1"]}
    ]
}


def talk(running: RunningIntake, *lines: str, source: str = "127.0.0.1") -> list[int]:
    """Return the codes of the replies."""
    (port,) = running.ports.values()
    with smtplib.SMTP(
        "127.0.0.1", port, "proxy.example", timeout=20, source_address=(source, 0)
    ) as client:
        codes = []
        for each in lines:
            client.send(f"{each}\r\n")
            codes.append(client.getreply()[0])
        return codes


SEND = ("MAIL FROM:<>", "RCPT TO:<x@dest.example>")


@pytest.mark.parametrize(
    ("attributes", "codes"),
    [
        ("ADDR=192.0.2.1", [220, 250, 250, 250]),
        (
            "addr=192.0.2.1 NAME=[UNAVAILABLE] PORT=4711 DESTADDR=192.0.2.9 DESTPORT=25",
            [220] + [250] * 3,
        ),
        ("ADDR=IPV6:2001:db8::1", [220, 250, 250, 550]),
        ("ADDR=192.0.2.2", [220, 250, 250, 550]),
        ("ADDR=[UNAVAILABLE]", [501, 250, 250, 550]),
        ("ADDR=127.0.0.1.example", [501, 250, 250, 550]),
        ("ADDR=IPV6:fe80::1%+29+20(evil", [501, 250, 250, 550]),
        ("ADDR=IPV6:fe80::1%eth0", [220, 250, 250, 550]),
        ("ADDR=192.0.2.1 ADDR=192.0.2.1", [501, 250, 250, 550]),
        ("ADDR=192.0.2.1 COLOUR=red", [501, 250, 250, 550]),
        ("ADDR=192.0.2.1 LOGIN=alice", [501, 250, 250, 550]),
        ("ADDR=192.0.2.1 HELO=a+0D+0Ab", [501, 250, 250, 550]),
        ("", [501, 250, 250, 550]),
    ],
)
async def test_a_client_has_the_rights_of_the_address_that_a_proxy_says(
    tmp_path: Path, attributes: str, codes: list[int]
) -> None:
    async with an_intake_by_file(tmp_path, RELAY) as running:
        lines = (f"XCLIENT {attributes}".strip(), "EHLO client.example", *SEND)
        assert await asyncio.to_thread(talk, running, *lines) == codes


@pytest.mark.parametrize("first", ["ADDR=192.0.2.2", "ADDR=192.0.2.2 HELO=c.example"])
async def test_a_client_behind_a_proxy_does_not_describe_itself(tmp_path: Path, first: str) -> None:
    async with an_intake_by_file(tmp_path, RELAY) as running:
        lines = (f"XCLIENT {first}", "EHLO c.example", "XCLIENT ADDR=192.0.2.1", *SEND)
        assert await asyncio.to_thread(talk, running, *lines) == [220, 250, 502, 250, 550]
        lines = ("XCLIENT NAME=c.example", "XCLIENT ADDR=192.0.2.1", "EHLO c.example", *SEND)
        assert await asyncio.to_thread(talk, running, *lines) == [220, 220, 250, 250, 250]


async def test_a_client_behind_a_proxy_is_no_other_user(tmp_path: Path) -> None:
    listener = SUBMISSION["listeners"][0] | {"xclientFrom": ["127.0.0.1"]}
    async with an_intake_by_file(tmp_path, SUBMISSION | {"listeners": [listener]}) as running:
        lines = ("XCLIENT LOGIN=alice", "EHLO c.example", "XCLIENT LOGIN=bob")
        assert await asyncio.to_thread(talk, running, *lines) == [220, 250, 502]


async def test_xclient_is_offered_to_these_networks_alone(tmp_path: Path) -> None:
    async with an_intake_by_file(tmp_path, RELAY) as running:

        def offers(source: str) -> bool:
            port = running.ports["relay"]
            with smtplib.SMTP("127.0.0.1", port, source_address=(source, 0)) as client:
                client.ehlo()
                return client.has_extn("xclient")

        assert await asyncio.to_thread(offers, "127.0.0.1")
        assert not await asyncio.to_thread(offers, "127.0.0.2")
        lines = ("XCLIENT ADDR=192.0.2.1", "EHLO c.example", *SEND)
        said = await asyncio.to_thread(lambda: talk(running, *lines, source="127.0.0.2"))

    assert said == [502, 250, 250, 550]


async def test_a_mail_and_its_limits_are_those_of_the_client(tmp_path: Path) -> None:
    async with an_intake_by_file(tmp_path, RELAY, client_mails_per_minute=1) as running:
        first = "XCLIENT ADDR=192.0.2.1 HELO=app.example PROTO=ESMTP"
        mail = (*SEND, "DATA", "Subject: x\r\n\r\nx\r\n.")
        amid = ("MAIL FROM:<>", "XCLIENT ADDR=192.0.2.2")
        codes = await asyncio.to_thread(talk, running, first, *mail, amid[0])
        once_more = await asyncio.to_thread(talk, running, "EHLO proxy.example", *amid)

    assert codes == [220, 250, 250, 354, 250, 421]
    assert once_more == [250, 250, 503]
    ((mail_, *_),) = running.queue.mails
    assert mail_.origin == Origin("app.example", "192.0.2.1", "ESMTP")


async def test_a_user_that_has_logged_in_at_the_proxy_may_send(tmp_path: Path) -> None:
    listener = SUBMISSION["listeners"][0] | {"xclientFrom": ["127.0.0.1"]}
    rule = {"users": ["alice"], "senders": ["@example.org"], "from": ["192.0.2.0/24"]}
    document = SUBMISSION | {"listeners": [listener], "rules": [rule]}
    wanted = ("MAIL FROM:<a@example.org>", "RSET", "MAIL FROM:<a@other.example>")
    async with an_intake_by_file(tmp_path, document) as running:

        def said(address: str) -> list[int]:
            attributes = f"ADDR={address} LOGIN=alice"
            return talk(running, f"XCLIENT {attributes}", "EHLO c.example", *wanted)

        assert await asyncio.to_thread(said, "192.0.2.1") == [220, 250, 250, 250, 553]
        assert await asyncio.to_thread(said, "198.51.100.1") == [535, 250, 530, 250, 530]
