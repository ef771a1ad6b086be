"""State of an entry, by the flags that a reader of rows and marks has of it. Pure.

The domain is asked once about every combination of flags, and its answers are a table, so that
Spark decides about millions of entries without a rule of its own. Source: ADR 0047."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

from postroad.domain.queues import entries
from postroad.domain.queues.dispatch import deletes_bytes
from postroad.domain.values.identifiers import EPOCH, FIRST

DELIVERED = "delivered"
WAITING = "waiting"

ENDINGS: tuple[entries.EndingKind | None, ...] = (None, *entries.EndingKind)
"""The ending of a mark, None where it has none; its place is its number in a code."""


class EntryFlags(NamedTuple):
    """Flags of an entry's mark that decide. `published` means something for a replacement only;
    `purged`: the entry lies at or below its partition's watermark."""

    ending: entries.EndingKind | None
    delivered: bool
    published: bool
    purged: bool

    @property
    def code(self) -> int:
        """The flags as one number."""
        bits = self.delivered << 2 | self.published << 1 | self.purged
        return ENDINGS.index(self.ending) << 3 | bits

    @property
    def mark(self) -> entries.Mark | None:
        """A mark with these flags as the view shows it: the entry's own, else the watermark's."""
        if self.delivered or self.ending is not None:
            delivered_at = EPOCH if self.delivered else None
            return entries.Mark(delivered_at, _ending(self.ending), self.published)
        return entries.PurgeWatermark(FIRST, EPOCH).mark_of(FIRST) if self.purged else None


class EntryState(NamedTuple):
    """Verdict of the domain about an entry. `name`: waiting, delivered, or the ending. `waits`: the
    mail waits under this entry. `is_final`: nothing more comes of it. `needs_bytes`: the object
    of its mail may still be needed, by this entry, a successor or a dead letter."""

    name: str
    waits: bool
    is_final: bool
    needs_bytes: bool

    @classmethod
    def of(cls, mark: entries.Mark | None) -> EntryState:
        if mark is None:
            return cls(WAITING, waits=True, is_final=False, needs_bytes=True)
        if mark.delivered_at is not None or mark.ending is None:
            name = DELIVERED
        else:
            name = mark.ending.kind.value
        return cls(name, mark.is_live, mark.is_final, not deletes_bytes(mark))


def _ending(kind: entries.EndingKind | None) -> entries.Ending | None:
    if kind is entries.EndingKind.REPLACED:
        change = entries.Change((), None, held=False, attempt=0, last_error=None)
        return entries.Ending(kind, EPOCH, entries.EntryKey(EPOCH, 0, FIRST), change)
    return None if kind is None else entries.Ending(kind, EPOCH)


def _all_flags() -> list[EntryFlags]:
    return [EntryFlags(*each) for each in product(ENDINGS, *((False, True),) * 3)]


STATES: Mapping[EntryFlags, EntryState] = MappingProxyType(
    {flags: EntryState.of(flags.mark) for flags in _all_flags()}
)
"""The domain's answer for every combination."""
