"""An AMQP connection that opens at its first use, and again after it was lost; and channels whose
requests can be awaited. All of it belongs to one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from pika import exceptions
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel as DriverChannel

from postroad.adapters.rabbitmq.access import Access, parameters_of
from postroad.adapters.rabbitmq.translation import translated
from postroad.batching import Shared
from postroad.errors import BrokerUnavailable, PostroadError, ServerError
from postroad.ports.servers import Guard
from postroad.telemetry.logs import logger

ANSWER_TIMEOUT = timedelta(seconds=10)
"""How long the server may take to answer a request on a channel."""

CLOSE_TIMEOUT = timedelta(seconds=3)
"""How long `close` waits for the server."""

_LOG = logger("rabbitmq")


class CoalescingConnection(AsyncioConnection):  # type: ignore[misc]  # pika has no types
    """Sends what one pass of the event loop wrote with one system call. A publish alone is three
    frames, and the driver sends each by itself. `guard` is asked before anything leaves; the
    connection ends when it refuses."""

    guard: Guard | None = None

    def __init__(self, *values: Any, **named: Any) -> None:
        self._frames: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        super().__init__(*values, **named)

    def _adapter_emit_data(self, data: bytes) -> None:
        """Overrides how the driver's adapters hand bytes to their transport."""
        if not self._frames:
            self._loop.call_soon(self._send_frames)
        self._frames.append(data)

    def _send_frames(self) -> None:
        data = b"".join(self._frames)
        self._frames.clear()
        if self._transport is None:  # the connection was lost in this pass
            return
        try:
            if self.guard is not None:
                self.guard()
        except PostroadError:
            self._transport.abort()
        else:
            super()._adapter_emit_data(data)


class RabbitMQConnection:
    """One connection to RabbitMQ, shared by channels of one purpose. `guard` is asked before
    anything is sent."""

    def __init__(self, access: Access, purpose: str, guard: Guard | None = None) -> None:
        self._guard = guard
        self._access = access
        self._purpose = purpose
        self._opening: Shared[AsyncioConnection] = Shared()
        self._driver: AsyncioConnection | None = None
        self._gone: asyncio.Future[None] | None = None
        self._closed = False

    async def version(self) -> str:
        """Return the server's version, once the server has answered a request: the version itself
        is known since the connection was opened. Raises: ServerError."""
        await (await self.channel()).close()
        driver = await self._opened()
        return str((driver.server_properties or {}).get("version", "unknown"))

    async def channel(self) -> Channel:
        """Open a channel, and the connection if need be. Raises: ServerError."""
        driver = await self._opened()
        channel = Channel()
        await channel.open(driver)
        return channel

    async def close(self) -> None:
        """Close it with all its channels. Idempotent."""
        self._closed = True
        driver, gone = self._driver, self._gone
        if driver is None or gone is None or gone.done():
            return
        if not (driver.is_closing or driver.is_closed):
            driver.close()  # also ends an attempt to connect
        await asyncio.wait([gone], timeout=CLOSE_TIMEOUT.total_seconds())
        if not driver.is_closed:
            # A hanging server never answers the close; the driver has no public method to end the
            # connection without its answer.
            driver._terminate_stream(None)
            await asyncio.wait([gone], timeout=CLOSE_TIMEOUT.total_seconds())

    async def _opened(self) -> AsyncioConnection:
        if self._driver is not None and self._driver.is_open:
            return self._driver
        return await self._opening.get(self._open)

    async def _open(self) -> AsyncioConnection:
        if self._closed:
            raise BrokerUnavailable("the connection with RabbitMQ was closed")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[None] = loop.create_future()
        gone: asyncio.Future[None] = loop.create_future()

        def on_open(_: object) -> None:
            _resolve(answer)

        def on_error(_: object, error: BaseException) -> None:
            _resolve(answer, translated(error))
            _resolve(gone)

        def on_close(_: object, reason: BaseException) -> None:
            _resolve(gone)
            if not self._closed:
                _LOG.warning(
                    "lost the connection to RabbitMQ",
                    purpose=self._purpose,
                    error=str(translated(reason)),
                )

        self._driver = CoalescingConnection(
            parameters_of(self._access, self._purpose), on_open, on_error, on_close, loop
        )
        self._driver.guard = self._guard
        self._gone = gone
        await answer
        _LOG.debug("connected to RabbitMQ", purpose=self._purpose)
        return self._driver


class Channel:
    """A channel whose requests can be awaited. `lost` is the reason once it is closed."""

    def __init__(self) -> None:
        self.driver: DriverChannel
        self.lost: ServerError | None = None
        self.when_lost: list[Callable[[ServerError], None]] = []
        self._loop = asyncio.get_running_loop()
        self._answers: set[asyncio.Future[Any]] = set()

    async def open(self, connection: AsyncioConnection) -> None:
        """Open it. Raises: ServerError."""
        answer = self._expect()
        try:
            self.driver = connection.channel(on_open_callback=lambda _: _resolve(answer))
        except exceptions.AMQPError as error:
            self._answers.discard(answer)
            raise translated(error) from error
        self.driver.add_on_close_callback(self._on_close)
        async with self.or_abandoned():
            await self._answer(answer, "opening a channel")

    async def call(self, request: Callable[..., object], *values: object, **named: object) -> Any:
        """Call a method of the driver that takes a `callback`; return the answer's method.
        Raises: ServerError."""
        if self.lost is not None:
            raise self.lost
        answer = self._expect()

        def arrived(frame: Any) -> None:
            if not answer.done():
                answer.set_result(frame.method)

        try:
            request(*values, callback=arrived, **named)
        except exceptions.AMQPError as error:
            self._answers.discard(answer)
            raise translated(error) from error
        return await self._answer(answer, getattr(request, "__name__", "a request"))

    @asynccontextmanager
    async def or_abandoned(self) -> AsyncIterator[None]:
        """Abandon the channel when the block fails or is cancelled: no other code closes it, and
        messages that the server sends on it would stay there."""
        try:
            yield
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Request the close without waiting: the driver sends it once the server has answered
        earlier requests. Idempotent."""
        if self.lost is None and not (self.driver.is_closed or self.driver.is_closing):
            try:
                self.driver.close()
            except exceptions.AMQPError:
                pass  # the channel is closed already

    async def close(self) -> None:
        """Close it; RabbitMQ requeues its unacknowledged messages. Idempotent."""
        if self.lost is None and self.driver.is_open:
            answer = self._expect()
            self.when_lost.append(lambda _: _resolve(answer))
            self.driver.close()
            try:
                await self._answer(answer, "closing a channel")
            except ServerError:
                pass  # the channel is closed already

    def _expect(self) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._answers.add(answer)
        return answer

    async def _answer(self, answer: asyncio.Future[Any], what: str) -> Any:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT.total_seconds()):
                return await answer
        except TimeoutError as error:
            raise BrokerUnavailable(f"RabbitMQ did not answer in time ({what})") from error
        finally:
            self._answers.discard(answer)

    def _on_close(self, _: object, reason: BaseException) -> None:
        self.lost = translated(reason)
        for callback in self.when_lost:
            callback(self.lost)
        for answer in self._answers:
            _resolve(answer, self.lost)


def _resolve(answer: asyncio.Future[Any], error: ServerError | None = None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)
