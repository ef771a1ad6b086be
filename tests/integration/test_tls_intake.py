"""An intake whose clients begin with TLS: what they get, and what one that fails costs.
Source: RFC 8314 3.3."""

import asyncio
import contextlib
import logging
import re
import smtplib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
import uvloop

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.intake.clients import ClientLimits, Clients
from postroad.intake.context import ClientTimeouts, IntakeContext
from postroad.intake.dialogue import Offer
from postroad.intake.server import SmtpServer
from postroad.ports.mail_queue import MailQueue
from postroad.smtp.server import ServerCertificate
from postroad.telemetry.metrics import FAILED_HANDSHAKES
from support.certificates import Certificates
from support.recording_queue import RecordingQueue

HELLO = b"EHLO client.example\r\n"


class Ports:
    """A listening intake: one port in clear, one on which TLS comes first."""

    def __init__(self, queue: RecordingQueue, server: SmtpServer, secured: int) -> None:
        self.queue, self.server = queue, server
        self.plain, self.secured = server.port, secured

    async def send(self, context: ssl.SSLContext) -> None:
        """Send a mail with another implementation's client."""

        def sent() -> None:
            with smtplib.SMTP_SSL(
                "localhost", self.secured, "other.example", context=context
            ) as client:
                client.sendmail("a@origin.example", ["b@dest.example"], b"under TLS\r\n")

        await asyncio.to_thread(sent)

    async def certificate(self) -> bytes:
        """Return the certificate of a session that begins now."""

        def seen() -> bytes:
            return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("localhost", self.secured)))

        return await asyncio.to_thread(seen)


@asynccontextmanager
async def an_intake(
    tls: Callable[[], ssl.SSLContext],
    timeouts: ClientTimeouts | None = None,
    max_sessions: int = 500,
    **limits: int,
) -> AsyncIterator[Ports]:
    queue = RecordingQueue()
    context = IntakeContext(
        cast("MailQueue", queue),
        Offer("intake.example", 2**20),
        MachineClock(),
        SystemRandomness(),
        tls,
        timeouts or ClientTimeouts(),
    )
    server = SmtpServer(context, max_sessions=max_sessions, clients=Clients(ClientLimits(**limits)))
    await server.listen("127.0.0.1", 0)
    secured = await server.listen("127.0.0.1", 0, tls=True)
    try:
        yield Ports(queue, server, secured)
    finally:
        queue.gate.set()
        await server.drain(timedelta(seconds=1))


def failed_handshakes() -> dict[str, float]:
    """Return how many handshakes have failed so far, by reason."""
    return {
        sample.labels["reason"]: sample.value
        for metric in FAILED_HANDSHAKES.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    }


async def until_failed(before: dict[str, float], reason: str) -> None:
    """Wait until one more handshake has failed for that reason, and for no other."""
    expected = before | {reason: before.get(reason, 0) + 1}
    async with asyncio.timeout(60):
        while failed_handshakes() != expected:
            await asyncio.sleep(0.01)


async def test_a_mail_under_tls_from_the_first_octet_is_accepted_beside_the_port_in_clear(
    certificates: Certificates,
) -> None:
    async with an_intake(certificates.server_context) as intake:
        await intake.send(certificates.client_context())
        reader, writer = await asyncio.open_connection("127.0.0.1", intake.plain)
        assert (await reader.readline()).startswith(b"220 intake.example")
        writer.transport.abort()

    [(mail, content)] = intake.queue.mails
    assert mail.origin is not None
    assert (mail.origin.protocol, mail.origin.address) == ("ESMTPS", "127.0.0.1")
    assert b" with ESMTPS id " in content
    assert re.search(rb"\r\n\t\(using TLSv1\.3 with cipher TLS_[A-Z0-9_]+\)\r\n\tby ", content)


async def test_starttls_is_neither_offered_nor_done_under_tls(certificates: Certificates) -> None:
    async with an_intake(certificates.server_context) as intake:
        reader, writer = await asyncio.open_connection(
            "localhost", intake.secured, ssl=certificates.client_context()
        )
        await reader.readline()
        writer.write(HELLO)
        offered: list[bytes] = []
        while not offered or offered[-1][3:4] == b"-":
            offered.append(await reader.readline())
        writer.write(b"STARTTLS\r\n")
        refused = await reader.readline()
        writer.transport.abort()

    assert b"250-PIPELINING\r\n" in offered
    assert not any(b"STARTTLS" in each for each in offered)
    assert refused.startswith(b"503 ")


