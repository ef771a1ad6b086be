"""What a connection sends over TCP and TLS before the end of a mail is answered."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.smtp.next_hops import NextHop, TlsMode
from postroad.routing.routes import ResolvedHop
from postroad.smtp.client.connections import SmtpConnector
from support.certificates import Certificates
from support.connections import Events, a_job, body_of

NEXT = b"MAIL FROM:<job2@origin.example>\r\nRCPT TO:<b2@dest.example>\r\nDATA\r\n"


class Recorder:
    """Accepts one connection, and answers the ends of mails when the test has looked."""

    def __init__(self, *, is_pipelined: bool) -> None:
        self._hello = b"250-x\r\n250 PIPELINING\r\n" if is_pipelined else b"250 x\r\n"
        self.before_the_answer = asyncio.Queue[bytes]()
        """For each mail: what had come behind its end when its answer was sent."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 x\r\n")
        while line := await reader.readline():
            verb = line[:4]
            writer.write({b"EHLO": self._hello, b"DATA": b"354 go\r\n"}.get(verb, b"250 ok\r\n"))
            if verb == b"DATA":
                await reader.readuntil(b"\r\n.\r\n")
                behind = await self._look(reader)
                self.before_the_answer.put_nowait(behind)
                writer.write(b"250 kept\r\n" * (1 + behind.count(b"\r\n") - (b"DATA" in behind)))
                if b"DATA" in behind:
                    writer.write(b"354 go\r\n")
                    await reader.readuntil(b"\r\n.\r\n")
                    writer.write(b"250 kept\r\n")
        writer.close()

    async def _look(self, reader: asyncio.StreamReader) -> bytes:
        """Return what comes within a moment: all of the group, or nothing."""
        try:
            async with asyncio.timeout(0.3):
                return await reader.readexactly(len(NEXT))
        except TimeoutError:
            return b""


@pytest.mark.parametrize("is_pipelined", [True, False], ids=["pipelined", "stepwise"])
@pytest.mark.parametrize("mode", [TlsMode.NONE, TlsMode.IMPLICIT])
async def test_the_next_mail_is_on_the_wire_before_the_end_of_a_mail_is_answered(
    certificates: Certificates, mode: TlsMode, *, is_pipelined: bool
) -> None:
    recorder = Recorder(is_pipelined=is_pipelined)
    tls: ssl.SSLContext | None = None
    if mode is TlsMode.IMPLICIT:
        tls = certificates.server_context()
    server = await asyncio.start_server(recorder.serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    connector = SmtpConnector(ehlo_name="relay.example", ca_file=certificates.authority)
    events = Events()
    connection = connector.open(
        ResolvedHop(NextHop("localhost", port, mode), ("127.0.0.1",)), events
    )
    for job in (1, 2):
        connection.submit(a_job(job, content=body_of(job)))
    await events.until_finished(2)
    connection.close()
    await events.until_closed()
    server.close()

    assert await recorder.before_the_answer.get() == (NEXT if is_pipelined else b"")
    assert [set(each.values()) for each in events.finished.values()] == [
        {OutcomeKind.DELIVERED}
    ] * 2


@pytest.mark.parametrize("is_named", [True, False], ids=["of the hop", "of every server"])
async def test_the_authorities_of_a_hop_count_in_place_of_those_for_every_server(
    certificates: Certificates, tmp_path: Path, *, is_named: bool
) -> None:
    strangers = Certificates.make(tmp_path / "others").authority
    named, usual = certificates.authority, strangers
    if not is_named:
        named, usual = usual, named
    tls = certificates.server_context()
    recorder = Recorder(is_pipelined=True)
    server = await asyncio.start_server(recorder.serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    hop = NextHop("localhost", port, TlsMode.IMPLICIT, authorities=named)
    events = Events()

    connection = SmtpConnector(ehlo_name="relay.example", ca_file=usual).open(
        ResolvedHop(hop, ("127.0.0.1",)), events
    )
    connection.submit(a_job(1, content=body_of(1)))
    if is_named:
        await events.until_finished(1)
        connection.close()
    await events.until_closed()
    server.close()

    delivered = [set(each.values()) for each in events.finished.values()]
    assert delivered == ([{OutcomeKind.DELIVERED}] if is_named else [])


async def test_authorities_count_as_their_file_has_them_when_a_connection_opens(
    certificates: Certificates, tmp_path: Path
) -> None:
    file, strangers = tmp_path / "ca.pem", Certificates.make(tmp_path / "others").authority
    connector = SmtpConnector(ehlo_name="relay.example")
    recorder = Recorder(is_pipelined=False)
    tls = certificates.server_context()
    server = await asyncio.start_server(recorder.serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    hop = ResolvedHop(
        NextHop("localhost", port, TlsMode.IMPLICIT, authorities=file), ("127.0.0.1",)
    )

    async def is_delivered(authority: Path) -> bool:
        new = tmp_path / "new.pem"
        new.write_bytes(authority.read_bytes())
        new.replace(file)
        events = Events()
        connection = connector.open(hop, events)
        connection.submit(a_job(1, content=body_of(1)))
        if authority == certificates.authority:
            async with asyncio.timeout(20):
                await events.until_finished(1)
            connection.close()
        await events.until_closed()
        return bool(events.finished)

    found = [
        await is_delivered(each)
        for each in (strangers, certificates.authority, strangers, certificates.authority)
    ]
    server.close()

    assert found == [False, True, False, True]
