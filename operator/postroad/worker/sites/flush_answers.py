"""Answers to administrators who want a site tried now.

Source: ADR 0067.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from postroad.domain.delivery.sites import MOST_DOMAINS, FlushAnswer
from postroad.ports.delivery import Board, Topic

ANSWERED_FOR = timedelta(seconds=60)
"""An administrator waits for seconds."""


class FlushAnswers:
    """Tries sites now that administrators ask for. `name`: this worker's on the board. `relay`:
    the site that all its mail goes to, but what is rerouted; None: there is none."""

    def __init__(self, board: Board, name: str, *, relay: str | None) -> None:
        self._board, self._name, self._relay = board, name, relay
        self._answered: dict[str, str] = {}
        """The number of the last request by site."""

    async def answer(
        self, try_now: Callable[[str], Sequence[str]], asked: Mapping[str, str] | None
    ) -> None:
        """Answer each request once. `try_now` tries a site, and returns the domains whose mail goes
        there. None: the board is away. Raises: ServerError."""
        if asked is None:
            return
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
