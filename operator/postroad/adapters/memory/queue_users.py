"""The users of a broker in memory. No adapter in memory asks for a login: a test looks at them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from postroad.adapters.memory.fault_injection import FaultInjector
from postroad.domain.servers.queue_users import QueueUser


@dataclass(slots=True)
class MemoryUser:
    """A user. Its repr has no password."""

    password: str = field(repr=False)
    has_rights: bool = True


class MemoryQueueUsers:
    """`QueueUsers` of one process, over the users of a broker by their names."""

    def __init__(self, users: dict[str, MemoryUser], faults: FaultInjector) -> None:
        self._users = users
        self._faults = faults

    async def made_for(self, token: str) -> Collection[QueueUser]:
        def effect() -> Collection[QueueUser]:
            found = (QueueUser.parse(each) for each in self._users)
            return [each for each in found if each is not None and each.token == token]

        return await self._faults("broker", "list users", effect)

    async def has_rights(self, user: QueueUser) -> bool | None:
        def effect() -> bool | None:
            found = self._users.get(str(user))
            return None if found is None else found.has_rights

        return await self._faults("broker", "get user", effect)

    async def give(self, user: QueueUser, password: str) -> None:
        def effect() -> None:
            self._users[str(user)] = MemoryUser(password)

        await self._faults("broker", "put user", effect)

    async def delete(self, user: QueueUser) -> None:
        await self._faults("broker", "delete user", lambda: self._users.pop(str(user), None))
