"""Listeners by role, of one file of intake: who may send what through which."""

from __future__ import annotations

import asyncio
import smtplib
import socket
import ssl
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY

from support.certificates import Certificates
from support.intake_files import (
    PASSWORD,
    SUBMISSION,
    TLS,
    RunningIntake,
    an_intake_by_file,
    write_users,
)

MX: dict[str, Any] = {
    "listeners": [{"name": "mx", "role": "mx"}],
    "domains": [
        {"name": "example.org", "recipients": {"file": "recipients"}},
        {"name": "backup.example"},
    ],
}


def replies(port: int, *commands: str) -> list[int]:
    with smtplib.SMTP("127.0.0.1", port, "client.example", timeout=60) as client:
        client.ehlo()
        return [client.docmd(each)[0] for each in commands]


async def test_an_mx_takes_mail_for_its_own_domains_alone(tmp_path: Path) -> None:
    (tmp_path / "recipients").write_text("# staff\nalice\nBob@example.org  # away\n")
    async with an_intake_by_file(tmp_path, MX) as running:
        recipients = {
            "alice@example.org": 250,
            "ALICE@EXAMPLE.ORG": 250,
            "bob@example.org": 250,
            "postmaster@example.org": 250,
            "postmaster": 250,
            "carol@example.org": 550,
            "carl@backup.example": 250,
            "x@sub.example.org": 550,
            "x@dest.example": 550,
        }
        commands = ("MAIL FROM:<>", *(f"RCPT TO:<{each}>" for each in recipients))
        got = await asyncio.to_thread(replies, running.ports["mx"], *commands)

    assert got == [250, *recipients.values()]


async def test_changed_recipients_are_used_without_a_restart(tmp_path: Path) -> None:
    (tmp_path / "recipients").write_text("alice\n")
    commands = ("MAIL FROM:<>", "RCPT TO:<carol@example.org>")
    async with an_intake_by_file(tmp_path, MX) as running:
        port = running.ports["mx"]
        assert await asyncio.to_thread(replies, port, *commands) == [250, 550]
        (tmp_path / "recipients").write_text("alice\ncarol\n")
        running.process.look()
        while await asyncio.to_thread(replies, port, *commands) != [250, 250]:
            await asyncio.sleep(0.01)


RELAY = {"listeners": [{"name": "relay", "role": "relay", "from": ["127.0.0.2"]}]}


async def test_a_relay_takes_mail_of_its_networks_alone(tmp_path: Path) -> None:
    async with an_intake_by_file(tmp_path, RELAY) as running:
        for source, code in (("127.0.0.1", 550), ("127.0.0.2", 250)):

            def work(source: str = source) -> int:
                with smtplib.SMTP(
                    "127.0.0.1", running.ports["relay"], "c.example", source_address=(source, 0)
                ) as client:
                    client.ehlo()
                    client.docmd("MAIL FROM:<>")
                    return client.docmd("RCPT TO:<x@dest.example>")[0]

            assert await asyncio.to_thread(work) == code


def said(port: int, *header: bytes, lines: tuple[bytes, ...] = ()) -> bytes:
    """Send a header in pieces, then each line once the last one is answered; return all replies."""
    with socket.create_connection(("127.0.0.1", port), 20) as client, client.makefile("rb") as got:
        for each in header:
            client.sendall(each)
        replies = b""
        for line in (*lines, b""):
            while reply := got.readline():
                replies += reply
                if reply[3:4] == b" ":
                    break
            client.sendall(line)
        return replies


LINES = (b"EHLO c.example\r\n", b"MAIL FROM:<>\r\n", b"RCPT TO:<x@dest.example>\r\n")
V2 = b"\r\n\r\n\0\r\nQUIT\n"


