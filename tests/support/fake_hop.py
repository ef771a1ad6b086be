"""A next hop without a network: reads commands and mails, and replies as a test decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import repeat

from postroad.smtp.client.client import ClientWire
from support.transports import FakeTransport

CLOSE = b"close"
"""What a rule returns to end the connection."""

HopRule = Callable[[str, int], bytes | None]
"""(verb, number of the mail) → octets to send instead of the usual reply; b"" is silence from there
on. The verbs are those of the commands, GREETING, CONTENT (the mail has begun) and DOT. The first
mail is 1. The end of a chunk is DOT, too."""

POINTS = ("GREETING", "EHLO", "MAIL", "RCPT", "DATA", "CONTENT", "DOT")

USUAL = {"GREETING": b"220 hop\r\n", "DATA": b"354 go\r\n", "DOT": b"250 kept\r\n"}


class FakeHop(FakeTransport):
    """`wire` is the client's side. `kept` has the mails that arrived whole, with their number;
    `taken` those of them that it answered by 250."""

    def __init__(
        self,
        rule: HopRule = lambda verb, mail: None,
        *,
        extensions: tuple[str, ...] = ("PIPELINING",),
        sizes: Iterator[int] | None = None,
    ) -> None:
        super().__init__()
        self.wire = ClientWire()
        self.rule = rule
        self.received = b""
        self.verbs: list[str] = []
        self.kept: dict[int, bytes] = {}
        self.taken: set[int] = set()
        self._extensions = extensions
        self._sizes = repeat(1 << 20) if sizes is None else sizes
        """Of the chunks in which replies arrive."""
        self._unread, self._unsent = b"", b""
        self._held: bytes | None = None
        """The replies since it fell silent."""
        self._mail = self._recipients = 0
        self._chunk: int | None = None
        """The octets of the chunk that it reads."""
        self._is_in_content = self._is_over = self._is_ending = self._is_delivering = False
        self.wire.connection_made(self)
        self._answer("GREETING")

    async def connect(self, timeout: timedelta) -> ClientWire:
        """Stand for the addresses of a host."""
        return self.wire

    def write(self, data: bytes | bytearray | memoryview) -> None:
        super().write(data)
        self.received += bytes(data)
        self._unread += bytes(data)
        while not self._is_ending and self._read_one():
            pass

    def is_closing(self) -> bool:
        return self._is_over

    def abort(self) -> None:
        if not self._is_over:
            self._is_over = True
            self.wire.connection_lost(None)

    def close(self) -> None:
        self.abort()

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def say(self, octets: bytes) -> None:
        """Send octets, in chunks of the sizes that the test chose."""
        if self._held is not None:
            self._held += octets
            return
        self._unsent += octets
        self._schedule()

    def go_on(self, octets: bytes) -> None:
        """End the silence with these octets; what was held back follows."""
        held, self._held = self._held or b"", None
        self.say(octets + held)

    def end(self) -> None:
        """End the connection once all was sent."""
        self._is_ending = True
        self._schedule()

    def _read_one(self) -> bool:
        if self._chunk is not None:
            return self._read_chunk(self._chunk)
        ending = b"\r\n.\r\n" if self._is_in_content else b"\r\n"
        text, found, rest = self._unread.partition(ending)
        if self._is_in_content and self.verbs[-1] != "CONTENT" and self._unread:
            self._answer("CONTENT")
        if not found or self._is_ending:
            return False
        self._unread = rest
        if self._is_in_content:
            self._is_in_content = False
            self.kept[self._mail] = text
            self._answer("DOT")
            return True
        verb, *words = text.decode().split(" ")
        if verb == "BDAT":
            self._chunk = int(words[0])
            return True
        self._mail += verb == "MAIL"
        self._answer(verb)
        return True

    def _read_chunk(self, size: int) -> bool:
        if len(self._unread) < size or self._is_ending:
            return False
        self.verbs.append("BDAT")
        chunk, self._unread, self._chunk = self._unread[:size], self._unread[size:], None
        if self._recipients:
            self.kept[self._mail] = chunk.removesuffix(b"\r\n")
            self._answer("DOT")
        else:
            self.say(b"503 5.5.1 no valid recipients\r\n")
        return True

    def _answer(self, verb: str) -> None:
        self.verbs.append(verb)
        reply = self.rule(verb, self._mail)
        if reply == CLOSE:
            self.end()
            return
        if reply is None and verb == "CONTENT":
            return
        if reply == b"" and self._held is None:
            self._held = b""
        if reply is None:
            reply = self._hello() if verb in ("EHLO", "LHLO") else USUAL.get(verb, b"250 ok\r\n")
        if verb in ("EHLO", "RSET", "MAIL"):
            self._recipients = 0
        digits = reply.lstrip(b" \t\r\0")
        self._recipients += verb == "RCPT" and digits.startswith(b"2")
        if verb == "DOT" and digits.startswith(b"2"):
            self.taken.add(self._mail)
        if verb == "DATA" and digits.startswith(b"3"):
            self._is_in_content = True
        self.say(reply)

    def _hello(self) -> bytes:
        lines = ["hop", *self._extensions]
        return b"".join(
            f"250{' ' if each is lines[-1] else '-'}{each}\r\n".encode() for each in lines
        )

    def _schedule(self) -> None:
        """Deliver one chunk, and the next one after all that the first leads to."""
        if not self._is_delivering and (self._unsent or self._is_ending):
            self._is_delivering = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._is_delivering = False
        if self._is_over:
            return
        if self._unsent:
            size = next(self._sizes)
            chunk, self._unsent = self._unsent[:size], self._unsent[size:]
            self.wire.data_received(chunk)
            self._schedule()
        elif self._is_ending:
            self.abort()
