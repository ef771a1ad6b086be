"""One round of maintenance: dead queue, waiting mail, dead letters, limits, cleanup, objects.

Every step is idempotent, and each step runs even if another fails. Rounds belong to a long-running
process: cleanup waits a lease between two of them.

Cleanup of slices that browse start has passed: late mail is rescued, then rows are deleted, then
marks, then content start is moved.

Cleanup begins the longest lease of a reading after this process read browse start: by then every
process has read newer limits, so a consumer that finds no mark finds the entry before browse start
(invariant 4).
The next cleanup repeats what a failed one left, because content start did not move.
In a queue that is archived, slices wait until they are (`row_maintenance.ArchiveWait`).
Source: 001 Decision."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from postroad.distributed.administration.dead_queue import consume_dead
from postroad.distributed.engine.engine import Engine
from postroad.distributed.entries import dead_letters, replacement
from postroad.distributed.entries.live_slices import rescue_if_late, with_marks
from postroad.distributed.maintenance import row_maintenance
from postroad.distributed.maintenance.audit import AuditMaintenance
from postroad.distributed.maintenance.browse_start import BrowseStartAdvance
from postroad.distributed.reading.browse import ENQUEUE_ID
from postroad.domain.queues.entries import Entry, EntryKey, Partition
from postroad.ports.view import ClosedSlice, Limits
from postroad.telemetry import metrics


class Cleanup:
    """Keeps when this process first read the present browse start."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._archive_wait = row_maintenance.ArchiveWait(engine)
        self._seen: tuple[datetime, timedelta] | None = None
        self._safe: datetime | None = None

    async def run(self) -> int:
        """Clean the slices that may be cleaned; return how many. Raises: ServerError, ClockSkew,
        ConfigurationStale."""
        engine = self._engine
        limits = await engine.limits_cache.refresh()
        now = engine.clock.elapsed()
        if limits.browse_start is None:
            return 0
        if self._seen is not None and now - self._seen[1] >= engine.timing.longest_read_lease:
            self._safe, self._seen = self._seen[0], None
        if self._seen is None:
            self._seen = (limits.browse_start, now)
        if self._safe is None or (limits.content_start or self._safe) >= self._safe:
            return 0
        first = limits.content_start or limits.browse_start
        # Content start passes the archive only with slices that waited for it in vain, however few
        # have rows: by that the archive finds what it lacks.
        before = await self._archive_wait.until(limits, self._safe)
        if before <= first:
            return 0
        cleaned = await self._clean(first, before)
        self._count_unarchived(limits, cleaned)
        return len(cleaned)

    def _count_unarchived(self, limits: Limits, cleaned: Sequence[datetime]) -> None:
        through = limits.archived_through
        unarchived = [start for start in cleaned if through is not None and start >= through]
        if unarchived:
            metrics.UNARCHIVED.labels(*self._engine.labels).inc(len(unarchived))
            self._engine.log.warning(
                "slices were cleaned that were not archived",
                first=unarchived[0].isoformat(),
                last=unarchived[-1].isoformat(),
                slices=len(unarchived),
            )

    async def _clean(self, first: datetime, before: datetime) -> list[datetime]:
        """Clean the closed slices from `first` on; return which. Any other had no rows."""
        engine = self._engine
        effective = engine.configuration.effective()
        buckets = max(each.bucket_count for each in effective.reading)
        cleaned: list[datetime] = []
        await self._delete_stale_dead_letters(first, before)
        async for closed in engine.view.closed_slices(first):
            if closed.slice_start >= before:
                break
            engine.check_still(effective)
            await self._clean_slice(closed, buckets)
            cleaned.append(closed.slice_start)
        await engine.view.advance(content_start=before)
        return cleaned

    async def _delete_stale_dead_letters(self, first: datetime, before: datetime) -> None:
        """Delete dead letters of entries that ended otherwise: the process that gave them up
        stopped, or is suspended, between dead letter and mark. Once the mark is cleaned, the dead
        letter would be believed, and `discard` would delete the bytes of the entry under which the
        mail waits."""
        async for dead_letter in self._engine.view.dead_letters():
            entry = dead_letter.entry
            if entry is not None and first <= entry.key.slice_start < before:
                mark = await self._engine.view.mark(entry.key)
                if mark is not None and mark.is_final and not dead_letters.is_rejected(mark):
                    await dead_letters.finish(self._engine, entry)

    async def _clean_slice(self, closed: ClosedSlice, buckets: int) -> None:
        view = self._engine.view
        partitions = [Partition(closed.slice_start, bucket) for bucket in range(buckets)]
        for partition in partitions:
            await self._rescue_late(partition, closed.rows.get(partition.bucket_id, 0))
            await self._propagate_deliveries(partition)
        # Only rows that are older than a lease: `_rescue_late` has not read a row that comes now.
        before = await self._engine.limits_cache.view_now() - self._youngest
        for partition in partitions:
            await view.delete_rows(partition, before)
        for partition in partitions:
            # Without its mark, a row that stays would look like late mail.
            if not (await view.count_rows(partition, None)).total:
                await view.delete_marks(partition)
        await view.forget_slice(closed.slice_start)

    @property
    def _youngest(self) -> timedelta:
        timing = self._engine.timing
        return max(timing.longest_read_lease - timing.apart, timedelta(0))

    async def _rescue_late(self, partition: Partition, known: int) -> None:
        """Give a new entry to mail whose row came after the slice was closed: it has no mark, and
        must not be deleted. Where there are as many rows as were counted at the close, none
        came."""
        view = self._engine.view
        if (await view.count_rows(partition, None)).total == known:
            return
        async for row, mark in with_marks(view, partition, view.rows(partition), ENQUEUE_ID):
            if mark is None:
                await rescue_if_late(self._engine, row.key)
            elif mark.is_unfinished_replacement and isinstance(row, Entry):
                await replacement.finish(self._engine, row, mark)

    async def _propagate_deliveries(self, partition: Partition) -> None:
        """Propagate deliveries recorded after the drain check (a consumer held the mail while it
        was replaced). From now on, the consumer finds the slice before browse start and propagates
        them itself."""
        engine = self._engine
        if (await engine.view.version(partition)).ended is None:
            return  # nothing was replaced, as in most partitions: their marks are not read
        async for enqueue_id, mark in engine.view.marks(partition):
            if mark.delivered_at is None or mark.successor is None:
                continue
            key = EntryKey(partition.slice_start, partition.bucket_id, enqueue_id)
            row = await engine.view.row(key)
            if isinstance(row, Entry):
                await replacement.propagate_delivery(engine, row, mark)


class Maintenance:
    """The steps of a round, with their state from one round to the next."""

    def __init__(self, engine: Engine, advance: BrowseStartAdvance) -> None:
        self._engine = engine
        self._advance = advance
        self._cleanup = Cleanup(engine)
        self._rows = row_maintenance.RowMaintenance(engine)
        owner = UUID(int=engine.randomness.bits(128))  # of what one process at a time does
        self._dead_letters = row_maintenance.DeadLetterMaintenance(engine, owner)
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