@pytest.mark.parametrize(
    ("header", "relays"),
    [
        (b"PROXY TCP4 127.0.0.2 192.0.2.2 4711 25\r\n", True),
        (b"PROXY TCP4 192.0.2.9 192.0.2.2 4711 25\r\n", False),
        (b"PROXY TCP6 2001:db8::1 2001:db8::2 4711 25\r\n", False),
        (b"PROXY UNKNOWN\r\n", False),
        (V2 + b"\x21\x11\0\x0c\x7f\0\0\x02\xc0\0\2\2\x12\x34\0\x19", True),
        (V2 + b"\x21\x11\0\x0f\x7f\0\0\x02\xc0\0\2\2\x12\x34\0\x19\x04\0\0", True),
        (V2 + b"\x20\0\0\0", False),
    ],
)
async def test_a_proxy_says_the_client_s_address(
    tmp_path: Path, header: bytes, relays: bool
) -> None:
    document = {"listeners": [RELAY["listeners"][0] | {"proxyFrom": ["127.0.0.1"]}]}
    async with an_intake_by_file(tmp_path, document) as running:
        port = running.ports["relay"]
        whole = await asyncio.to_thread(partial(said, port, header, lines=LINES))
        cut = await asyncio.to_thread(partial(said, port, header[:5], header[5:], lines=LINES))

    assert (b"250 2.1.5 ok" in whole) is relays
    assert cut == whole


@pytest.mark.parametrize(
    "header", [b"PROXY UNKNOWN\r\n", V2 + b"\x20\0\0\0", V2 + b"\x21\0\0\0"], ids=repr
)
async def test_a_client_that_a_proxy_does_not_name_lacks_the_rights_of_the_proxy(
    tmp_path: Path, header: bytes
) -> None:
    here = ["127.0.0.1"]
    listener = RELAY["listeners"][0] | {"from": here, "proxyFrom": here, "xclientFrom": here}
    async with an_intake_by_file(tmp_path, {"listeners": [listener]}) as running:
        said_client = b"XCLIENT ADDR=127.0.0.1\r\n"
        lines = (LINES[0], said_client, *LINES)
        got = await asyncio.to_thread(said, running.ports["relay"], header, lines=lines)

    assert b"502 5.5.1" in got
    assert b"550 5.7.1" in got


@pytest.mark.parametrize(
    "header",
    [
        b"EHLO c.example\r\n",
        b"PROXY TCP4 1.2.3.4\r\n",
        b"PROXY TCP4 2001:db8::1 2001:db8::2 1 2\r\n",
        b"PROXY " + b"x" * 200,
        V2 + b"\x21\x11\0\x02ab",
        V2 + b"\x99\x11\0\0",
        V2 + b"\x21\x11\xff\xff",
    ],
)
async def test_a_proxy_without_a_header_is_refused(tmp_path: Path, header: bytes) -> None:
    document = {"listeners": [RELAY["listeners"][0] | {"proxyFrom": ["127.0.0.1"]}]}
    async with an_intake_by_file(tmp_path, document) as running:
        try:
            got = await asyncio.to_thread(said, running.ports["relay"], header)
        except ConnectionError:
            got = b""
    assert got == b""


async def test_a_proxy_line_from_elsewhere_is_a_wrong_command(tmp_path: Path) -> None:
    document = {"listeners": [RELAY["listeners"][0] | {"proxyFrom": ["192.0.2.1"]}]}
    async with an_intake_by_file(tmp_path, document) as running:
        line = b"PROXY TCP4 127.0.0.2 192.0.2.2 4711 25\r\n"
        got = await asyncio.to_thread(partial(said, running.ports["relay"], lines=(line, *LINES)))

    assert b"502 5.5.1" in got
    assert b"550 5.7.1" in got


@pytest.mark.parametrize("served", ["smtp.example.net", "*.example.net"])
async def test_a_client_chooses_a_certificate_by_its_name(tmp_path: Path, served: str) -> None:
    other = Certificates.make(tmp_path / "other", "smtp.example.net")
    tls = {
        "mode": "Implicit",
        "certificates": [
            *TLS["certificates"],
            {"cert": "other/tls.crt", "key": "other/tls.key", "names": [served]},
        ],
    }
    document = {"listeners": [{"name": "smtps", "role": "relay", "tls": tls}]}
    async with an_intake_by_file(tmp_path, document) as running:

        def greeting(name: str, context: ssl.SSLContext) -> bytes:
            with (
                socket.create_connection(("127.0.0.1", running.ports["smtps"]), 60) as connection,
                context.wrap_socket(connection, server_hostname=name) as secured,
            ):
                return secured.recv(100)

        first = running.certificates.client_context()
        assert (await asyncio.to_thread(greeting, "localhost", first)).startswith(b"220 ")
        got = await asyncio.to_thread(greeting, "smtp.example.net", other.client_context())
        assert got.startswith(b"220 intake.example")
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(greeting, "smtp.example.net", first)


