"""The ways in: logins under TLS, a milter, HTTP; beside Postfix with Dovecot and the same milter,
and beside Haraka, which has logins of its own and no milters.

One client of ours drives all servers in alternation: each session takes one mail of 10 kB, behind
STARTTLS where it logs in. Dovecot compares plain passwords, `postroad mta` those
that `postroad users` keeps. The milter is one of tests, which asks for every step and changes
nothing. All relay to one smtp-sink. Mails by HTTP have SMTP of the same process as their peer.
CPU is that of the servers, Dovecot included, without client, milter and sink.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from bench.results import Result, compared
from peers.dovecot import Dovecot
from peers.haraka import Haraka
from peers.postfix import UNTHROTTLED, Postfix, SmtpSink
from peers.server import Road
from support.certificates import Certificates
from support.cpu_time import cpu_seconds, family
from support.intake_files import SUBMISSION, TLS, write_users
from support.ports import free_port
from support.programs import Program
from support.scripted_milter import ScriptedMilter, running

SESSIONS, MAILS, ROUNDS, BATCH = 16, 600, 3, 50
USER, PASSWORD = "carol", "x"  # as Dovecot has it
CONTENT = b"From: a@source.example\r\nSubject: bench\r\n\r\n" + b"x" * 78 + b"\r\n"
CONTENT += (b"y" * 78 + b"\r\n") * ((10_000 - len(CONTENT)) // 80)
PEER, HARAKA = "postfix (Debian)", "haraka"

LOGINS = """\
smtpd_sasl_auth_enable = yes
smtpd_sasl_type = dovecot
smtpd_sasl_path = inet:127.0.0.1:{port}
smtpd_relay_restrictions = permit_sasl_authenticated, reject
"""
FILTERED = "smtpd_milters = {address}\nmilter_default_action = tempfail\n"
AUTH_SERVICE = """
service auth {{
  inet_listener {{
    address = 127.0.0.1
    port = {port}
  }}
}}
"""

Send = Callable[[], Awaitable[None]]
"""Sends MAILS mails."""


class Candidate:
    """Way in of one server. `processes` gives the ids whose CPU counts."""

    def __init__(self, send: Send, processes: Callable[[], list[int]], sink: SmtpSink) -> None:
        self._send, self._processes, self._sink = send, processes, sink

    async def round(self) -> tuple[float, float]:
        """Return mails accepted a second, and milliseconds of CPU a mail until all are relayed."""
        before, spent = self._sink.received, cpu_seconds(self._processes())
        began = time.perf_counter()
        await self._send()
        accepted = time.perf_counter() - began
        while self._sink.received < before + MAILS:
            await asyncio.sleep(0.01)
        return MAILS / accepted, 1000 * (cpu_seconds(self._processes()) - spent) / MAILS


async def measure(base: Path) -> list[Result]:
    """Run all ways in alternation."""
    async with AsyncExitStack() as stack:
        sink = await SmtpSink.start(base)
        stack.push_async_callback(sink.stop)
        milter = await stack.enter_async_context(running(_Milter()))
        certificates = Certificates.copied(base)
        tls = certificates.client_context()
        theirs = await _theirs(stack, base, Road(sink.port, certificates), milter.address, tls)
        ours = await _ours(stack, base, sink.port, milter.address, tls)
        haraka = await _haraka(stack, base, Road(sink.port, certificates), tls)
        candidates = {
            (owner, way): Candidate(send, processes, sink)
            for owner, ways in ((PEER, theirs), (HARAKA, haraka), ("ours", ours))
            for way, (send, processes) in ways.items()
        }
        found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        for _ in range(ROUNDS):
            for name, each in candidates.items():
                found[name].append(await each.round())
    return [
        *_compared(found, "SMTP", ("ours", "SMTP"), (PEER, "SMTP")),
        *_compared(found, "AUTH PLAIN, TLS", ("ours", "login"), (PEER, "login")),
        *_compared(found, "SMTP", ("ours", "SMTP"), (HARAKA, "SMTP")),
        *_compared(found, "AUTH PLAIN, TLS", ("ours", "login"), (HARAKA, "login")),
        *_compared(found, "one milter", ("ours", "milter"), (PEER, "milter")),
        *_compared(found, "HTTP", ("ours", "http"), ("ours", "SMTP")),
        *_compared(found, f"HTTP, batches of {BATCH}", ("ours", "batches"), ("ours", "SMTP")),
    ]


class _Milter(ScriptedMilter):
    """Keeps nothing of what it saw."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await super().serve(reader, writer)
        self.seen.clear()


