"""Kopf's wait until its indexes have all objects, with a wake-up only when that may be so.

Kopf keeps the first event of each object until those of all kinds are indexed, by a set with a
toggle for each object. Its own set wakes every object that waits whenever a toggle comes or goes:
at a thousand MailQueues with workers millions of times, for half a minute in which a leader with
little CPU loses its Lease.

The class is private to Kopf, so pyproject.toml bounds its version. Kopf makes the set in its
`orchestrator`; `watcher` and `process_resource_event` wait by it.
"""

from __future__ import annotations

from collections.abc import Iterable

from kopf._cogs.aiokits import aiotoggles


class IndexToggles(aiotoggles.ToggleSet):
    """A set of toggles that wakes its waiters when the state of the whole has changed."""

    async def make_toggle(
        self, __val: bool = False, *, name: str | None = None
    ) -> aiotoggles.Toggle:
        toggle = aiotoggles.Toggle(__val, name=name, condition=self._condition)
        async with self._condition:
            before = self.is_on()
            self._toggles.add(toggle)
            self._wake(before)
        return toggle

    async def drop_toggle(self, toggle: aiotoggles.Toggle) -> None:
        await self.drop_toggles([toggle])

    async def drop_toggles(self, toggles: Iterable[aiotoggles.Toggle]) -> None:
        async with self._condition:
            before = self.is_on()
            self._toggles.difference_update(toggles)
            self._wake(before)

    def _wake(self, was_on: bool) -> None:
        if self.is_on() != was_on:
            self._condition.notify_all()


def replace_toggles() -> None:
    """Let Kopf make such sets from now on."""
    aiotoggles.ToggleSet = IndexToggles  # type: ignore[misc]
