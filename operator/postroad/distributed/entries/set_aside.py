"""Rows and marks that this release cannot decode: set aside, logged and counted, so that they delay
no other mail.

A row that is set aside still counts as live and keeps its slice; browsing and bulk operations leave
it out. An entry whose ending is unknown is over, and keeps its slice too. Source: ADR 0017.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

from postroad.distributed.engine.engine import Engine
from postroad.domain.queues.entries import EntryKey, Mark, UndecodableRow
from postroad.telemetry import metrics

MOST = 20
"""Rows and marks that one pass logs by id; further ones are only counted."""

ROW, MARK = "row", "mark"


class SetAside:
    """What one pass over the view set aside. `renew` is awaited with every such row that waits."""

    def __init__(
        self, engine: Engine, renew: Callable[[UndecodableRow], Awaitable[None]] | None = None
    ) -> None:
        self._engine = engine
        self._renew = renew
        self._counts: Counter[str] = Counter()

    async def row(self, row: UndecodableRow, mark: Mark | None) -> None:
        """Note a row, unless its mark shows that nothing waits under it."""
        if mark is not None and mark.is_unknown:
            self.mark(row.key)
        elif mark is None or mark.is_live:
            self._note(ROW, row.key, row.reason)
            if self._renew is not None and mark is None:
                await self._renew(row)

    def mark(self, key: EntryKey) -> None:
        """Note a mark whose ending is unknown, or whose change makes no valid entry."""
        self._note(MARK, key, "unknown ending")

    def end(self) -> None:
        """End the pass: log how much was set aside."""
        if self._counts:
            self._engine.log.warning(
                "rows or marks that this release cannot decode were left out; another release of"
                " postroad wrote them, or an administrator",
                rows=self._counts[ROW],
                marks=self._counts[MARK],
            )

    def publish(self) -> None:
        """Set the metrics, after a pass over everything."""
        for what in (ROW, MARK):
            metrics.UNDECODABLE.labels(self._engine.label, what).set(self._counts[what])

    def _note(self, what: str, key: EntryKey, reason: str) -> None:
        self._counts[what] += 1
        if self._counts[what] <= MOST:
            self._engine.log.error(
                f"a {what} cannot be decoded and is set aside",
                slice=key.slice_start.isoformat(),
                bucket=key.bucket_id,
                enqueue_id=str(key.enqueue_id),
                error=reason,
            )