Ways = Mapping[str, tuple[Send, Callable[[], list[int]]]]


async def _theirs(
    stack: AsyncExitStack, base: Path, road: Road, milter: str, tls: ssl.SSLContext
) -> Ways:
    auth_port = free_port()
    dovecot = _Dovecot(base / "dovecot", Road(0), auth_port)
    settings = {
        "SMTP": UNTHROTTLED,
        "login": UNTHROTTLED + LOGINS.format(port=auth_port),
        "milter": UNTHROTTLED + FILTERED.format(address=milter),
    }
    stack.push_async_callback(dovecot.stop)
    await dovecot.start()
    servers: dict[str, Postfix] = {}
    for way, each in settings.items():
        servers[way] = Postfix(base / f"postfix-{way}", road, each)
        stack.push_async_callback(servers[way].stop)
        await servers[way].start()
    plain, login = servers["SMTP"], servers["login"]
    return {
        "SMTP": (partial(by_smtp, plain.port), plain.process_ids),
        "login": (
            partial(by_smtp, login.port, tls=tls),
            lambda: [*login.process_ids(), *dovecot.process_ids()],
        ),
        "milter": (partial(by_smtp, servers["milter"].port), servers["milter"].process_ids),
    }


async def _haraka(stack: AsyncExitStack, base: Path, road: Road, tls: ssl.SSLContext) -> Ways:
    """Start one with a process for each core: it offers STARTTLS and logins to all."""
    peer = Haraka(base / "haraka", road)
    peer.nodes, peer.logins = os.cpu_count() or 1, {USER: PASSWORD}
    stack.push_async_callback(peer.stop)
    await peer.start()
    return {
        "SMTP": (partial(by_smtp, peer.port), peer.process_ids),
        "login": (partial(by_smtp, peer.port, tls=tls), peer.process_ids),
    }


async def _ours(
    stack: AsyncExitStack, base: Path, relay: int, milter: str, tls: ssl.SSLContext
) -> Ways:
    write_users(base / "users.yaml", **{USER: PASSWORD})
    ports = {name: free_port() for name in ("relay", "submission", "http")}
    listeners: list[dict[str, Any]] = [
        {"name": "relay", "role": "relay"},
        {"name": "submission", "role": "submission", "tls": TLS},
        {"name": "http", "role": "http"},
    ]
    for each in listeners:
        each |= {"host": "127.0.0.1", "port": ports[each["name"]]}
    document = SUBMISSION | {"listeners": listeners}
    plain = await _mta(stack, base, "plain", document, relay)
    filtered_port = free_port()
    listener = {"name": "relay", "role": "relay", "host": "127.0.0.1", "port": filtered_port}
    filters = [{"name": "milter", "milter": milter}]
    filtered = await _mta(
        stack, base, "filtered", {"listeners": [listener], "filters": filters}, relay
    )
    processes = partial(family, plain.pid)
    return {
        "SMTP": (partial(by_smtp, ports["relay"]), processes),
        "login": (partial(by_smtp, ports["submission"], tls=tls), processes),
        "milter": (partial(by_smtp, filtered_port), partial(family, filtered.pid)),
        "http": (partial(_by_http, ports["http"], 1), processes),
        "batches": (partial(_by_http, ports["http"], BATCH), processes),
    }


