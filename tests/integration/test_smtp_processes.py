"""Intake and worker as processes, as pods run them: probes, signals, kills; no mail is lost."""

import asyncio
import secrets
import smtplib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from postroad import open_queue
from postroad.bootstrap.cluster import connect
from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.queues.names import QueueName
from postroad.domain.smtp.next_hops import NextHop, TlsMode
from postroad.ports.mail_queue import MailQueue
from postroad.settings import from_environment
from support.certificates import Certificates
from support.mails import Sample, samples
from support.one_hop import OneHop
from support.programs import Program
from support.servers import cql
from support.sink import Sink, rule_for

real_servers = pytest.mark.needs("rabbitmq", "cassandra", "s3")


@pytest.fixture
async def programs(tmp_path: Path) -> AsyncIterator[list[Program]]:
    """Programs, of which those that still run are killed at the end."""
    started: list[Program] = []
    yield started
    for program in started:
        await program.kill()


async def test_an_intake_serves_and_ends_in_good_order(
    tmp_path: Path, programs: list[Program]
) -> None:
    intake = await Program.start(
        tmp_path, *("intake", "--queue", "memory://q", "--create", "--listen", "127.0.0.1:0")
    )
    programs.append(intake)
    await intake.until_ready()
    port = await intake.port("listening")

    def send() -> None:
        with smtplib.SMTP("127.0.0.1", port) as client:
            client.sendmail("a@origin.example", ["b@dest.example"], b"Subject: x\r\n\r\ny\r\n")

    await asyncio.to_thread(send)
    metrics = await intake.ask("/metrics")
    code = await intake.stop()

    assert (
        'postroad_received_mails_total{name="q",namespace="memory",reply="accepted"} 1.0' in metrics
    )
    assert '"event": "mail accepted"' in intake.log.read_text()
    assert "dest.example" not in intake.log.read_text()
    assert code == 0


async def test_a_worker_with_nothing_to_do_is_ready_and_ends_in_good_order(
    tmp_path: Path, programs: list[Program]
) -> None:
    worker = await Program.start(
        tmp_path, *("worker", "--queue", "memory://q", "--create", "--relay", "127.0.0.1:1")
    )
    programs.append(worker)
    await worker.until_ready()

    assert await worker.stop() == 0


async def test_a_receiver_that_is_full_leaves_clients_to_one_with_room(
    tmp_path: Path, programs: list[Program]
) -> None:
    """Thirty clients that send nothing, where each of two receivers has room for 20."""
    queue = f"embedded://{tmp_path / 'store'}"
    mta = await Program.start(
        tmp_path,
        *("mta", "--queue", queue, "--listen", "127.0.0.1:0", "--relay", "127.0.0.1:1"),
        *("--receivers", "2"),
        environment={"POSTROAD_INTAKE_MAX_SESSIONS": "40", "POSTROAD_INTAKE_CLIENT_SESSIONS": "40"},
    )
    programs.append(mta)
    port = await mta.port("listening")
    clients = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(30)))

    greetings = await asyncio.gather(*(reader.readline() for reader, _ in clients))

    assert Counter(greeting[:4] for greeting in greetings) == {b"220 ": 30}
    for _, writer in clients:
        writer.transport.abort()
    assert await mta.stop() == 0


