"""Audits in maintenance: one portion of the bucket's objects at a time, by one process at a time.

What an audit checks and deletes: `audit`. Source: ADR 0020.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from postroad.distributed.engine import ownership
from postroad.distributed.engine.engine import Engine
from postroad.distributed.maintenance.audit import audit_portion
from postroad.errors import BlobsError, BucketNotOwned, CredentialsRefused, ViewRefused

CLAIM_ID = UUID(int=1)
"""What an audit claims; no entry has this id."""

PASS = timedelta(hours=6)
"""From the end of one pass over all objects to the next."""

PACE = timedelta(minutes=10)
"""Between two portions of a pass."""


class AuditMaintenance:
    """Audits in maintenance: by one process at a time, portion by portion. The claim is also the
    timetable: at the end of a pass it is taken until the next pass is due. Each process checks the
    bucket's owner all the time, without a claim."""

    def __init__(self, engine: Engine, owner: UUID) -> None:
        self._engine = engine
        self._owner = owner
        self._due = self._pass_due = engine.clock.elapsed() + PACE
        self._after: str | None = ""

    async def run(self) -> None:
        """Check the owner, and the next portion, if it is time. Raises: ViewUnavailable, ClockSkew,
        ConfigurationStale."""
        engine, now = self._engine, self._engine.clock.elapsed()
        if now < self._due:
            return
        self._due = now + PACE
        try:
            await ownership.renew(engine)
            if now >= self._pass_due:
                await self._next_portion()
        except BucketNotOwned as error:
            engine.log.error("the bucket's bytes are not audited", error=error.explain())
        except (BlobsError, CredentialsRefused, ViewRefused) as error:
            # No other step of maintenance needs the object store, so its absence fails no round.
            engine.log.warning("the audit waits for a server", error=error.explain())

    async def _next_portion(self) -> None:
        engine = self._engine
        if not await engine.view.claim(CLAIM_ID, self._owner, 3 * PACE):
            self._after = ""  # another process audits, from the beginning
            return
        self._after, _ = await audit_portion(engine, self._after or "", repair=True, asked=False)
        if self._after is None:
            self._after = ""
            self._pass_due = engine.clock.elapsed() + PASS
            await engine.view.claim(CLAIM_ID, self._owner, PASS)
