"""What every broker does with queue users. Source: ADR 0042."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol
from uuid import uuid4

import pytest

import servers
from postroad.domain.queues.broker_users import QueueUser
from postroad.domain.queues.names import QueueName
from postroad.ports.servers import QueueUsers


class BrokerWithUsers(Protocol):
    """A broker that a test looks at, and changes as another process does."""

    @property
    def users(self) -> QueueUsers: ...

    async def accepts(self, user: QueueUser, password: str) -> bool:
        """Return whether a connection with this login is accepted."""
        ...

    async def spoil(self, user: QueueUser) -> None:
        """Give a user one right more than it should have."""
        ...

    async def remove(self, user: QueueUser) -> None:
        """Delete a user, as an administrator does."""
        ...


class QueueUsersContract:
    """Subclasses provide the fixture `broker`, and delete what `made` lists."""

    @pytest.fixture
    def made(self) -> list[QueueUser]:
        """The users that a test has made, or may have made."""
        return []

    @pytest.fixture
    async def user(
        self, broker: BrokerWithUsers, made: list[QueueUser]
    ) -> AsyncIterator[QueueUser]:
        """A user that does not exist yet."""
        user = QueueUser(QueueName("test", servers.fresh()), uuid4().hex[:12])
        made += [user, user.other]
        yield user
        for each in made:
            await broker.users.delete(each)

    async def test_a_user_is_made_with_its_rights(
        self, broker: BrokerWithUsers, user: QueueUser
    ) -> None:
        assert await broker.users.has_rights(user) is None
        assert list(await broker.users.made_for(user.token)) == []

        await broker.users.give(user, "first")

        assert await broker.users.has_rights(user) is True
        assert list(await broker.users.made_for(user.token)) == [user]
        assert await broker.accepts(user, "first")
        assert not await broker.accepts(user, "another")
        assert not await broker.accepts(user.other, "first")

    async def test_a_second_password_replaces_the_first(
        self, broker: BrokerWithUsers, user: QueueUser
    ) -> None:
        await broker.users.give(user, "first")

        await broker.users.give(user, "second")

        assert await broker.accepts(user, "second")
        assert not await broker.accepts(user, "first")
        assert await broker.users.has_rights(user) is True

    async def test_a_right_too_many_is_seen_and_taken_away(
        self, broker: BrokerWithUsers, user: QueueUser
    ) -> None:
        await broker.users.give(user, "first")
        await broker.spoil(user)
        assert await broker.users.has_rights(user) is False

        await broker.users.give(user, "first")

        assert await broker.users.has_rights(user) is True
        assert await broker.accepts(user, "first")

    async def test_two_users_of_a_queue_are_independent(
        self, broker: BrokerWithUsers, user: QueueUser
    ) -> None:
        await broker.users.give(user, "first")
        await broker.users.give(user.other, "second")
        assert sorted(await broker.users.made_for(user.token)) == [user, user.other]

        await broker.users.delete(user)

        assert await broker.users.has_rights(user) is None
        assert await broker.users.has_rights(user.other) is True
        assert not await broker.accepts(user, "first")
        assert await broker.accepts(user.other, "second")

    async def test_a_user_that_is_gone_is_deleted_again_and_made_again(
        self, broker: BrokerWithUsers, user: QueueUser
    ) -> None:
        await broker.users.give(user, "first")
        await broker.remove(user)
        assert await broker.users.has_rights(user) is None

        await broker.users.delete(user)
        await broker.users.give(user, "again")

        assert await broker.accepts(user, "again")

    async def test_those_of_another_queuecluster_are_not_shown(
        self, broker: BrokerWithUsers, user: QueueUser, made: list[QueueUser]
    ) -> None:
        foreign = QueueUser(user.queue, uuid4().hex[:12])
        made.append(foreign)
        await broker.users.give(user, "first")
        await broker.users.give(foreign, "second")

        assert list(await broker.users.made_for(user.token)) == [user]
        await broker.users.delete(user)

        assert await broker.accepts(foreign, "second")