@pytest.mark.parametrize("receivers", [0, 2])
@pytest.mark.parametrize("beside", [True, False], ids=["beside", "instead"])
async def test_clients_begin_with_tls_beside_or_instead_of_the_port_in_clear(
    tmp_path: Path,
    programs: list[Program],
    certificates: Certificates,
    receivers: int,
    beside: bool,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    mta = await Program.start(
        tmp_path,
        *("mta", "--queue", f"embedded://{tmp_path / 'store'}", "--relay", "127.0.0.1:1"),
        *("--listen", "127.0.0.1:0" if beside else f"127.0.0.1:{port}"),
        *("--receivers", str(receivers)),
        environment={
            "POSTROAD_INTAKE_TLS_PORT": port,
            "POSTROAD_INTAKE_TLS_CERTIFICATE": str(certificates.chain),
            "POSTROAD_INTAKE_TLS_KEY": str(certificates.key),
        },
    )
    programs.append(mta)
    await mta.until_ready()
    plain = await mta.port("listening")

    def send() -> None:
        context = certificates.client_context()
        with smtplib.SMTP_SSL("localhost", int(port), context=context) as client:
            client.sendmail("a@origin.example", ["b@dest.example"], b"Subject: x\r\n\r\ny\r\n")

    await asyncio.to_thread(send)
    reader, writer = await asyncio.open_connection("127.0.0.1", plain)
    writer.write(b"QUIT\r\n")
    said = await reader.read()
    writer.close()

    assert said.startswith(b"220 ") == beside
    assert (plain == int(port)) != beside
    assert await mta.stop() == 0


@pytest.mark.parametrize("receivers", ["0", "1"])
async def test_an_mta_on_all_addresses_relays_for_the_networks_that_are_named(
    tmp_path: Path, programs: list[Program], receivers: str
) -> None:
    mta = await Program.start(
        tmp_path,
        *("mta", "--queue", f"embedded://{tmp_path / 'store'}", "--relay", "127.0.0.1:1"),
        *("--listen", "*:0", "--relay-from", "127.0.0.1/32", "--receivers", receivers),
    )
    programs.append(mta)
    port = await mta.port("listening")

    def recipient(address: str) -> int:
        with smtplib.SMTP("127.0.0.1", port, source_address=(address, 0)) as client:
            client.ehlo()
            client.mail("a@origin.example")
            return client.rcpt("b@dest.example")[0]

    inside = await asyncio.to_thread(recipient, "127.0.0.1")
    outside = await asyncio.to_thread(recipient, "127.0.0.2")

    assert (inside, outside) == (250, 550)
    assert '"networks": "127.0.0.1/32"' in mta.log.read_text()
    assert await mta.stop() == 0


async def test_an_mta_without_further_settings_listens_on_loopback_only(
    tmp_path: Path, programs: list[Program]
) -> None:
    mta = await Program.start(
        tmp_path,
        *("mta", "--queue", f"embedded://{tmp_path / 'store'}", "--relay", "127.0.0.1:1"),
        environment={"POSTROAD_INTAKE_PORT": "0"},
    )
    programs.append(mta)
    port = await mta.port("listening")

    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.2", port)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert (await reader.readline()).startswith(b"220 ")
    writer.transport.abort()
    assert await mta.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("worker", "--queue", "memory://q"), 1, "no next hop"),
        (("worker", "--queue", "nowhere://q", "--relay", "x"), 2, "no known scheme"),
        (("worker", "--queue", "memory://q", "--relay", "x:y"), 2, "not a host and port"),
        (("intake",), 2, "--queue"),
        (("intake", "--queue", "memory://q", "--listen", "127.0.0.1:0"), 1, "INTAKE_TLS_CERT"),
        (("intake", "--queue", "memory://q", "--listen", "*:0"), 1, "--relay-from"),
        (("intake", "--queue", "memory://q", "--relay-from", "10.0.0.1/8"), 2, "write 10.0.0.0/8"),
        (("mta", "--queue", "memory://q", "--relay", "x", "--receivers", "1"), 1, "memory"),
    ],
)
async def test_settings_that_cannot_work_are_refused_at_once(
    tmp_path: Path, arguments: tuple[str, ...], code: int, text: str
) -> None:
    environment = {"POSTROAD_INTAKE_TLS_PORT": "0"} if arguments[0] == "intake" else {}
    program = await Program.start(tmp_path, *arguments, environment=environment)

    assert await program.stop_by_itself() == code
    assert text in program.log.read_text()


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a queue of this test alone, in a keyspace of its own."""
    word = secrets.token_hex(4)
    monkeypatch.setenv("POSTROAD_CASSANDRA_KEYSPACE", f"smtp_{word}")
    yield f"distributed://smtp-{word}.outgoing"
    cql(f"DROP KEYSPACE IF EXISTS smtp_{word}")


@pytest.fixture
async def queue(url: str) -> AsyncIterator[MailQueue]:
    async with open_queue(url, create=True) as opened:
        yield opened
    name = QueueName.parse(url.removeprefix("distributed://"))
    servers = connect(from_environment())
    await servers.broker(name).delete()
    await servers.blobs(name.bucket("postroad-")).drop()
    await servers.close()


async def a_worker(folder: Path, url: str, sink: Sink, concurrency: int = 50) -> Program:
    return await Program.start(
        folder,
        *("worker", "--queue", url, "--relay", f"127.0.0.1:{sink.port}", "--tls", "none"),
        *("--concurrency", str(concurrency)),
        environment={"POSTROAD_RETRY_LANES": "1s"},
    )


async def until_empty(queue: MailQueue) -> None:
    while (await queue.size()).size:
        await asyncio.sleep(0.2)


def arrivals(sink: Sink) -> Counter[tuple[bytes, str]]:
    return Counter((mail.content, each) for mail in sink.mails for each in mail.recipients)


@real_servers
async def test_mails_pass_from_smtp_to_smtp_each_once_and_as_they_were(
    tmp_path: Path, programs: list[Program], queue: MailQueue, url: str
) -> None:
    sent = list(samples(200))
    intake = await Program.start(tmp_path, "intake", "--queue", url, "--listen", "127.0.0.1:0")
    programs.append(intake)
    await _send(sent, await intake.port("listening"))
    refused = sent[0].recipients[0]
    async with Sink(rule_for(None, f"<{refused}>", "destination1")) as sink:
        worker = await a_worker(tmp_path, url, sink)
        programs.append(worker)
        await until_empty(queue)
        codes = (await worker.stop(), await intake.stop())

    dead = [dead_letter async for dead_letter in queue.dead_letters()]
    reports = {each: n for each, n in arrivals(sink).items() if b"multipart/report" in each[0]}
    arrived = Counter(
        {
            (_after_trace(content), to): n
            for (content, to), n in arrivals(sink).items()
            if (content, to) not in reports
        }
    )
    expected = Counter((each.sent, to) for each in sent for to in each.recipients if to != refused)
    assert arrived == expected
    assert [dead_letter.mail.recipients for dead_letter in dead] == [(refused,)]
    assert [(to, n) for (_, to), n in reports.items()] == [(sent[0].sender, 1)]
    assert codes == (0, 0)


@real_servers
async def test_a_worker_that_is_killed_loses_nothing_and_repeats_only_what_was_in_flight(
    tmp_path: Path, programs: list[Program], queue: MailQueue, url: str
) -> None:
    sent = [each for each in samples(150) if len(each.recipients) == 1]
    await asyncio.gather(*(queue.enqueue(each.mail) for each in sent))
    async with Sink() as sink:
        first = await a_worker(tmp_path, url, sink, concurrency=10)
        programs.append(first)
        while len(sink.mails) < 40:
            await asyncio.sleep(0.005)
        await first.kill()
        programs.append(await a_worker(tmp_path, url, sink, concurrency=10))
        await until_empty(queue)

    arrived = arrivals(sink)
    expected = Counter((each.sent, to) for each in sent for to in each.recipients)
    assert arrived.keys() == expected.keys()
    assert (arrived - expected).total() <= 10


def _after_trace(content: bytes) -> bytes:
    return content.split(b"\r\n", 3)[3]


async def _send(sent: list[Sample], port: int) -> None:
    relay = OneHop(
        NextHop("127.0.0.1", port, TlsMode.NONE),
        ehlo_name="client.example",
    )

    async def hand_over(sample: Sample) -> None:
        async def octets() -> AsyncIterator[bytes]:
            yield sample.content

        outcomes = await relay.transmit(sample.mail.envelope, octets(), len(sample.content))
        assert {each.kind for each in outcomes.values()} == {OutcomeKind.DELIVERED}

    await asyncio.gather(*map(hand_over, sent))
    await relay.close()
