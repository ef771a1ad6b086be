"""The contract of queue users over memory, the management API, and RabbitMQ, where it includes what
a user may do: all that its queue's programs do, and nothing to a neighbour.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pika
import pytest

import servers
from contract.queue_users_contract import BrokerWithUsers, QueueUsersContract
from postroad.adapters.clocks import MachineClock
from postroad.adapters.memory.servers import MemoryServers, MemoryWorld
from postroad.adapters.rabbitmq import topology
from postroad.adapters.rabbitmq.broker import RabbitMQ
from postroad.adapters.rabbitmq.connection import Access, Channel
from postroad.adapters.rabbitmq.consumer import Subscription
from postroad.adapters.rabbitmq.management import Management
from postroad.adapters.rabbitmq.queue_users import RabbitMQQueueUsers
from postroad.domain.queues.broker_users import QueueUser
from postroad.domain.queues.names import QueueName
from postroad.errors import BrokerRefused, CredentialsRefused, ServerError
from postroad.ports.servers import QueueUsers
from support.users_api import ADMINISTRATOR, PASSWORD, UsersApi, serving

SOON = 20


class InMemory:
    """A broker in memory."""

    def __init__(self) -> None:
        self._world = MemoryWorld(MachineClock())
        self.users: QueueUsers = MemoryServers(self._world).queue_users()

    async def accepts(self, user: QueueUser, password: str) -> bool:
        found = self._world.users.get(str(user))
        return found is not None and found.password == password

    async def spoil(self, user: QueueUser) -> None:
        self._world.users[str(user)].has_rights = False

    async def remove(self, user: QueueUser) -> None:
        del self._world.users[str(user)]


class TestMemoryQueueUsers(QueueUsersContract):
    """Over memory."""

    @pytest.fixture
    def broker(self) -> BrokerWithUsers:
        return InMemory()


@dataclass
class OverHttp:
    """The adapter over its part of the management API in memory."""

    api: UsersApi
    vhost: RabbitMQ

    @property
    def users(self) -> QueueUsers:
        return RabbitMQQueueUsers(self.vhost)

    async def accepts(self, user: QueueUser, password: str) -> bool:
        found = self.api.users.get(str(user))
        return found is not None and found["password"] == password

    async def spoil(self, user: QueueUser) -> None:
        permission = {"configure": "", "write": "", "read": ".*"}
        self.api.permissions["another", str(user), ""] = permission

    async def remove(self, user: QueueUser) -> None:
        del self.api.users[str(user)]
        self.api.permissions.clear()


class TestQueueUsersOverHttp(QueueUsersContract):
    """Over the management API in memory, in a vhost whose name has to be quoted."""

    @pytest.fixture
    async def broker(self) -> AsyncIterator[OverHttp]:
        api = UsersApi()
        async with serving(api) as url:
            access = Access("127.0.0.1", 1, "a/b", ADMINISTRATOR, PASSWORD, management_url=url)
            vhost = RabbitMQ(access)
            yield OverHttp(api, vhost)
            api.is_administrator = True
            await vhost.close()

    @pytest.mark.parametrize(
        ("place", "permission"),
        [
            (("another", ""), {"configure": "", "write": "", "read": ".*"}),
            (("a/b", ""), {"configure": ".*", "write": ".*", "read": ".*"}),
            (
                ("a/b", "postroad.delays"),
                {"exchange": "postroad.delays", "write": ".*", "read": "^$"},
            ),
            (("a/b", "amq.topic"), {"exchange": "amq.topic", "write": ".*", "read": ".*"}),
        ],
        ids=["vhost", "patterns", "routing keys", "exchange"],
    )
    async def test_each_right_too_many_is_seen_and_taken_away(
        self,
        broker: OverHttp,
        user: QueueUser,
        place: tuple[str, str],
        permission: dict[str, str],
    ) -> None:
        await broker.users.give(user, "first")
        declared = dict(broker.api.permissions)
        broker.api.permissions[place[0], str(user), place[1]] = permission
        assert await broker.users.has_rights(user) is False

        await broker.users.give(user, "first")

        assert await broker.users.has_rights(user) is True
        assert broker.api.permissions == declared

    async def test_a_tag_too_many_is_a_right_too_many(
        self, broker: OverHttp, user: QueueUser
    ) -> None:
        await broker.users.give(user, "first")
        broker.api.users[str(user)]["tags"] = ["management", "administrator"]

        assert await broker.users.has_rights(user) is False

    async def test_programs_that_run_keep_their_rights_while_these_are_given_again(
        self, broker: OverHttp, user: QueueUser
    ) -> None:
        await broker.users.give(user, "first")
        broker.api.requests.clear()

        await broker.users.give(user, "second")

        assert [each for each in broker.api.requests if each.startswith("DELETE")] == []

    async def test_a_login_that_is_no_administrators_is_refused_with_the_tag_that_it_lacks(
        self, broker: OverHttp, user: QueueUser
    ) -> None:
        broker.api.is_administrator = False

        with pytest.raises(CredentialsRefused) as refused:
            await broker.users.give(user, "not to be shown")

        assert "administrator" in refused.value.explain()
        assert "not to be shown" not in refused.value.explain()
        broker.api.is_administrator = True


async def test_without_a_management_api_there_are_no_users() -> None:
    users = RabbitMQQueueUsers(RabbitMQ(Access("127.0.0.1", 1, "/", "u", "p")))

    with pytest.raises(BrokerRefused, match="no URL"):
        await users.made_for("0" * 12)


@asynccontextmanager
async def logged_in(user: QueueUser, password: str) -> AsyncIterator[RabbitMQ]:
    """Yield the vhost as a user has it."""
    access: Access = replace(servers.rabbitmq(), username=str(user), password=password)
    vhost = RabbitMQ(access)
    yield vhost
    await vhost.close()


async def is_refused(vhost: RabbitMQ) -> bool:
    """Whether a user is refused, and not only its connection closed."""
    try:
        await vhost.check()
    except CredentialsRefused:
        return True
    except ServerError:
        pass
    return False


class Real:
    """A real RabbitMQ. `admin` has the rights of the test's own user."""

    def __init__(self) -> None:
        self.vhost = RabbitMQ(servers.rabbitmq())
        self.admin = Management(servers.rabbitmq())
        self.users: QueueUsers = RabbitMQQueueUsers(self.vhost)

    async def accepts(self, user: QueueUser, password: str) -> bool:
        async with logged_in(user, password) as vhost:
            try:
                await vhost.check()
            except CredentialsRefused:
                return False
        return True

    async def spoil(self, user: QueueUser) -> None:
        place = f"{quote(servers.rabbitmq().vhost, safe='')}/{user}"
        rights = {"exchange": "amq.topic", "write": ".*", "read": ".*"}
        await self.admin.put(f"topic-permissions/{place}", rights)

    async def remove(self, user: QueueUser) -> None:
        await self.admin.remove(f"users/{user}")


