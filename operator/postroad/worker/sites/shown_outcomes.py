"""Outcomes that consoles show as they happen: published for as long as one watches."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta

from postroad.domain.delivery.attempts import Attempted, logged
from postroad.domain.delivery.shown import OutcomeWindow
from postroad.domain.mail.mail import Outcome
from postroad.ports.clock import Clock
from postroad.ports.delivery import SharedState, Topic
from postroad.worker.sites.control import SharedStateUse

PUBLISH_EVERY = timedelta(seconds=1)
SHOWN_FOR = timedelta(seconds=60)


class ShownOutcomes:
    """The last outcomes of a worker, with as much of addresses as its attempt log has. `name`: the
    worker's on the shared state. `left`: mails that left the queue by it."""

    def __init__(
        self, shared_state: SharedState, clock: Clock, name: str, *, with_addresses: bool
    ) -> None:
        self._shared, self._clock, self._name = shared_state, clock, name
        self._with_addresses = with_addresses
        self._window, self._noted = OutcomeWindow(), asyncio.Event()
        self._use = SharedStateUse()
        self.is_watched = False
        self.left = 0

    def note(
        self, attempted: Attempted, outcomes: Mapping[str, Outcome], *, given_up: bool = False
    ) -> None:
        """Show outcomes, if a console watches."""
        if not self.is_watched or not outcomes:
            return
        kept = dict(outcomes)  # the lines are made later: the caller may change its own until then
        lines = logged(attempted, kept, with_addresses=self._with_addresses, given_up=given_up)
        self._window.note(len(kept), lines)
        self._noted.set()

    async def obey(self, watchers: Mapping[str, str] | None) -> None:
        """Take who watches. None: the shared state is away, which changes nothing."""
        if watchers is None:
            return
        self.is_watched = bool(watchers)
        if not watchers:
            self._window.clear()

    async def run(self) -> None:
        """Publish what was noted, until cancelled."""
        while True:
            await self._noted.wait()
            with self._use.unless_away():
                self._noted.clear()
                try:
                    await self._shared.publish(
                        Topic.OUTCOMES, self._name, self._window.text(), SHOWN_FOR
                    )
                except Exception:
                    self._noted.set()  # the last outcomes are shown, even if no others come
                    raise
            await self._clock.sleep(PUBLISH_EVERY)
