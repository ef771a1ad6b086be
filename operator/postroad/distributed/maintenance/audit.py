"""Audit: objects whose mail is in no row and no dead letter are found, and deleted.

Each ending deletes its mail's object at once; the audit finds what a killed process, an object
store that was away or a lost answer left. It lists keys in order, a portion at a time, and strikes
out each key that a row or a dead letter needs. A key that remains is an orphan, unless its mail
moved while the rows were read. Every move but that to the dead letters makes a row under a new id,
and an entry that moves there leaves its row or its dead letter: so the dead letters and all rows
made since the audit began are read once more, and the keys that they name are struck out. Left for
the next audit are objects that are younger than any upload, and objects that may belong to a row
that vanished or to a row that cannot be decoded. Source: ADR 0020.

The audit believes the view, so it refuses a bucket whose owner object names another (ADR 0024).

Audits in maintenance: one portion of the bucket's objects at a time, by one process at a time.

What an audit checks and deletes: `audit`. Source: ADR 0020."""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from operator import itemgetter
from uuid import UUID

from postroad import errors
from postroad.distributed.engine import ownership
from postroad.distributed.engine.engine import Engine
from postroad.distributed.entries.live_slices import live_slices, occupied, readable, with_marks
from postroad.domain.queues.dispatch import deletes_bytes
from postroad.domain.queues.entries import EndingKind, Mark, Partition
from postroad.domain.queues.names import mail_of_bytes
from postroad.domain.queues.references import decode
from postroad.domain.values.identifiers import LAST, moment_of
from postroad.ports.view import FOREVER, Effective
from postroad.telemetry import metrics

PORTION = 100_000
"""Objects checked together: some 20 MB of memory."""

TOGETHER = 500
"""Objects that one request deletes."""

MAX_UNASKED = 1000
"""Orphans of a portion that maintenance deletes unasked, if they are more than half of what was
listed: more than these show a view that was restored or lost, or a bucket that another installation
uses, and then live mail may need them."""