def test_it_is_so_on_uvloop_as_in_the_pods(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for test in (
            test_a_mail_under_tls_from_the_first_octet_is_accepted_beside_the_port_in_clear,
            test_starttls_is_neither_offered_nor_done_under_tls,
            test_a_silent_client_is_cut_off_in_time,
            test_a_drain_waits_for_no_handshake,
        ):
            runner.run(test(certificates))
        for first in FIRST_OCTETS:
            runner.run(
                test_a_handshake_that_fails_is_counted_and_logged(certificates, caplog, first)
            )


FIRST_OCTETS = {
    b"EHLO client.example\r\nMAIL FROM:<a@b.example>\r\n": "refused",
    b"\x16\x03\x01\x02\x00\x01": "left",
    b"": "left",
}


@pytest.mark.parametrize("first", FIRST_OCTETS, ids=["in clear", "half a greeting", "nothing"])
async def test_a_handshake_that_fails_is_counted_and_logged(
    certificates: Certificates, caplog: pytest.LogCaptureFixture, first: bytes
) -> None:
    caplog.set_level(logging.INFO, "postroad.intake")
    caplog.clear()
    before = failed_handshakes()
    async with an_intake(certificates.server_context) as intake:
        reader, writer = await asyncio.open_connection("127.0.0.1", intake.secured)
        writer.write(first)
        writer.write_eof()
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            answer = await reader.read()
        writer.close()
        await until_failed(before, FIRST_OCTETS[first])

    assert b"220" not in answer
    logged = [each for each in caplog.records if each.message == "TLS handshake failed"]
    assert [each.levelno for each in logged] == [logging.INFO]
    assert "127.0.0.1" not in str(vars(logged[0]))
    assert intake.queue.mails == []


async def test_a_silent_client_is_cut_off_in_time(certificates: Certificates) -> None:
    before = failed_handshakes()
    timeouts = ClientTimeouts(tls=timedelta(milliseconds=100))
    async with an_intake(certificates.server_context, timeouts) as intake:
        reader, writer = await asyncio.open_connection("127.0.0.1", intake.secured)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            answer = await reader.read()
        writer.close()
        await until_failed(before, "slow")

    assert b"220" not in answer
    assert intake.queue.mails == []


async def test_a_handshake_that_fails_after_starttls_is_counted_too(
    certificates: Certificates,
) -> None:
    before = failed_handshakes()
    async with an_intake(certificates.server_context) as intake:
        reader, writer = await asyncio.open_connection("127.0.0.1", intake.plain)
        await reader.readline()
        writer.write(b"STARTTLS\r\n")
        assert (await reader.readline()).startswith(b"220 ")
        writer.write(b"MAIL FROM:<a@b.example>\r\n")
        await until_failed(before, "refused")
        writer.transport.abort()

    assert intake.queue.mails == [], "the command in clear was not executed"


async def test_a_client_that_does_not_get_through_the_handshake_uses_up_its_share(
    certificates: Certificates,
) -> None:
    async with an_intake(certificates.server_context, sessions=1) as intake:
        _, silent = await asyncio.open_connection("127.0.0.1", intake.secured)
        reader, writer = await asyncio.open_connection("127.0.0.1", intake.plain)
        assert (await reader.read()).startswith(b"421 4.7.0 too many sessions")
        writer.close()

        reader, writer = await asyncio.open_connection("127.0.0.1", intake.secured)
        assert await reader.read() == b"", "no reply in clear where TLS is expected"
        writer.close()

        silent.transport.abort()
        for _ in range(500):
            reader, writer = await asyncio.open_connection("127.0.0.1", intake.plain)
            greeting = await reader.readline()
            writer.transport.abort()
            if greeting.startswith(b"220 "):
                break
        assert greeting.startswith(b"220 ")


@pytest.mark.parametrize("begins_with_tls", [False, True])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_full_intake_ends_a_handshake_that_makes_no_progress(
    certificates: Certificates, run: Callable[..., None], *, begins_with_tls: bool
) -> None:
    async def waits() -> None:
        timeouts = ClientTimeouts(stalled=timedelta(), tls=timedelta(hours=1))
        async with an_intake(certificates.server_context, timeouts, max_sessions=1) as intake:
            port = intake.secured if begins_with_tls else intake.plain
            reader, silent = await asyncio.open_connection("127.0.0.1", port)
            if not begins_with_tls:
                await reader.readline()
                silent.write(b"STARTTLS\r\n")
                assert (await reader.readline()).startswith(b"220 ")
            async with asyncio.timeout(60):
                other, writer = await asyncio.open_connection("127.0.0.1", intake.plain)
                assert (await other.readline()).startswith(b"220 ")
            silent.transport.abort()
            writer.transport.abort()

    run(waits())


async def test_a_drain_waits_for_no_handshake(certificates: Certificates) -> None:
    async with an_intake(certificates.server_context) as intake:
        reader, writer = await asyncio.open_connection("127.0.0.1", intake.secured)
        while not intake.server._handshakes:
            await asyncio.sleep(0.01)

        async with asyncio.timeout(60):
            await intake.server.drain(timedelta(hours=1))

        answer = b""
        with contextlib.suppress(ConnectionResetError):
            answer = await reader.read()
        writer.close()

    assert b"220" not in answer
    assert not intake.server._handshakes


async def test_sessions_see_the_certificate_that_is_mounted_when_they_begin(
    tmp_path: Path,
) -> None:
    """The kubelet renews a mounted Secret by swapping a symlink."""
    made = {}
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        made[name] = Certificates.make(tmp_path / name)
    data = tmp_path / "..data"
    data.symlink_to(tmp_path / "first")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(data / name)
    certificate = ServerCertificate(tmp_path / "tls.crt", tmp_path / "tls.key")

    async with an_intake(certificate.context) as intake:
        reader, writer = await asyncio.open_connection(
            "localhost", intake.secured, ssl=made["first"].client_context()
        )
        await reader.readline()
        before = await intake.certificate()

        (tmp_path / "..data_tmp").symlink_to(tmp_path / "second")
        (tmp_path / "..data_tmp").rename(data)

        after = await intake.certificate()
        await intake.send(made["second"].client_context())
        with pytest.raises(ssl.SSLCertVerificationError):
            await intake.send(made["first"].client_context())
        writer.write(b"NOOP\r\n")
        assert (await reader.readline()).startswith(b"250 "), "an old session goes on"
        writer.transport.abort()

    assert before != after
    assert len(intake.queue.mails) == 1


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_a_client_without_tls_1_2_is_refused(certificates: Certificates) -> None:
    certificate = ServerCertificate(certificates.chain, certificates.key)
    old = certificates.client_context()
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    before = failed_handshakes()
    async with an_intake(certificate.context) as intake:
        with pytest.raises(OSError):
            await asyncio.open_connection("localhost", intake.secured, ssl=old)
        await until_failed(before, "refused")

    assert intake.queue.mails == []
