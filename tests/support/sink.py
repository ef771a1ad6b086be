"""A mail sink: an SMTP (or LMTP) server that keeps what it receives and fails on demand.

Written apart from postroad's own SMTP code, line by line, so that a mistake there is not repeated
here. As a program: `python -m support.sink --listen 127.0.0.1:2525 --store DIR`; every mail becomes
`NNNNNN.eml` (the exact octets) and `NNNNNN.json` (its envelope) before it is acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import re
import signal
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from support.sasl_server import SaslServer

HANG_UP = "hang up"
"""What a rule returns to end the connection without a word."""

SILENCE = "silence"
"""What a rule returns to say nothing more until the client has gone."""

HALF_CLOSE = "half close"
"""What a rule returns to end its own direction without a word, and to read on."""

Rule = Callable[[str, str], str | None]
"""(verb, argument) → the reply to give instead, HANG_UP, SILENCE, or None for the usual reply.

Besides the commands' verbs there are CONNECT (the greeting), CONTENT (in the midst of a mail, after
its first line; a refusal ends the connection) and DOT (the end of a mail; its argument is a
recipient under LMTP).
"""

EXTENSIONS = ("PIPELINING", "8BITMIME", "SMTPUTF8", "DSN", "ENHANCEDSTATUSCODES", "SIZE 104857600")


@dataclass
class Delivery:
    """One mail as it arrived."""

    sender: str
    recipients: list[str]
    content: bytes = b""
    mail_parameters: list[str] = field(default_factory=list)
    recipient_parameters: dict[str, list[str]] = field(default_factory=dict)
    connection: int = 0
    tls: bool = False


class Sink:
    """`async with Sink() as sink: … sink.port … sink.mails`."""

    def __init__(
        self,
        rule: Rule | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        extensions: tuple[str, ...] = EXTENSIONS,
        store: Path | None = None,
        tls: ssl.SSLContext | None = None,
        implicit: bool = False,
        lmtp: bool = False,
        users: SaslServer | None = None,
        socket: Path | None = None,
    ) -> None:
        self.mails: list[Delivery] = []
        self.commands: list[str] = []
        self.connections = 0
        self.clients: list[str] = []
        """The address of each connection's client."""
        self.port = port
        self.rule = rule or (lambda verb, argument: None)
        self.gate = asyncio.Event()
        """Cleared, it holds the answers to finished mails back."""
        self.gate.set()
        self.answer_after: Callable[[], float] = lambda: 0.0
        """Seconds between the keeping of a mail and the answer."""
        self._host = host
        self._extensions = extensions
        self._store = store
        self._tls = tls
        self._implicit = implicit
        """Whether TLS begins with the connection, not with STARTTLS."""
        self._lmtp = lmtp
        self._users = users
        """Who may send, and must log in before."""
        self._socket = socket
        """The Unix socket to listen on, instead of the port."""
        self._server: asyncio.Server | None = None
        self._dialogues: set[asyncio.Task[None]] = set()

    @property
    def received(self) -> int:
        """The number of mails that it accepted."""
        return len(self.mails)

    @property
    def sessions(self) -> int:
        """The number of clients that are connected, or whose octets are not all read."""
        return len(self._dialogues)

    async def __aenter__(self) -> Sink:
        if self._store is not None:
            self._store.mkdir(parents=True, exist_ok=True)
        if self._socket is not None:
            self._server = await asyncio.start_unix_server(
                self._serve, self._socket, limit=1 << 20, backlog=1000
            )
            return self
        self._server = await asyncio.start_server(
            self._serve,
            self._host,
            self.port,
            limit=1 << 20,
            backlog=1000,
            ssl=self._tls if self._implicit else None,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for dialogue in list(self._dialogues):
            dialogue.cancel()
        await asyncio.gather(*self._dialogues, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._dialogues.add(task)
        self.connections += 1
        if self._socket is None:
            self.clients.append(writer.get_extra_info("peername")[0])
        try:
            await _Dialogue(self, reader, writer, self.connections).run()
        except (OSError, asyncio.IncompleteReadError, EOFError):
            pass  # the client is gone; that is its business
        except asyncio.CancelledError:
            pass  # the sink is closing; streams would log a cancelled handler
        finally:
            self._dialogues.discard(task)
            writer.transport.abort()

    def keep(self, delivery: Delivery) -> None:
        """Keep one mail, on disk first where there is a store."""
        number = len(self.mails) + 1
        if self._store is not None:
            envelope = {k: v for k, v in asdict(delivery).items() if k != "content"}
            (self._store / f"{number:06}.eml").write_bytes(delivery.content)
            part = self._store / f"{number:06}.part"
            part.write_text(json.dumps(envelope))
            part.rename(part.with_suffix(".json"))
        self.mails.append(delivery)


class _Dialogue:
    def __init__(
        self,
        sink: Sink,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        number: int,
    ) -> None:
        self._sink = sink
        self._reader = reader
        self._writer = writer
        self._number = number
        self._mail: Delivery | None = None
        self._tls = sink._implicit
        self._is_known = sink._users is None

    async def run(self) -> None:
        if await self._answer("CONNECT", "", "220 sink ESMTP"):
            return
        while line := await self._reader.readuntil(b"\r\n"):
            text = line[:-2].decode()
            self._sink.commands.append(text)
            verb, _, argument = text.partition(" ")
            if await self._command(verb.upper(), argument):
                return

    async def _answer(self, verb: str, argument: str, usual: str) -> bool:
        return await self._say(self._sink.rule(verb, argument), usual)

    async def _say(self, reply: str | None, usual: str) -> bool:
        """Reply as the rule or as usual; return whether the connection is to end."""
        if reply == HANG_UP:
            return True
        if reply in (SILENCE, HALF_CLOSE):
            if reply == HALF_CLOSE and not self._writer.can_write_eof():
                return True  # TLS cannot be closed by halves
            if reply == HALF_CLOSE:
                self._writer.write_eof()
            while await self._reader.read(1 << 16):
                pass
            return True
        self._writer.write(f"{reply or usual}\r\n".encode())
        await self._writer.drain()
        return False

    async def _command(self, verb: str, argument: str) -> bool:
        match verb:
            case "EHLO" | "LHLO":
                offered = self._sink._extensions
                if self._sink._tls is not None and not self._tls:
                    offered = (*offered, "STARTTLS")
                lines = ["sink", *offered]
                usual = "\r\n".join([*(f"250-{x}" for x in lines[:-1]), f"250 {lines[-1]}"])
                return await self._answer(verb, argument, usual)
            case "STARTTLS":
                return await self._start_tls(argument)
            case "AUTH" if self._sink._users is not None:
                return await self._log_in(self._sink._users, argument)
            case "MAIL" if not self._is_known:
                return await self._say(None, "530 5.7.0 log in first")
            case "MAIL":
                return await self._mail_from(argument)
            case "RCPT":
                return await self._rcpt_to(argument)
            case "DATA":
                return await self._data(argument)
            case "BDAT" if "CHUNKING" in self._sink._extensions:
                return await self._chunk(argument)
            case "RSET":
                self._mail = None
                return await self._answer(verb, argument, "250 2.0.0 ok")
            case "QUIT":
                await self._answer(verb, argument, "221 2.0.0 bye")
                return True
        return await self._answer(verb, argument, "250 2.0.0 ok")

    async def _log_in(self, users: SaslServer, argument: str) -> bool:
        if (reply := self._sink.rule("AUTH", argument)) is not None:
            return await self._say(reply, "")
        mechanism, _, initial = argument.partition(" ")
        steps = users.steps(mechanism.upper())
        challenge = next(steps)
        if not initial:
            initial = await self._response(challenge)
        while initial != "*":
            try:
                challenge = steps.send(base64.b64decode("" if initial == "=" else initial))
            except StopIteration as end:
                self._is_known = end.value
                usual = "235 2.7.0 welcome" if end.value else "535 5.7.8 not welcome"
                return await self._say(None, usual)
            initial = await self._response(challenge)
        return await self._say(None, "501 5.7.0 given up")

    async def _response(self, challenge: bytes) -> str:
        self._writer.write(b"334 " + base64.b64encode(challenge) + b"\r\n")
        await self._writer.drain()
        text = (await self._reader.readuntil(b"\r\n"))[:-2].decode()
        self._sink.commands.append(text)
        return text

    async def _start_tls(self, argument: str) -> bool:
        reply = self._sink.rule("STARTTLS", argument)
        if await self._say(reply, "220 2.0.0 go on"):
            return True
        if reply is not None and not reply.startswith("220"):
            return False
        assert self._sink._tls is not None
        await self._writer.start_tls(self._sink._tls)
        self._tls = True
        return False

    async def _mail_from(self, argument: str) -> bool:
        path, parameters = _path(argument)
        reply = self._sink.rule("MAIL", argument)
        if reply is None:
            self._mail = Delivery(path, [], b"", parameters, {}, self._number, self._tls)
        return await self._say(reply, "250 2.1.0 ok")

    async def _rcpt_to(self, argument: str) -> bool:
        path, parameters = _path(argument)
        if self._mail is None:
            return await self._say(None, "503 5.5.1 no MAIL")
        reply = self._sink.rule("RCPT", argument)
        if reply is None:
            self._mail.recipients.append(path)
            self._mail.recipient_parameters[path] = parameters
        return await self._say(reply, "250 2.1.5 ok")

    async def _data(self, argument: str) -> bool:
        if self._mail is None or not self._mail.recipients:
            return await self._say(None, "503 5.5.1 no valid recipients")
        reply = self._sink.rule("DATA", argument)
        if await self._say(reply, "354 go on"):
            return True
        if reply is not None and not reply.startswith("354"):
            self._mail = None
            return False
        lines: list[bytes] = []
        while (line := await self._line()) != b".\r\n":
            lines.append(line.removeprefix(b"."))
            early = self._sink.rule("CONTENT", "") if len(lines) == 1 else None
            if early is not None and (await self._say(early, "") or early[:1] in "45"):
                self._writer.close()
                return True
        mail, self._mail = self._mail, None
        mail.content = b"".join(lines)
        return await self._end(mail)

    async def _chunk(self, argument: str) -> bool:
        """A part of a mail, whose octets count, also where it is refused. Source: RFC 3030 2, 4."""
        size, _, last = argument.partition(" ")
        octets = await self._reader.readexactly(int(size))
        if self._mail is None or not self._mail.recipients:
            return await self._say(None, "503 5.5.1 no valid recipients")
        self._mail.content += octets
        if not last:
            return await self._answer("BDAT", argument, "250 2.0.0 go on")
        mail, self._mail = self._mail, None
        return await self._end(mail)

    async def _line(self) -> bytes:
        parts: list[bytes] = []
        while True:
            try:
                parts.append(await self._reader.readuntil(b"\r\n"))
                return b"".join(parts)
            except asyncio.LimitOverrunError as error:
                parts.append(await self._reader.readexactly(error.consumed))

    async def _end(self, mail: Delivery) -> bool:
        await self._sink.gate.wait()
        if not self._sink._lmtp:
            reply = self._sink.rule("DOT", mail.sender)
            if reply is None or reply.startswith("2"):
                self._sink.keep(mail)
                if seconds := self._sink.answer_after():
                    await asyncio.sleep(seconds)
            return await self._say(reply, "250 2.0.0 kept")
        replies = {each: self._sink.rule("DOT", each) for each in mail.recipients}
        mail.recipients = [each for each, reply in replies.items() if (reply or "2")[0] == "2"]
        if mail.recipients:
            self._sink.keep(mail)
        for reply in replies.values():
            if await self._say(reply, "250 2.0.0 kept"):
                return True
        return False


def _path(argument: str) -> tuple[str, list[str]]:
    path, _, parameters = argument.partition("<")[2].rpartition(">")
    return path, parameters.split()


def rule_for(defer: str | None, refuse: str | None, defer_first: str | None) -> Rule:
    """Return a rule that answers RCPT by regular expressions over the recipient."""
    seen: Counter[str] = Counter()

    def rule(verb: str, argument: str) -> str | None:
        if verb != "RCPT":
            return None
        if refuse and re.search(refuse, argument):
            return "550 5.1.1 no such mailbox"
        if defer and re.search(defer, argument):
            return "450 4.2.1 mailbox busy"
        if defer_first and re.search(defer_first, argument):
            seen[argument] += 1
            if seen[argument] == 1:
                return "451 4.7.1 greylisted, come again"
        return None

    return rule


async def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m support.sink", description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:2525", metavar="HOST:PORT")
    parser.add_argument("--store", type=Path, required=True, metavar="DIR")
    parser.add_argument("--defer", metavar="REGEX", help="recipients to defer always")
    parser.add_argument("--refuse", metavar="REGEX", help="recipients to refuse")
    parser.add_argument("--defer-first", metavar="REGEX", help="recipients to defer once")
    options = parser.parse_args()
    host, _, port = options.listen.rpartition(":")
    rule = rule_for(options.defer, options.refuse, options.defer_first)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Sink(rule, host=host, port=int(port), store=options.store) as sink:
        print(f"sink: {host}:{sink.port}", flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(_main())
