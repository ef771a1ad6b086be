"""One round of maintenance: dead queue, waiting mail, dead letters, limits, cleanup, bytes.

Every part is idempotent, and a part that failed does not keep the others from being done.

Rounds belong to a long-running process: cleanup waits a lease between two of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from uuid import UUID

from postroad.distributed.audit import Auditing
from postroad.distributed.browse_start import BrowseStartAdvance
from postroad.distributed.cleanup import Cleanup
from postroad.distributed.dead_queue import consume_dead
from postroad.distributed.engine import Engine
from postroad.distributed.letter_maintenance import LetterMaintenance
from postroad.distributed.row_maintenance import RowMaintenance


class Maintenance:
    """The parts of a round, with what they remember from one to the next."""

    def __init__(self, engine: Engine, advancing: BrowseStartAdvance) -> None:
        self._engine = engine
        self._advancing = advancing
        self._cleaning = Cleanup(engine)
        self._rows = RowMaintenance(engine)
        owner = UUID(int=engine.randomness.bits(128))  # of what one process at a time does
        self._letters = LetterMaintenance(engine, owner)
        self._auditing = Auditing(engine, owner)

    async def round(self) -> None:
        """Do one round. Raises: the first error of a part, after all had their turn."""
        self._engine.check_open()
        parts: list[Callable[[], Awaitable[object]]] = [
            lambda: consume_dead(self._engine),
            self._rows.run,
            self._letters.run,
            self._advancing.run,
            self._cleaning.run,
            self._auditing.run,
        ]
        errors: list[Exception] = []
        for part in parts:
            try:
                await part()
            except Exception as error:  # the other parts have their turn all the same
                errors.append(error)
        if errors:
            raise errors[0]

    async def accept_loss(self, first: datetime, last: datetime) -> None:
        """Go on without rows that vanished from the slices that start from `first` to `last`: those
        that are not drained are closed anew with what is left.

        A person decides this, after looking for the mails elsewhere. Raises: ServerError.
        """
        engine = self._engine
        async for closed in engine.view.closed_slices(first):
            if closed.slice_start > last:
                break
            if not closed.drained:
                slice_start = closed.slice_start.isoformat()
                engine.log.warning("vanished rows are accepted as lost", slice=slice_start)
                await engine.view.forget_slice(closed.slice_start)
        await self._advancing.run()
