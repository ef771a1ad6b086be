"""Programs over a real RabbitMQ move to a renewed user by themselves, while mail goes through."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.error import HTTPError
from uuid import uuid4

import pytest

import servers
from postroad.adapters.rabbitmq import connection
from postroad.adapters.rabbitmq.broker import RabbitMQ, RabbitMQBroker
from postroad.domain.queues.names import QueueName
from postroad.logins import LoginFolder
from postroad.ports.broker import Delivery
from support.mounted_secret import MountedSecret
from support.servers import connected_broker_users, make_broker_user, remove_broker_user

pytestmark = pytest.mark.needs("rabbitmq")

SOON = 60
EVERY = 0.02

Login = dict[str, str]


@pytest.fixture
async def logins() -> AsyncIterator[tuple[Login, Login]]:
    """Two users who may do everything."""
    first, second = (
        {"username": f"test-{servers.fresh()}", "password": secrets.token_hex(8)} for _ in range(2)
    )
    for each in (first, second):
        await asyncio.to_thread(make_broker_user, each["username"], each["password"])
    yield first, second
    for each in (first, second):
        with suppress(HTTPError):  # the test removes one
            await asyncio.to_thread(remove_broker_user, each["username"])


class Flow:
    """Publishes and consumes messages; keeps the first in flight."""

    def __init__(self, broker: RabbitMQBroker) -> None:
        self._broker = broker
        self.published: list[bytes] = []
        self.taken: Counter[bytes] = Counter()
        self.in_flight: Delivery | None = None

    async def publish(self) -> None:
        """Publish until cancelled; no publish may fail."""
        while True:
            body = b"%d" % len(self.published)
            await self._broker.publish(uuid4(), body)
            self.published.append(body)
            await asyncio.sleep(EVERY)

    async def consume(self) -> None:
        """Consume until cancelled."""
        async for each in self._broker.consume(20):
            self.taken[each.body] += 1
            if self.in_flight is None:
                self.in_flight = each
            else:
                await each.ack()

    async def go_on(self) -> None:
        """Wait until another hundred messages have been taken."""
        wanted = len(self.taken) + 100
        await until(lambda: len(self.taken) >= wanted)


async def until(wanted: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while not await asyncio.to_thread(wanted):
            await asyncio.sleep(0.1)


async def test_programs_move_before_the_former_user_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logins: tuple[Login, Login]
) -> None:
    monkeypatch.setattr(connection, "LOGIN_INTERVAL", timedelta(milliseconds=200))
    former, renewed = logins
    mounted = MountedSecret(tmp_path / "login", former)
    queue, operator = QueueName("test", servers.fresh()), RabbitMQ(servers.rabbitmq())
    await operator.broker(queue).declare()
    program = RabbitMQ(replace(servers.rabbitmq(), login_folder=LoginFolder(mounted.folder)))
    broker = program.broker(queue)
    flow = Flow(broker)
    tasks = [asyncio.create_task(each) for each in (flow.publish(), flow.consume())]
    await flow.go_on()

    mounted.renew(renewed)
    await until(lambda: {former["username"], renewed["username"]} <= connected_broker_users())
    await flow.go_on()
    assert flow.in_flight is not None
    assert flow.in_flight.is_leased
    await flow.in_flight.ack()
    await until(lambda: former["username"] not in connected_broker_users())
    await asyncio.to_thread(remove_broker_user, former["username"])
    await flow.go_on()

    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    await until(lambda: len(flow.taken) >= len(flow.published))
    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)
    assert flow.taken.keys() >= set(flow.published)
    assert set(flow.taken.values()) == {1}, "handed out once each"
    await broker.close()
    await program.close()
    await operator.broker(queue).delete()
    await operator.close()