async def _mta(
    stack: AsyncExitStack, base: Path, name: str, document: dict[str, Any], relay: int
) -> Program:
    file = base / f"{name}.yaml"
    file.write_text(yaml.safe_dump(document))
    program = await Program.start(
        base,
        *("mta", "--queue", f"embedded://{base}/{name}", "--intake", str(file)),
        *("--relay", f"127.0.0.1:{relay}", "--tls", "none"),
    )
    stack.push_async_callback(program.kill)
    await program.port("listening")
    return program


class _Dovecot(Dovecot):
    """Serves logins to Postfix, which is in another root, by TCP."""

    users = (USER,)

    def __init__(self, base: Path, road: Road, auth_port: int) -> None:
        super().__init__(base, road)
        self._auth_port = auth_port

    def configure(self) -> None:
        super().configure()
        with (self.base / "dovecot.conf").open("a") as file:
            file.write(AUTH_SERVICE.format(port=self._auth_port))


async def by_smtp(port: int, *, tls: ssl.SSLContext | None = None, mails: int = MAILS) -> None:
    """Send mails, each in a session of its own; under TLS it begins by a login."""
    left = iter(range(mails))
    login = base64.b64encode(f"\0{USER}\0{PASSWORD}".encode())
    commands = (
        (b"EHLO client.example", b"250"),
        *([(b"AUTH PLAIN " + login, b"235")] if tls else []),
        (b"MAIL FROM:<sender@source.example>", b"250"),
        (b"RCPT TO:<recipient@sink.example>", b"250"),
        (b"DATA", b"354"),
        (CONTENT + b".", b"250"),
        (b"QUIT", b"221"),
    )

    async def session() -> None:
        for _ in left:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await _expect(reader, b"220")
            if tls is not None:
                await ask(reader, writer, b"EHLO client.example", b"250")
                await ask(reader, writer, b"STARTTLS", b"220")
                await writer.start_tls(tls, server_hostname="localhost")
            for command, code in commands:
                await ask(reader, writer, command, code)
            writer.transport.abort()

    async def ask(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, command: bytes, code: bytes
    ) -> None:
        writer.write(command + b"\r\n")
        await _expect(reader, code)

    await asyncio.gather(*(session() for _ in range(SESSIONS)))


async def _expect(reader: asyncio.StreamReader, code: bytes) -> None:
    line = await reader.readline()
    while line[3:4] == b"-":
        line = await reader.readline()
    if line[:3] != code:
        raise RuntimeError(f"{code!r} was expected: {line!r}")


async def _by_http(port: int, batch: int) -> None:
    left = iter(range(MAILS // batch))
    raw = base64.b64encode(CONTENT).decode()
    mail: Any = {"from": "sender@source.example", "to": ["recipient@sink.example"], "raw": raw}
    path, body, wanted = "/v1/mails", mail, 201
    if batch > 1:
        path, body, wanted = "/v1/mails:batch", {"mails": [mail] * batch}, 207
    auth = aiohttp.BasicAuth(USER, PASSWORD)

    async def requests(session: aiohttp.ClientSession) -> None:
        for _ in left:
            async with session.post(f"http://127.0.0.1:{port}{path}", json=body) as reply:
                results = [reply.status]
                if batch > 1:
                    results += [each["status"] for each in (await reply.json())["results"]]
                if results[0] != wanted or set(results[1:]) - {201}:
                    raise RuntimeError(f"{wanted} was expected: {results} {await reply.text()}")

    async with aiohttp.ClientSession(auth=auth) as session:
        await asyncio.gather(*(requests(session) for _ in range(SESSIONS)))


def _compared(
    found: Mapping[tuple[str, str], Sequence[tuple[float, float]]],
    case: str,
    mine: tuple[str, str],
    other: tuple[str, str],
) -> list[Result]:
    peer = "postroad, SMTP" if other[0] == mine[0] else other[0]
    ours, theirs = (list(zip(*found[each], strict=True)) for each in (mine, other))
    case = f"{case}, 10 kB, {SESSIONS} sessions"
    return [
        compared("accepted", case, "mails/s", ours[0], peer, theirs[0]),
        compared("CPU", case, "ms/mail", ours[1], peer, theirs[1], less_is_better=True),
    ]