Candidates = dict[str, datetime]
"""Keys that may have no mail, with the moments at which their mails were accepted, oldest first."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """An object without a mail. `accepted_at` is when that mail was accepted."""

    blob_key: str
    accepted_at: datetime
    deleted: bool


async def audit(engine: Engine, *, repair: bool, adopt: bool) -> AsyncIterator[Orphan]:
    """Yield the objects that have no mail, oldest first; with `repair`, after they were deleted.
    With `adopt`, the view is first recorded as the owner of the bucket's bytes.
    Raises: BucketNotOwned, ServerError, ClockSkew, ConfigurationStale."""
    if adopt:
        engine.check_open()
        await ownership.adopt(engine)
    after: str | None = ""
    while after is not None:
        after, orphans = await audit_portion(engine, after, repair=repair)
        for orphan in orphans:
            yield orphan


async def audit_portion(
    engine: Engine, after: str, *, repair: bool, asked: bool = True
) -> tuple[str | None, list[Orphan]]:
    """Check the objects whose keys come next after one. Returns where the next portion begins, None
    when this was the last, and the orphans. `asked`: whether an administrator asked for the repair.
    Raises: as `audit`."""
    effective = await _begin(engine)
    following, candidates = await _listed(engine, after)
    listed = len(candidates)
    orphans = await _OrphanCheck(engine, candidates).orphans() if candidates else {}
    if not asked and len(orphans) > max(MAX_UNASKED, listed // 2):
        engine.log.error(
            "most bytes have no mail and stay: if the view is whole and no other installation uses "
            "the bucket, `postroad audit --repair` deletes them",
            count=len(orphans),
        )
        return following, []
    if repair:
        await _delete(engine, orphans, effective)
    return following, [Orphan(key, at, repair) for key, at in orphans.items()]


async def delete_orphans(engine: Engine, keys: Iterable[str]) -> list[Orphan]:
    """Check objects that were found without a mail as `audit` does, and delete those that have
    none. Objects that are younger than any upload, and those named like no mail, stay. Returns
    what was deleted. Raises: as `audit`."""
    effective, deleted = await _begin(engine), []
    old = _old(engine, sorted(keys))
    while candidates := dict(islice(old, PORTION)):
        orphans = await _OrphanCheck(engine, candidates).orphans()
        await _delete(engine, orphans, effective)
        deleted += [Orphan(key, at, deleted=True) for key, at in orphans.items()]
    return deleted


async def _begin(engine: Engine) -> Effective:
    """Return the configuration under which the rows are read. Raises: BucketNotOwned, ServerError,
    ClockSkew, ConfigurationStale."""
    engine.check_open()
    await ownership.check(engine)
    await engine.limits_cache.refresh()
    await engine.limits_cache.check_clock()
    return engine.configuration.effective()


async def _delete(engine: Engine, orphans: Candidates, effective: Effective) -> None:
    if not orphans:
        return
    engine.check_still(effective)  # rows may lie in buckets that were not read
    await ownership.check(engine)  # the view may have been restored while it was read
    keys = list(orphans)
    for start in range(0, len(keys), TOGETHER):
        await engine.blobs.delete_together(keys[start : start + TOGETHER])
    metrics.ORPHANED.labels(*engine.labels).inc(len(orphans))
    engine.log.warning("bytes without a mail were deleted", count=len(orphans))


def _old(engine: Engine, keys: Iterable[str]) -> Iterator[tuple[str, datetime]]:
    """Yield the keys of mails accepted before any upload that may still run, with the moments."""
    before = engine.clock.now() - engine.timing.upload - engine.timing.grace
    for key in keys:
        mail_id = mail_of_bytes(engine.name, key)
        if mail_id is not None and moment_of(mail_id) < before:
            yield key, moment_of(mail_id)


async def _listed(engine: Engine, after: str) -> tuple[str | None, Candidates]:
    """List keys whose mails were accepted before any upload that may still run; return the last
    key, None at the end."""
    candidates: Candidates = {}
    async for key in engine.blobs.keys(f"{engine.name}/", after):
        candidates.update(_old(engine, [key]))
        if len(candidates) == PORTION:
            return key, candidates
    return None, candidates


class _OrphanCheck:
    """Finds which of some objects have no mail."""

    def __init__(self, engine: Engine, candidates: Candidates) -> None:
        self._engine = engine
        self._candidates = candidates
        self._spared_until: datetime | None = None
        """Rows or dead letters that name no object may need those of mails accepted until then."""

    async def orphans(self) -> Candidates:
        """Strike out what has a mail; return the rest. Raises: ViewError, ConfigurationStale."""
        engine, candidates = self._engine, self._candidates
        began = engine.clock.now()
        await self._strike_dead_letters()
        content_start = (await engine.limits_cache.limits()).content_start
        if content_start is None or not candidates:
            return {}
        await self._strike_live(max(content_start, self._oldest()))
        if not candidates:
            return {}
        await self._strike_all(began - min(began - self._oldest(), 2 * await self._lifetime()))
        await self._strike_dead_letters()
        since = began - engine.timing.grace - engine.timing.skew
        if not candidates or not await self._strike_made_since(since):
            return {}
        self._strike_spared()
        return candidates

    async def _lifetime(self) -> timedelta:
        """Return how long a row lives, at most centuries: twice that must still be a timedelta."""
        return min(await self._engine.row_lifetime() or FOREVER, FOREVER / 4)

    def _oldest(self) -> datetime:
        return min(self._candidates.values(), default=self._engine.clock.now())

    async def _strike_dead_letters(self) -> None:
        """Strike out what dead letters need. A dead letter with a message that could not be read
        counts for the mail of its reference, if this release can read it; otherwise that mail's row
        counts, which has no mark."""
        async for dead_letter in self._engine.view.dead_letters():
            if dead_letter.entry is not None:
                self._candidates.pop(dead_letter.entry.blob_key, None)
                continue
            if not dead_letter.is_decoded:
                self._spare(moment_of(dead_letter.enqueue_id))
                continue
            try:
                self._candidates.pop(decode(dead_letter.body or b"").blob_key, None)
            except errors.UnreadableReference:
                pass

    async def _strike_live(self, first: datetime) -> None:
        """Strike out what rows need in the slices that are not drained."""
        last = self._engine.clock.now() + self._engine.timing.skew
        async for live in live_slices(self._engine, first, last):
            for partition in live.partitions:
                await self._strike_partition(partition)

    async def _strike_all(self, first: datetime) -> None:
        """Strike out what rows need in any slice: a late row may lie in a slice that was drained,
        or passed, before it came. Where rows vanished, their messages may need objects."""
        engine, present = self._engine, Counter[Partition]()
        async for partition in _occupied(engine, first):
            present[partition] = await self._strike_partition(partition)
        async for closed in engine.view.closed_slices(_slices_from(engine, first)):
            if not closed.drained and any(
                present[Partition(closed.slice_start, bucket)] < rows
                for bucket, rows in closed.rows.items()
            ):
                self._spare(closed.slice_start + closed.window)

    async def _strike_partition(self, partition: Partition) -> int:
        """Strike out what the rows of a partition need; return how many there are."""
        count = 0
        async for enqueue_id, key, mark in _keys_with_marks(self._engine, partition):
            count += 1
            if _needs_bytes(mark):
                self._strike(enqueue_id, key)
        return count

    async def _strike_made_since(self, since: datetime) -> bool:
        """Strike out what any row made since a moment names, however it ended. Returns whether
        cleanup had deleted none of these rows."""
        engine = self._engine
        async for partition in _occupied(engine, since):
            async for enqueue_id, key in engine.view.blob_keys(partition, LAST):
                self._strike(enqueue_id, key)
        content_start = (await engine.limits_cache.refresh()).content_start
        return content_start is not None and content_start <= _slices_from(engine, since)

    def _strike(self, enqueue_id: UUID, key: str | None) -> None:
        """Strike out what a row names. A row that names nothing, because this release cannot decode
        it, may need any object that is older than its entry."""
        if key is None:
            self._spare(moment_of(enqueue_id))
        else:
            self._candidates.pop(key, None)

    def _spare(self, until: datetime) -> None:
        self._spared_until = max(until, self._spared_until or until)

    def _strike_spared(self) -> None:
        if self._spared_until is not None:
            for key, accepted_at in list(self._candidates.items()):
                if accepted_at <= self._spared_until:
                    del self._candidates[key]


def _slices_from(engine: Engine, moment: datetime) -> datetime:
    """Return the start of the first slice that may hold a row made at a moment or later."""
    return next(readable(engine, moment, moment))[0]


def _occupied(engine: Engine, first: datetime) -> AsyncIterator[Partition]:
    """Yield the partitions from a moment until now that have rows."""
    reading, last = engine.configuration.effective().reading, engine.clock.now()
    return occupied(engine.view, reading, first, last + engine.timing.skew)


async def _keys_with_marks(
    engine: Engine, partition: Partition
) -> AsyncIterator[tuple[UUID, str | None, Mark | None]]:
    """Yield the entries of a partition, the keys of their objects, and their marks."""
    ids = engine.view.blob_keys(partition, LAST)
    async for (enqueue_id, key), mark in with_marks(engine.view, partition, ids, itemgetter(0)):
        yield enqueue_id, key, mark


def _needs_bytes(mark: Mark | None) -> bool:
    """Return whether an entry with this mark may need its bytes. After a replacement the
    successor's row needs them, after a rejection the dead letter, which may still be on its way."""
    if mark is None:
        return True
    is_elsewhere = (
        mark.is_final
        and mark.ending is not None
        and mark.ending.kind in {EndingKind.REPLACED, EndingKind.WITHDRAWN}
    )
    return not is_elsewhere and not deletes_bytes(mark)


CLAIM_ID = UUID(int=1)
"""Id under which an audit claims; no entry has this id."""

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
        except errors.BucketNotOwned as error:
            engine.log.error("the bucket's bytes are not audited", error=error.explain())
        except (errors.BlobsError, errors.CredentialsRefused, errors.ViewRefused) as error:
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
