"""One run of the archive at a time: two would each replace what the other wrote."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Self
from uuid import UUID

from postroad.errors import ArchiveUnderWay, ServerError
from postroad.ports.clock import Clock
from postroad.ports.view import View

CLAIM_ID = UUID(int=3)
"""What runs of the archive claim; no entry has this id."""

CLAIM = timedelta(minutes=10)
"""How long a run that died keeps others away."""


ASKED_AGAIN = timedelta(seconds=15)
"""How often a run that waits for another one asks whether it has ended."""


class ArchiveClaim:
    """The claim of one run, renewed until the run ends. `patience`: how long it waits for a run
    that is under way."""

    def __init__(
        self, view: View, clock: Clock, run_id: UUID, patience: timedelta = timedelta(0)
    ) -> None:
        self._patience = patience
        self._view = view
        self._clock = clock
        self._run_id = run_id
        self._renewing: asyncio.Task[None] | None = None
        self._lapses: timedelta | None = None

    async def __aenter__(self) -> Self:
        await self._take()
        self._renewing = asyncio.create_task(self._renew_on())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        try:
            await self._view.release_claim(CLAIM_ID, self._run_id)
        except ServerError:
            pass  # it lapses by itself

    async def _take(self) -> None:
        patient_until = self._clock.elapsed() + self._patience
        while True:
            try:
                return await self.renew()
            except ArchiveUnderWay:
                if self._clock.elapsed() >= patient_until:
                    raise
            await self._clock.sleep(ASKED_AGAIN)

    async def renew(self) -> None:
        """Have the claim for another ten minutes: called before each commit. One that lapsed while
        the process was suspended is lost, because another run may have begun, and ended, since.
        Raises: ArchiveUnderWay, ViewError."""
        now = self._clock.elapsed()
        if self._lapses is not None and now >= self._lapses:
            raise ArchiveUnderWay("this run was suspended for longer than its claim lasts")
        if not await self._view.claim(CLAIM_ID, self._run_id, CLAIM):
            raise ArchiveUnderWay("another run of the archive is under way")
        self._lapses = now + CLAIM

    async def _renew_on(self) -> None:
        while True:
            await self._clock.sleep(CLAIM / 5)
            try:
                await self.renew()
            except (ArchiveUnderWay, ServerError):
                pass  # the next commit raises it
