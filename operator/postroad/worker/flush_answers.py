"""Answers to administrators who want a site tried now.

Source: ADR 0067.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from postroad.domain.site_flushes import MOST_DOMAINS, FlushAnswer
from postroad.ports.board import Board, Topic
from postroad.ports.clock import Clock
from postroad.worker.board_use import BoardUse
from postroad.worker.site_control import READ_EVERY

ANSWERED_FOR = timedelta(seconds=60)
"""An administrator waits for seconds."""


class FlushAnswers:
    """Tries sites now that administrators ask for. `name`: this worker's on the board. `relay`:
    the site that all its mail goes to, but what is rerouted; None: there is none."""

    def __init__(self, board: Board, clock: Clock, name: str, *, relay: str | None) -> None:
        self._board, self._clock, self._name, self._relay = board, clock, name, relay
        self._use = BoardUse()
        self._answered: dict[str, str] = {}
        """The number of the last request by site."""

    async def run(self, try_now: Callable[[str], Sequence[str]]) -> None:
        """Answer what is asked, until cancelled. `try_now` tries a site, and returns the domains
        whose mail goes there."""
        while True:
            await self.answer(try_now)
            await self._clock.sleep(READ_EVERY)

    async def answer(self, try_now: Callable[[str], Sequence[str]]) -> None:
        """Answer each request once."""
        with self._use.unless_away():
            asked = await self._board.posted(Topic.FLUSHES)
            for site, number in asked.items():
                if self._answered.get(site) == number:
                    continue
                domains = try_now(site)
                shown = tuple(domains[-MOST_DOMAINS:])
                more = len(domains) - len(shown)
                is_all = site == self._relay and bool(domains)
                made = FlushAnswer(self._name, site, number, shown, more, is_all)
                await self._board.post(Topic.FLUSHED, made.name, made.text(), ANSWERED_FOR)
                self._answered[site] = number
            self._answered = {site: each for site, each in self._answered.items() if site in asked}
