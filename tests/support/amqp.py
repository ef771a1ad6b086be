"""An AMQP server with scripted answers: it can keep an answer back and give it later, and it
knows which channels are open. Frames are the driver's own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pika import frame, spec

HEADER = b"AMQP\x00\x00\x09\x01"
Method = Any
"""A method of the protocol, as the driver decodes it."""


class AmqpServer:
    """One vhost without queues. `silent` are the methods that get no answer for now; `methods` is
    what came, by channel."""

    def __init__(self) -> None:
        self.silent: set[type[Method]] = set()
        self.channels: set[int] = set()
        self.consumers: dict[str, int] = {}
        self.methods: list[tuple[int, Method]] = []
        self._kept_back: list[tuple[int, Method, int]] = []
        self._published: Counter[int] = Counter()
        self._writer: asyncio.StreamWriter | None = None
        self._changed = asyncio.Event()
        self._deliveries = 0
        self.exchanges: dict[str, str] = {}
        """The alternate exchange of each exchange."""
        self.left = 0
        """How many connections were ended from the other side."""
        self.port = 0

    async def until(self, wanted: Any, within_seconds: float = 20) -> None:
        """Assert that `wanted()` comes true."""
        try:
            async with asyncio.timeout(within_seconds):
                while not wanted():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        came = [(channel, method.NAME) for channel, method in self.methods]
        assert wanted(), f"open: {self.channels}, left: {self.left}, came: {came}"

    def saw(self, method: type[Method]) -> int:
        """Return how often a method came."""
        return sum(isinstance(each, method) for _, each in self.methods)

    def answer_all(self) -> None:
        """Give the answers that were kept back, and keep none back any more."""
        self.silent.clear()
        kept, self._kept_back = self._kept_back, []
        for channel, method, published in kept:
            self._answer(channel, method, published)

    def deliver(self, consumer: str, body: bytes) -> None:
        """Send a consumer a message."""
        self._deliveries += 1
        channel = self.consumers[consumer]
        self._send(channel, spec.Basic.Deliver(consumer, self._deliveries, False, "", "work"))
        self._write(frame.Header(channel, len(body), spec.BasicProperties()))
        self._write(frame.Body(channel, body))

    def cancel(self, consumer: str) -> None:
        """Cancel a consumer, as when its queue is deleted."""
        self._send(self.consumers.pop(consumer), spec.Basic.Cancel(consumer, nowait=True))

    def drop(self) -> None:
        """Lose the connection."""
        assert self._writer is not None
        self._writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self._writer = writer
        assert await reader.readexactly(len(HEADER)) == HEADER
        abilities = dict.fromkeys(
            ("publisher_confirms", "basic.nack", "consumer_cancel_notify"), True
        )
        self._send(0, spec.Connection.Start(0, 9, {"capabilities": abilities}, "PLAIN", "en_US"))
        received = b""
        while chunk := await self._read(reader):
            received += chunk
            while True:
                count, found = frame.decode_frame(received)
                if found is None:
                    break
                received = received[count:]
                if isinstance(found, frame.Method):
                    self._take(found.channel_number, found.method)
        self.left += 1
        self._changed.set()
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.read(65536)
        except ConnectionResetError:
            return b""

    def _take(self, channel: int, method: Method) -> None:
        self.methods.append((channel, method))
        if isinstance(method, spec.Channel.Open):
            self._published[channel] = 0
        self._published[channel] += isinstance(method, spec.Basic.Publish)
        published = self._published[channel]
        if type(method) in self.silent:
            self._kept_back.append((channel, method, published))
        elif isinstance(method, spec.Exchange.Declare):
            self._declare(channel, method)
        elif isinstance(method, spec.Exchange.Delete):
            self.exchanges.pop(method.exchange, None)
            self._send(channel, spec.Exchange.DeleteOk())
        else:
            self._answer(channel, method, published)
        self._changed.set()

    def _answer(self, channel: int, method: Method, published: int) -> None:
        match method:
            case spec.Connection.StartOk():
                self._send(0, spec.Connection.Tune(2047, 131072, 0))
            case spec.Connection.Open():
                self._send(0, spec.Connection.OpenOk())
            case spec.Connection.Close():
                self._send(0, spec.Connection.CloseOk())
            case spec.Channel.Open():
                self.channels.add(channel)
                self._send(channel, spec.Channel.OpenOk())
            case spec.Channel.Close():
                self.channels.discard(channel)
                self._send(channel, spec.Channel.CloseOk())
            case spec.Basic.Qos():
                self._send(channel, spec.Basic.QosOk())
            case spec.Basic.Consume():
                self.consumers[method.consumer_tag] = channel
                self._send(channel, spec.Basic.ConsumeOk(method.consumer_tag))
            case spec.Basic.Cancel():
                self.consumers.pop(method.consumer_tag, None)
                if not method.nowait:
                    self._send(channel, spec.Basic.CancelOk(method.consumer_tag))
            case spec.Confirm.Select():
                self._send(channel, spec.Confirm.SelectOk())
            case spec.Basic.Publish():
                self._send(channel, spec.Basic.Ack(published))

    def _declare(self, channel: int, method: Method) -> None:
        """As RabbitMQ: of the arguments, only the alternate exchange is compared."""
        wanted = method.arguments.get("alternate-exchange", "")
        found = self.exchanges.setdefault(method.exchange, wanted)
        if found == wanted:
            self._send(channel, spec.Exchange.DeclareOk())
            return
        text = (
            "PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for exchange "
            f"'{method.exchange}' in vhost '/': received '{wanted}' but current is '{found}'"
        )
        cut = text if len(text) <= 255 else f"{text[:252]}..."
        self._send(channel, spec.Channel.Close(406, cut, 40, 10))

    def _send(self, channel: int, method: Method) -> None:
        self._write(frame.Method(channel, method))

    def _write(self, one: Any) -> None:
        assert self._writer is not None
        self._writer.write(one.marshal())


@asynccontextmanager
async def amqp_server() -> AsyncIterator[AmqpServer]:
    """Run one on a free port of the loopback interface."""
    server = AmqpServer()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        if server._writer is not None:
            server._writer.close()
