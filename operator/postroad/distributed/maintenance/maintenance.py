"""One round of maintenance: dead queue, waiting mail, dead letters, limits, cleanup, objects.

Every step is idempotent, and each step runs even if another fails. Rounds belong to a long-running
process: cleanup waits a lease between two of them.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime
from uuid import UUID

from postroad.distributed.administration.dead_queue import consume_dead
from postroad.distributed.engine.engine import Engine
from postroad.distributed.maintenance.audit import AuditMaintenance
from postroad.distributed.maintenance.browse_start import BrowseStartAdvance
from postroad.distributed.maintenance.cleanup import Cleanup
from postroad.distributed.maintenance.row_maintenance import DeadLetterMaintenance, RowMaintenance


class Maintenance:
    """The steps of a round, with their state from one round to the next."""

    def __init__(self, engine: Engine, advance: BrowseStartAdvance) -> None:
        self._engine = engine
        self._advance = advance
        self._cleanup = Cleanup(engine)
        self._rows = RowMaintenance(engine)
        owner = UUID(int=engine.randomness.bits(128))  # of what one process at a time does
        self._dead_letters = DeadLetterMaintenance(engine, owner)
        self._audit = AuditMaintenance(engine, owner)

    async def round(self) -> None:
        """Do one round. Raises: the first error of a step, after all steps ran."""
        self._engine.check_open()
        steps: list[Callable[[], Awaitable[object]]] = [
            lambda: consume_dead(self._engine),
            self._rows.run,
            self._dead_letters.run,
            self._advance.run,
            self._cleanup.run,
            self._audit.run,
        ]
        errors: list[Exception] = []
        for step in steps:
            try:
                await step()
            except Exception as error:  # the other steps run all the same
                errors.append(error)
        if errors:
            raise errors[0]

    async def accept_loss(self, first: datetime, last: datetime) -> None:
        """Close anew, with the rows that are left, the slices that start from `first` to `last` and
        are not drained: what vanished from them is accepted as lost. An administrator decides this,
        after looking for the mails elsewhere. Raises: ServerError."""
        engine = self._engine
        async for closed in engine.view.closed_slices(first):
            if closed.slice_start > last:
                break
            if not closed.drained:
                slice_start = closed.slice_start.isoformat()
                engine.log.warning("vanished rows are accepted as lost", slice=slice_start)
                await engine.view.forget_slice(closed.slice_start)
        await self._advance.run()