async def test_chunks_in_clear_are_forgotten_where_tls_starts(tmp_path: Path) -> None:
    document = {
        "listeners": [{"name": "mx", "role": "mx", "tls": TLS}],
        "domains": [{"name": "own.example"}],
    }
    async with an_intake_by_file(tmp_path, document) as running:

        def work() -> int:
            with running.client("mx", secured=False) as client:
                client.ehlo()
                client.docmd("MAIL FROM:<>")
                client.docmd("RCPT TO:<x@own.example>")
                client.send(b"BDAT 3\r\nabc")
                assert client.getreply()[0] == 250
                client.starttls(context=running.certificates.client_context())
                client.send(b"BDAT 3 LAST\r\nabc")
                return client.getreply()[0]

        assert await asyncio.to_thread(work) == 503
    assert running.queue.mails == []


async def test_an_empty_file_of_recipients_bounces_no_mail(tmp_path: Path) -> None:
    (tmp_path / "recipients").write_text("alice\n")
    commands = ("MAIL FROM:<>", "RCPT TO:<alice@example.org>")
    async with an_intake_by_file(tmp_path, MX) as running:
        (tmp_path / "recipients").write_text("")
        running.process.look()
        while REGISTRY.get_sample_value("postroad_intake_file_refused") != 1:
            await asyncio.sleep(0.01)
        assert await asyncio.to_thread(replies, running.ports["mx"], *commands) == [250, 250]


async def changed(running: RunningIntake, **change: Any) -> None:
    """Change the file of intake, and wait until it is used or refused."""
    file = running.folder / "intake.yaml"
    before = reads()
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | change))
    running.process.look()
    while reads() == before:
        await asyncio.sleep(0.01)


def reads() -> list[float | None]:
    names = ("used", "refused")
    return [
        REGISTRY.get_sample_value("postroad_intake_file_reads_total", {"result": each})
        for each in names
    ]


@pytest.mark.parametrize("field", ["from", "proxyFrom", "xclientFrom"])
async def test_networks_that_become_an_open_relay_are_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, field: str
) -> None:
    async with an_intake_by_file(tmp_path, RELAY) as running:
        file = yaml.safe_load((tmp_path / "intake.yaml").read_text())
        listener = file["listeners"][0]
        await changed(running, listeners=[listener | {field: ["0.0.0.0/0"]}])
        await changed(running, hostname="mx.example.org")

    warnings = [each.message for each in caplog.records if "open relay" in each.message]
    assert len(warnings) == 1


@pytest.mark.parametrize(
    ("users", "code"), [({"file": "more.yaml"}, 235), ({"dovecot": {"socket": "/none"}}, 535)]
)
async def test_another_file_of_users_is_followed_and_another_kind_of_place_needs_a_restart(
    tmp_path: Path, users: dict[str, Any], code: int
) -> None:
    write_users(tmp_path / "more.yaml", bob=PASSWORD)

    def login(running: RunningIntake) -> int:
        with running.client() as client:
            try:
                return client.login("bob", PASSWORD)[0]
            except smtplib.SMTPAuthenticationError as refused:
                return refused.smtp_code

    async with an_intake_by_file(tmp_path, SUBMISSION) as running:
        assert await asyncio.to_thread(login, running) == 535
        await changed(running, users=users)
        assert await asyncio.to_thread(login, running) == code


async def test_a_file_of_users_beside_an_issuer_needs_a_restart(tmp_path: Path) -> None:
    oidc = {"issuer": "http://127.0.0.1:1", "audience": "postroad"}
    document = SUBMISSION | {"users": {"oidc": oidc}}
    async with an_intake_by_file(tmp_path, document) as running:
        await changed(running, users={"oidc": oidc, "file": "users.yaml"})
        assert REGISTRY.get_sample_value("postroad_intake_file_refused") == 1
