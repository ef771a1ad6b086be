"""Channels are lent, kept for the next requests, and closed when they are good for none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from postroad.adapters.rabbitmq.connection import Channel, RabbitMQConnection
from postroad.adapters.rabbitmq.publisher import KEPT, KeptChannels
from postroad.errors import BrokerRefused, BrokerUnavailable, ServerError


class Line:
    """A channel of a connection without a server."""

    def __init__(self) -> None:
        self.lost: ServerError | None = None
        self.is_outdated = False
        self.when_lost: list[Callable[[ServerError], None]] = []
        self.when_outdated: list[Callable[[], None]] = []
        self.ended: list[str] = []

    def lose(self) -> None:
        self.lost = BrokerUnavailable("away")
        for each in self.when_lost:
            each(self.lost)

    def outdate(self) -> None:
        self.is_outdated = True
        for each in self.when_outdated:
            each()

    async def close(self) -> None:
        self.ended.append("close")

    def abandon(self) -> None:
        self.ended.append("abandon")


class Lines:
    """A connection that opens them."""

    def __init__(self) -> None:
        self.opened: list[Line] = []

    async def channel(self) -> Line:
        self.opened.append(Line())
        return self.opened[-1]


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def kept(lines: Lines) -> KeptChannels:
    return KeptChannels(cast("RabbitMQConnection", lines))


async def as_is(channel: Channel) -> Line:
    return cast("Line", channel)


async def test_actions_one_after_another_have_one_channel(lines: Lines, kept: KeptChannels) -> None:
    assert await kept.lend(as_is) is await kept.lend(as_is)
    assert [each.ended for each in lines.opened] == [[]]


async def test_actions_at_the_same_time_have_a_channel_each_of_which_some_are_kept(
    lines: Lines, kept: KeptChannels
) -> None:
    begun: list[Line] = []
    go_on = asyncio.Event()

    async def waits(channel: Channel) -> None:
        begun.append(await as_is(channel))
        await go_on.wait()

    actions = [asyncio.ensure_future(kept.lend(waits)) for _ in range(KEPT + 2)]
    while len(begun) < KEPT + 2:
        await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(*actions)

    assert len(set(map(id, begun))) == KEPT + 2
    assert sum(each.ended == ["close"] for each in lines.opened) == 2


@pytest.mark.parametrize("error", [BrokerRefused("no"), BrokerUnavailable("late")])
async def test_a_channel_on_which_a_request_failed_is_closed(
    lines: Lines, kept: KeptChannels, error: ServerError
) -> None:
    async def fails(channel: Channel) -> None:
        raise error

    with pytest.raises(type(error)):
        await kept.lend(fails)
    await kept.lend(as_is)

    assert [each.ended for each in lines.opened] == [["close"], []]


async def test_a_channel_whose_action_was_cancelled_is_closed(
    lines: Lines, kept: KeptChannels
) -> None:
    async def waits(channel: Channel) -> None:
        await asyncio.Event().wait()

    action = asyncio.ensure_future(kept.lend(waits))
    await asyncio.sleep(0)
    action.cancel()
    with pytest.raises(asyncio.CancelledError):
        await action

    assert lines.opened[0].ended == ["close"]


async def test_a_channel_that_was_lost_is_not_lent_again(lines: Lines, kept: KeptChannels) -> None:
    idle = await kept.lend(as_is)
    idle.lose()

    assert await kept.lend(as_is) is not idle

    async def loses(channel: Channel) -> None:
        (await as_is(channel)).lose()

    await kept.lend(loses)
    assert (await kept.lend(as_is)).lost is None


async def test_an_outdated_connection_keeps_no_channel(lines: Lines, kept: KeptChannels) -> None:
    """It ends with the last of them."""
    idle = await kept.lend(as_is)

    idle.outdate()

    assert idle.ended == ["abandon"]
    assert await kept.lend(as_is) is not idle

    async def meanwhile(channel: Channel) -> None:
        (await as_is(channel)).outdate()

    await kept.lend(meanwhile)
    assert lines.opened[1].ended == ["close"]