Attempt = Callable[[RabbitMQ, QueueName], Awaitable[Any]]
"""What a program tries to do to the objects of a queue."""


async def declare(vhost: RabbitMQ, name: QueueName) -> None:
    await vhost.administer(topology.declare, topology.topology_of(name, 20))


async def delete(vhost: RabbitMQ, name: QueueName) -> None:
    await vhost.administer(topology.delete, topology.topology_of(name, 20))


async def delete_queue(vhost: RabbitMQ, name: QueueName) -> None:
    queues = topology.topology_of(name, 20).queues
    await vhost.administer(topology.delete, topology.Topology((), queues))


async def purge(vhost: RabbitMQ, name: QueueName) -> None:
    async def empty(channel: Channel, _: topology.Topology) -> None:
        await channel.call(channel.driver.queue_purge, name.work_queue)

    await vhost.administer(empty, topology.SHARED)


async def bind(vhost: RabbitMQ, name: QueueName) -> None:
    async def take(channel: Channel, _: topology.Topology) -> None:
        driver = channel.driver
        await channel.call(driver.queue_bind, name.dead_queue, name.exchange, topology.WORK)

    await vhost.administer(take, topology.SHARED)


async def consume(vhost: RabbitMQ, name: QueueName) -> None:
    await (await Subscription.start(vhost.consuming, name.work_queue, 1)).stop()


async def consume_dead(vhost: RabbitMQ, name: QueueName) -> None:
    await (await Subscription.start(vhost.consuming, name.dead_queue, 1)).stop()


async def publish(vhost: RabbitMQ, name: QueueName) -> None:
    broker = vhost.broker(name)
    try:
        await broker.publish(uuid4(), b"not theirs")
    finally:
        await broker.close()


async def publish_delayed(vhost: RabbitMQ, name: QueueName) -> None:
    broker = vhost.broker(name)
    try:
        await broker.publish(uuid4(), b"not theirs", 1)
    finally:
        await broker.close()


