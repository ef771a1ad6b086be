"""Kopf's wait until its indexes have all objects, moved from the objects to the reconciles.

Kopf keeps the first event of each object, and a task for it, until those of all kinds are indexed,
by a set with a toggle for each object. At a thousand MailQueues these are 3,000 tasks at once, with
100 MB that the process keeps; and Kopf's own set wakes each of them with each object that is
indexed. Handlers of postroad only queue a key. So no object waits here: what waits is the first
reconcile, for the event that is given to `waiting_reconciles`.

The class is private to Kopf, so pyproject.toml bounds its version. Kopf makes the set in its
`orchestrator`; `watcher` and `process_resource_event` use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextvars import ContextVar

from kopf._cogs.aiokits import aiotoggles

Combined = Callable[[Iterable[bool]], bool]

_KopfsOwn = aiotoggles.ToggleSet
_complete: ContextVar[asyncio.Event] = ContextVar("complete")


class IndexToggles(_KopfsOwn):
    """The toggles of the objects and kinds that are not indexed yet. `complete` is set for good
    when the last of them is dropped. Kopf holds one while it makes those of the kinds; as long as
    it knows no kind, it drops that one with none beside it."""

    def __init__(self, complete: asyncio.Event) -> None:
        super().__init__(all)
        self._complete = complete
        self._knows_kinds = False

    async def wait_for(self, __state: bool) -> None:
        """Return at once: what needs the indexes waits for `complete`."""

    async def make_toggle(
        self, __val: bool = False, *, name: str | None = None
    ) -> aiotoggles.Toggle:
        toggle = aiotoggles.Toggle(__val, name=name, condition=self._condition)
        self._knows_kinds = self._knows_kinds or bool(self._toggles)
        self._toggles.add(toggle)
        return toggle

    async def drop_toggle(self, toggle: aiotoggles.Toggle) -> None:
        await self.drop_toggles([toggle])

    async def drop_toggles(self, toggles: Iterable[aiotoggles.Toggle]) -> None:
        self._toggles.difference_update(toggles)
        if self._knows_kinds and self.is_on():
            self._complete.set()


def waiting_reconciles(complete: asyncio.Event) -> None:
    """Let Kopf, where it is started from this context, set an event once all objects are indexed,
    and hold none of them back."""
    _complete.set(complete)
    aiotoggles.ToggleSet = _made  # type: ignore[assignment,misc]


def _made(combined: Combined) -> aiotoggles.ToggleSet:
    """Kopf combines the toggles of its indexes by `all`, those by which it pauses by `any`."""
    return IndexToggles(_complete.get()) if combined is all else _KopfsOwn(combined)
