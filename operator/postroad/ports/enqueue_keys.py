"""Meaning of an enqueue key, in the view. Source: ADR 0045."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from postroad.domain.queues.entries import EntryKey


@dataclass(frozen=True, slots=True)
class KeyedEntry:
    """The entry that an enqueue key stands for, with the digest of its mail. `is_accepted`: the
    mail was queued; else it may be, or be on its way, or the process stopped before."""

    key: EntryKey
    mail_id: UUID
    blob_key: str
    accepted_at: datetime
    digest: bytes
    is_accepted: bool = False


class EnqueueKeys(Protocol):
    """The enqueue keys of one queue, by their tokens. Each write decides alone, and lasts for
    `KEY_LIFETIME`. After ViewUnavailable it may have taken effect, and may be repeated."""

    async def take_key(self, token: bytes, keyed: KeyedEntry) -> KeyedEntry:
        """Let a key stand for an entry, unless it stands for one. Returns the one that it stands
        for now."""

    async def change_key(self, token: bytes, before: KeyedEntry, after: KeyedEntry) -> bool:
        """Let a key that stands for `before`, as accepted as that, stand for `after`. Returns
        whether it did."""
