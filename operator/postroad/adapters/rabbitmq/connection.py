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

from postroad.adapters.rabbitmq.access import Access
from postroad.adapters.rabbitmq.driver_connection import DriverConnection, resolve
from postroad.adapters.rabbitmq.translation import translated
from postroad.batching import Shared
from postroad.errors import BrokerUnavailable, PostroadError, ServerError
from postroad.logins import Login
from postroad.ports.servers import Guard
from postroad.telemetry.logs import logger

ANSWER_TIMEOUT = timedelta(seconds=10)
"""How long the server may take to answer a request on a channel."""

LOGIN_INTERVAL = timedelta(seconds=5)
"""How often the files of a user are looked at."""

_LOG = logger("rabbitmq")


class RabbitMQConnection:
    """One connection to RabbitMQ, shared by channels of one purpose. `guard` is asked before
    anything is sent.

    Where an administrator renews the files of its user, a connection of the new one follows:
    channels are opened there, those that are open are outdated, and the former connection ends with
    the last of them.
    """

    def __init__(self, access: Access, purpose: str, guard: Guard | None = None) -> None:
        self._guard = guard
        self._access = access
        self._purpose = purpose
        self._opening: Shared[DriverConnection] = Shared()
        self._current: DriverConnection | None = None
        self._all: set[DriverConnection] = set()
        self._following: asyncio.Task[None] | None = None
        self._closed = False

    async def version(self) -> str:
        """Return the server's version, once the server has answered a request: the version itself
        is known since the connection was opened. Raises: ServerError."""
        await (await self.channel()).close()
        driver = (await self._opened()).driver
        return str((driver.server_properties or {}).get("version", "unknown"))

    async def channel(self) -> Channel:
        """Open a channel, and the connection if need be. Raises: ServerError."""
        opened = await self._opened()
        channel = Channel()
        opened.join(channel)
        channel.when_lost.append(lambda _: opened.leave(channel))
        try:
            await channel.open(opened.driver)
        except BaseException:
            opened.leave(channel)
            raise
        return channel

    async def close(self) -> None:
        """Close it with all its channels. Idempotent."""
        self._closed = True
        if self._following is not None:
            self._following.cancel()
        for each in self._all:
            each.end()
        await asyncio.gather(*(each.close() for each in self._all))

    async def _opened(self) -> DriverConnection:
        if self._current is not None and self._current.driver.is_open:
            return self._current
        return await self._opening.get(self._open)

    async def _open(self) -> DriverConnection:
        if self._closed:
            raise BrokerUnavailable("the connection with RabbitMQ was closed")
        opened = DriverConnection(self._access, self._purpose, self._guard)
        self._all.add(opened)
        opened.gone.add_done_callback(lambda _: self._all.discard(opened))
        await opened.opening
        former, self._current = self._current, opened
        if former is not None:
            former.outdate()
        if self._access.login_folder is not None and self._following is None:
            self._following = asyncio.create_task(self._follow_login())
        _LOG.debug("connected to RabbitMQ", purpose=self._purpose)
        return opened

    async def _follow_login(self) -> None:
        """Connect as a renewed user, so that the former one can be deleted. While RabbitMQ refuses
        the renewed one, the former connection goes on."""
        refused: Login | None = None
        while True:
            await asyncio.sleep(LOGIN_INTERVAL.total_seconds())
            if self._current is None or not self._current.driver.is_open:
                continue  # the next channel opens a connection
            wanted: Login | None = None
            try:
                wanted = self._access.login
                if wanted != self._current.login:
                    await self._opening.get(self._open)
                    _LOG.info("connected as a renewed user", purpose=self._purpose)
            except PostroadError as error:
                say = _LOG.debug if refused == wanted else _LOG.warning
                say("no connection as a renewed user", purpose=self._purpose, error=str(error))
                refused = wanted


class Channel:
    """A channel whose requests can be awaited. `lost` is the reason once it is closed.
    `is_outdated`: another channel follows, often on another connection, so that this one is used
    for nothing new.
    """

    def __init__(self) -> None:
        self.driver: DriverChannel
        self.lost: ServerError | None = None
        self.when_lost: list[Callable[[ServerError], None]] = []
        self.is_outdated = False
        self.when_outdated: list[Callable[[], None]] = []
        self._loop = asyncio.get_running_loop()
        self._answers: set[asyncio.Future[Any]] = set()

    async def open(self, connection: AsyncioConnection) -> None:
        """Open it. Raises: ServerError."""
        answer = self._expect()
        try:
            self.driver = connection.channel(on_open_callback=lambda _: resolve(answer))
        except exceptions.AMQPError as error:
            self._answers.discard(answer)
            raise translated(error) from error
        self.driver.add_on_close_callback(self._on_close)
        async with self.or_abandoned():
            await self._answer(answer, "opening a channel")

    async def send(self, request: Callable[..., object], *values: object, **named: object) -> None:
        """Call a method of the driver without the answer. RabbitMQ carries out the requests of a
        channel in order, and closes it at one that it refuses: the next `call` has the error.
        Raises: ServerError."""
        if self.lost is not None:
            raise self.lost
        try:
            request(*values, **named)
        except exceptions.AMQPError as error:
            raise translated(error) from error

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

    def outdate(self) -> None:
        """Let what uses the channel end by and by."""
        self.is_outdated = True
        for callback in self.when_outdated:
            callback()

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
            self.when_lost.append(lambda _: resolve(answer))
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
            resolve(answer, self.lost)
