"""Channels for requests that are awaited, kept for the next ones.

To open and close a channel takes two round trips, and RabbitMQ a process: as much as to declare an
exchange.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from postroad.adapters.rabbitmq.connection import Channel, RabbitMQConnection

KEPT = 8
"""Channels that wait for their next use, at most."""

T = TypeVar("T")


class KeptChannels:
    """Lends channels of a connection. One that a request failed on is closed, since a refusal
    closes it anyway, and an answer that came too late would be taken for that of the next request.
    """

    def __init__(self, connection: RabbitMQConnection) -> None:
        self._connection = connection
        self._idle: list[Channel] = []

    async def lend(self, action: Callable[[Channel], Awaitable[T]]) -> T:
        """Run an action on a channel that no other one uses meanwhile. Raises: ServerError."""
        channel = self._idle.pop() if self._idle else await self._opened()
        is_done = False
        try:
            result = await action(channel)
            is_done = True
        finally:
            if is_done and self._may_keep(channel):
                self._idle.append(channel)
            else:
                await channel.close()
        return result

    def _may_keep(self, channel: Channel) -> bool:
        is_good = channel.lost is None and not channel.is_outdated
        return is_good and len(self._idle) < KEPT

    async def _opened(self) -> Channel:
        channel = await self._connection.channel()
        channel.when_lost.append(lambda _: self._forget(channel))
        channel.when_outdated.append(lambda: self._let_go(channel))
        return channel

    def _forget(self, channel: Channel) -> None:
        if channel in self._idle:
            self._idle.remove(channel)

    def _let_go(self, channel: Channel) -> None:
        """Close an idle channel whose connection is followed by another one, and ends with the last
        of its channels."""
        if channel in self._idle:
            self._idle.remove(channel)
            channel.abandon()
