"""Changes of entries that were found by another reader of the view, named by their keys: each row
and mark is read again, so that what ended or was replaced meanwhile is met as by any operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum

from postroad.distributed.administration import administration
from postroad.distributed.administration.remove import remove_entry
from postroad.distributed.dequeue.items import BYTES_MISSING
from postroad.distributed.engine.engine import Engine
from postroad.distributed.engine.timing import count, each_of
from postroad.domain.queues.entries import Change, Entry, EntryKey, Mark
from postroad.domain.queues.selection import Selector
from postroad.errors import BlobMissing


class EntryChange(StrEnum):
    """Changes to waiting mails that were found by their entries."""

    REMOVE = "remove"
    HOLD = "hold"
    RELEASE = "release"
    FLUSH = "flush"
    EXPIRE = "expire"
    REPUBLISH = "republish"
    GIVE_UP_WITHOUT_BYTES = "give-up-without-bytes"


async def change_found(
    engine: Engine, change: EntryChange, keys: Iterable[EntryKey], selector: Selector
) -> int:
    """Change the mails that wait under these entries, or under their successors, and that are
    selected; return how many. Raises: InvalidInput for an empty selector, ServerError, ClockSkew,
    ConfigurationStale."""
    selector.require_purpose()
    engine.check_open()
    await engine.limits_cache.refresh()
    began, step = engine.limits_cache.now(), _STEPS[change]

    async def one(key: EntryKey) -> bool:
        row = await engine.view.row(key)
        if not isinstance(row, Entry) or not selector.matches(row, began):
            return False
        return await administration.change_entry(engine, row, step, began)

    return await count(each_of(keys), one)


async def _removed(engine: Engine, entry: Entry, now: datetime) -> Mark | None:
    return None if await remove_entry(engine, entry) else Mark()


def _with_message(entry: Entry, now: datetime) -> Change | None:
    """Give a mail another message, also one that is not due yet; a held one has none."""
    return None if entry.held else Change.nothing(entry)


async def _without_bytes(engine: Engine, entry: Entry, now: datetime) -> Mark | None:
    """A waiting mail whose bytes are missing becomes a dead letter. The mark is read after the
    bytes: an ending deletes them after it wrote its mark."""
    try:
        async for _ in engine.blobs.stream(entry.blob_key):
            return Mark()
    except BlobMissing:
        return await administration.given_up(engine, entry, BYTES_MISSING)
    return Mark()  # an object without any octet is there too


_STEPS: Mapping[EntryChange, administration.EntryStep] = {
    EntryChange.REMOVE: _removed,
    EntryChange.HOLD: administration.replacing(administration.held),
    EntryChange.RELEASE: administration.replacing(administration.released),
    EntryChange.FLUSH: administration.replacing(administration.flushed),
    EntryChange.EXPIRE: administration.expired,
    EntryChange.REPUBLISH: administration.replacing(_with_message),
    EntryChange.GIVE_UP_WITHOUT_BYTES: _without_bytes,
}