def publish_to(exchange: str, key: Callable[[QueueName], str]) -> Attempt:
    """Return the attempt to publish to an exchange, which is confirmed or refused."""

    async def attempt(vhost: RabbitMQ, name: QueueName) -> None:
        async def send(channel: Channel, _: topology.Topology) -> None:
            properties = pika.BasicProperties(delivery_mode=2)
            channel.driver.basic_publish(exchange, key(name), b"not theirs", properties)
            # The answer to a request behind it comes after a refusal.
            await channel.call(
                channel.driver.queue_declare, topology.UNROUTED, passive=True, durable=True
            )

        await vhost.administer(send, topology.SHARED)

    return attempt


REFUSED: dict[str, Attempt] = {
    "declare": declare,
    "delete": delete,
    "delete its queues": delete_queue,
    "bind": bind,
    "purge": purge,
    "consume": consume,
    "consume dead letters": consume_dead,
    "publish": publish,
    "publish with a delay": publish_delayed,
    "publish to the default exchange": publish_to("", lambda name: name.work_queue),
    "publish to the exchange of due messages": publish_to(topology.DUE, lambda name: f"1.{name}"),
}


@pytest.mark.needs("rabbitmq")
class TestRabbitMQQueueUsers(QueueUsersContract):
    """Over a real RabbitMQ."""

    @pytest.fixture
    async def broker(self) -> AsyncIterator[Real]:
        broker = Real()
        yield broker
        await broker.vhost.close()
        await broker.admin.close()

    @pytest.fixture
    async def neighbour(self, broker: Real, user: QueueUser) -> AsyncIterator[QueueName]:
        """Another queue; both are declared by the operator's login."""
        neighbour = QueueName("test", servers.fresh())
        for each in (user.queue, neighbour):
            await broker.vhost.broker(each).declare()
        yield neighbour
        for each in (user.queue, neighbour):
            await broker.vhost.broker(each).delete()

    async def test_a_queues_programs_do_all_that_they_need(
        self, broker: Real, user: QueueUser, neighbour: QueueName
    ) -> None:
        await broker.users.give(user, "first")
        async with logged_in(user, "first") as vhost:
            programs = vhost.broker(user.queue)

            await programs.publish(uuid4(), b"now")
            await programs.publish(uuid4(), b"later", 1)
            deliveries = programs.consume(2)
            async with asyncio.timeout(SOON):
                taken = [await anext(deliveries) for _ in range(2)]
            await taken[0].ack()
            await taken[1].dead_letter()
            async with asyncio.timeout(SOON):
                while (await programs.depths()).dead != 1:
                    await asyncio.sleep(0.1)
            dead = []
            async for message in programs.consume_dead(1):
                dead.append(message.body)
                await message.ack()
            await programs.close()

        assert await broker.users.has_rights(user) is True
        assert [each.body for each in taken] == [b"now", b"later"]
        assert dead == [b"later"]

    @pytest.mark.parametrize("what", REFUSED)
    async def test_nothing_can_be_done_to_a_neighbours_queue(
        self, broker: Real, user: QueueUser, neighbour: QueueName, what: str
    ) -> None:
        await broker.users.give(user, "first")
        before = await broker.vhost.broker(neighbour).depths()

        async with logged_in(user, "first") as vhost:
            with pytest.raises(ServerError, match="ACCESS_REFUSED"):
                await REFUSED[what](vhost, neighbour)

        after = await broker.vhost.broker(neighbour).depths()
        assert (after.work, after.dead) == (before.work, before.dead)

    @pytest.mark.parametrize("what", ["declare", "delete", "delete its queues", "bind"])
    async def test_nor_are_the_queues_own_objects_changed(
        self, broker: Real, user: QueueUser, neighbour: QueueName, what: str
    ) -> None:
        await broker.users.give(user, "first")

        async with logged_in(user, "first") as vhost:
            with pytest.raises(ServerError, match="ACCESS_REFUSED"):
                await REFUSED[what](vhost, user.queue)

        assert await broker.vhost.broker(user.queue).exists()

    async def test_the_connections_of_a_deleted_user_are_closed(
        self, broker: Real, user: QueueUser
    ) -> None:
        await broker.users.give(user, "first")
        async with logged_in(user, "first") as vhost:
            await vhost.check()

            await broker.users.delete(user)

            async with asyncio.timeout(SOON):
                while not await is_refused(vhost):
                    await asyncio.sleep(0.1)
