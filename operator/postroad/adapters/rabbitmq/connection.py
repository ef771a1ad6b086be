"""An AMQP connection that opens at its first use, and again after it was lost; and channels whose
requests can be awaited. All of it belongs to one event loop.

One connection of the driver, by one user, from its opening to its end.

The address, user and vhost at RabbitMQ, and the driver's settings for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import pika
from pika import exceptions
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel as DriverChannel

from postroad.adapters.rabbitmq.translation import translated
from postroad.batching import Shared
from postroad.errors import BrokerUnavailable, InvalidSettings, PostroadError, ServerError
from postroad.logins import Login, LoginFolder
from postroad.ports.servers import Guard
from postroad.telemetry.logs import logger
from postroad.tls import SYSTEM_TLS, ClientTls, client_context

HEARTBEAT = timedelta(seconds=8)
"""The driver notices a hanging server within this and five seconds more; RabbitMQ drops a client
after twice this."""

CONNECT_TIMEOUT = timedelta(seconds=5)
"""For TCP, TLS and the AMQP handshake together."""

BLOCKED_TIMEOUT = timedelta(seconds=60)
"""After this the driver closes a connection that the server blocks (its memory or disk is full), so
that the next one may reach another node of the cluster."""


@dataclass(frozen=True, slots=True)
class Access:
    """A vhost and its user. Its repr has no password."""

    host: str
    port: int
    vhost: str
    username: str
    password: str = field(repr=False)
    encrypted: bool = False
    tls: ClientTls = SYSTEM_TLS
    management_url: str | None = field(default=None, repr=False)
    login_folder: LoginFolder | None = None
    """Source from which the user is read again for each connection, instead of `username` and
    `password`."""

    @property
    def login(self) -> Login:
        """The user as of now. Raises: CredentialsMissing."""
        if self.login_folder is not None:
            return self.login_folder.read()
        return Login(self.username, self.password)

    @classmethod
    def from_uri(
        cls,
        uri: str,
        *,
        username: str | None = None,
        password: str | None = None,
        login_folder: LoginFolder | None = None,
        tls: ClientTls = SYSTEM_TLS,
        management_url: str | None = None,
    ) -> Access:
        """Read `amqp[s]://user:password@host:port/vhost`; `username` and `password` override.
        Raises: InvalidSettings, which does not quote the URI."""
        try:
            parts = urlsplit(uri)
            port = parts.port
        except ValueError as error:
            raise InvalidSettings("the AMQP URI is malformed") from error
        if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
            raise InvalidSettings("write the AMQP URI as amqp://HOST:PORT/VHOST, or amqps://…")
        encrypted = parts.scheme == "amqps"
        return cls(
            host=parts.hostname,
            port=port or (5671 if encrypted else 5672),
            vhost=unquote(parts.path[1:]) or "/",
            username=username or unquote(parts.username or "guest"),
            password=password if password is not None else unquote(parts.password or "guest"),
            encrypted=encrypted,
            tls=tls,
            management_url=management_url,
            login_folder=login_folder,
        )


def parameters_of(access: Access, purpose: str) -> pika.ConnectionParameters:
    """Return the driver's parameters; `purpose` names the connection in RabbitMQ's lists.
    Raises: CredentialsMissing, TlsRefused."""
    login = access.login
    return pika.ConnectionParameters(
        host=access.host,
        port=access.port,
        virtual_host=access.vhost,
        credentials=pika.PlainCredentials(login.username, login.password),
        ssl_options=_tls(access) if access.encrypted else None,
        heartbeat=round(HEARTBEAT.total_seconds()),
        blocked_connection_timeout=BLOCKED_TIMEOUT.total_seconds(),
        socket_timeout=CONNECT_TIMEOUT.total_seconds(),
        stack_timeout=CONNECT_TIMEOUT.total_seconds(),
        connection_attempts=1,
        client_properties={"connection_name": f"postroad {purpose}"},
    )


def _tls(access: Access) -> pika.SSLOptions:
    return pika.SSLOptions(client_context(access.tls), access.host)


CLOSE_TIMEOUT = timedelta(seconds=3)
"""Time that `close` waits for the server."""

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
        except PostroadError as error:
            # As the driver ends a connection itself: else it fails, and `gone` never comes.
            self._terminate_stream(error)
        else:
            super()._adapter_emit_data(data)


class Outdatable(Protocol):
    def outdate(self) -> None:
        """The connection is followed by another one: use this channel for nothing new."""


class DriverConnection:
    """A connection of the driver, as the user of the moment. `opening` is its result, `gone` its
    end. Raises: CredentialsMissing, TlsRefused."""

    def __init__(self, access: Access, purpose: str, guard: Guard | None) -> None:
        loop = asyncio.get_running_loop()
        self.opening: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self._purpose = purpose
        self._is_ended = self._is_outdated = False
        self._channels: set[Outdatable] = set()
        parameters = parameters_of(access, purpose)
        self.login = Login(parameters.credentials.username, parameters.credentials.password)
        self.driver = CoalescingConnection(
            parameters, self._on_open, self._on_error, self._on_close, loop
        )
        self.driver.guard = guard

    def join(self, channel: Outdatable) -> None:
        """Note a channel, with the last of which a connection ends that is outdated."""
        self._channels.add(channel)

    def leave(self, channel: Outdatable) -> None:
        """Forget a channel that is closed. Idempotent."""
        self._channels.discard(channel)
        self._end_when_left()

    def outdate(self) -> None:
        """End the connection with the last of its channels. Idempotent."""
        self._is_outdated = True
        for each in list(self._channels):
            each.outdate()
        self._end_when_left()

    def _end_when_left(self) -> None:
        if self._is_outdated and not self._channels:
            self.end()

    def end(self) -> None:
        """Begin to close it, or end the attempt to connect. Idempotent."""
        if self._is_ended:
            return
        self._is_ended = True
        if not (self.driver.is_closing or self.driver.is_closed):
            self.driver.close()

    async def close(self) -> None:
        """Close it with all its channels. Idempotent."""
        if self.gone.done():
            return
        self.end()
        await asyncio.wait([self.gone], timeout=CLOSE_TIMEOUT.total_seconds())
        if not self.driver.is_closed:
            # A hanging server never answers the close; the driver has no public method to end the
            # connection without its answer.
            self.driver._terminate_stream(None)
            await asyncio.wait([self.gone], timeout=CLOSE_TIMEOUT.total_seconds())

    def _on_open(self, _: object) -> None:
        resolve(self.opening)

    def _on_error(self, _: object, error: BaseException) -> None:
        resolve(self.opening, translated(error))
        resolve(self.gone)

    def _on_close(self, _: object, reason: BaseException) -> None:
        resolve(self.gone)
        if not self._is_ended:
            error = str(translated(reason))
            _LOG.warning("lost the connection to RabbitMQ", purpose=self._purpose, error=error)


def resolve(answer: asyncio.Future[Any], error: ServerError | None = None) -> None:
    """End a future that may have ended."""
    if answer.done():
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)


ANSWER_TIMEOUT = timedelta(seconds=10)
"""Time that the server may take to answer a request on a channel."""

LOGIN_INTERVAL = timedelta(seconds=5)
"""Interval at which the files of a user are looked at."""


class RabbitMQConnection:
    """One connection to RabbitMQ, shared by channels of one purpose. `guard` is asked before
    anything is sent. Where an administrator renews the files of its user, a connection of the new
    one follows: channels are opened there, those that are open are outdated, and the former
    connection ends with the last of them."""

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
    `is_outdated`: another channel follows; this one is used for nothing new."""

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
