"""One connection of the driver, by one user, from its opening to its end."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Protocol

from pika.adapters.asyncio_connection import AsyncioConnection

from postroad.adapters.rabbitmq.access import Access, parameters_of
from postroad.adapters.rabbitmq.translation import translated
from postroad.errors import PostroadError, ServerError
from postroad.logins import Login
from postroad.ports.servers import Guard
from postroad.telemetry.logs import logger

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
        except PostroadError as error:
            # As the driver ends a connection itself: else it fails, and `gone` never comes.
            self._terminate_stream(error)
        else:
            super()._adapter_emit_data(data)


class Outdatable(Protocol):
    """A channel."""

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
