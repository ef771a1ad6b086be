"""What a view promises of enqueue keys. A subclass provides the fixtures `view` and `store`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

from postroad.domain.queues.entries import EntryKey
from postroad.domain.values.identifiers import id_at
from postroad.ports.view import KeyedEntry, View, ViewStore

START = datetime(2026, 1, 1, 10, tzinfo=UTC)
TOKEN, OTHER = bytes(31) + b"\x01", bytes(31) + b"\xff"


def keyed(number: int) -> KeyedEntry:
    """What a key may stand for."""
    key = EntryKey(START, number % 3, id_at(START, 0, number))
    digest = bytes([number]) * 32
    return KeyedEntry(key, UUID(int=number), f"queue/2026/01/01/{number}", START, digest)


class EnqueueKeyContract:
    """Enqueue keys."""

    async def test_a_key_stands_for_the_first_entry_that_takes_it(self, view: View) -> None:
        assert await view.take_key(TOKEN, keyed(1)) == keyed(1)
        assert await view.take_key(TOKEN, keyed(2)) == keyed(1)
        assert await view.take_key(OTHER, keyed(2)) == keyed(2)

    async def test_of_many_entries_that_take_a_key_at_once_one_has_it(self, view: View) -> None:
        found = await asyncio.gather(*(view.take_key(TOKEN, keyed(each)) for each in range(1, 9)))

        assert len({each.key for each in found}) == 1

    async def test_a_key_changes_for_the_process_that_knows_what_it_stands_for(
        self, view: View
    ) -> None:
        accepted = replace(keyed(1), is_accepted=True)
        await view.take_key(TOKEN, keyed(1))

        assert not await view.change_key(TOKEN, keyed(2), keyed(3))
        assert not await view.change_key(OTHER, keyed(1), keyed(3))
        assert await view.change_key(TOKEN, keyed(1), accepted)
        assert not await view.change_key(TOKEN, keyed(1), keyed(3))
        assert await view.take_key(TOKEN, keyed(4)) == accepted
        assert await view.take_key(OTHER, keyed(4)) == keyed(4)

    async def test_keys_of_two_queues_are_apart(
        self, view: View, store: ViewStore, queue: str
    ) -> None:
        other = store.view(f"{queue}-2")
        await view.take_key(TOKEN, keyed(1))

        assert await other.take_key(TOKEN, keyed(2)) == keyed(2)
