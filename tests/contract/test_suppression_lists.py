"""The contract of a queue's suppression lists, over memory, a directory and Cassandra."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

import servers
from postroad.adapters.cassandra.session import Session
from postroad.adapters.cassandra.store import CassandraViewStore
from postroad.adapters.disk.suppression_list import FileSuppressionList
from postroad.adapters.memory.servers import MemoryServers, MemoryWorld
from postroad.domain.delivery.suppressed import SuppressedAddress, SuppressedBy, suppressed
from postroad.errors import StoreDamaged, StoreFailed
from postroad.ports.delivery import SuppressionList
from support.keyspaces import keyspace
from support.memory.clock import ManualClock

__all__ = ["keyspace"]

AT = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
Lists = tuple[SuppressionList, SuppressionList, SuppressionList]


def an_entry(address: str, reason: str = "asked", *, is_hashed: bool = False) -> SuppressedAddress:
    return suppressed(address, reason, SuppressedBy.ADMINISTRATOR, AT, is_hashed=is_hashed)


class SuppressionListContract:
    """What every list promises. Subclasses provide `lists`: two processes' of one queue, and that
    of another queue."""

    async def test_what_was_added_is_found_by_every_process_for_its_tenant(
        self, lists: Lists
    ) -> None:
        one, other, stranger = lists
        plain, hashed = an_entry("Ann@example.org"), an_entry("b@example.org", is_hashed=True)
        await one.add("acme", [plain, hashed])

        wanted = [plain.token, hashed.token, bytes(32)]
        assert await other.find("acme", wanted) == {plain.token: plain, hashed.token: hashed}
        assert await other.find("acme", [plain.token]) == {plain.token: plain}
        assert await other.find("acme", []) == {}
        for nothing in (other.find("", wanted), stranger.find("acme", wanted)):
            assert await nothing == {}

    async def test_a_listing_goes_on_after_a_token(self, lists: Lists) -> None:
        one, other, _ = lists
        added = [an_entry(f"a{number}@example.org", is_hashed=True) for number in range(20)]
        await one.add("acme", added)
        tokens = sorted(each.token for each in added)

        assert [each.token async for each in other.entries("acme")] == tokens
        for place in (0, 7, 19):
            left = [each.token async for each in other.entries("acme", tokens[place])]
            assert left == tokens[place + 1 :]

    async def test_the_last_entry_with_a_token_counts_until_it_is_removed(
        self, lists: Lists
    ) -> None:
        one, other, _ = lists
        first, second = an_entry("a@example.org", "first"), an_entry("A@example.org", "second")
        await one.add("", [first])
        await other.add("", [an_entry("a@example.org", "between"), second])
        assert await one.find("", [first.token]) == {first.token: second}
        assert [each async for each in one.entries("")] == [second]

        await other.remove("", [first.token, bytes(32)])
        await other.remove("", [first.token])
        assert await one.find("", [first.token]) == {}
        await one.add("", [first])
        assert await other.find("", [first.token]) == {first.token: first}

    async def test_a_list_is_read_in_order_and_alone(self, lists: Lists) -> None:
        one, other, stranger = lists
        many = [an_entry(f"a{number}@example.org") for number in range(1200)]
        await one.remove("acme", [many[0].token])
        await one.add("acme", many)
        await one.add("other", [an_entry("z@example.org")])

        read = [each async for each in other.entries("acme")]
        assert read == sorted(many, key=lambda each: each.token)
        assert [each async for each in stranger.entries("acme")] == []
        found = await other.find("acme", [each.token for each in many])
        assert len(found) == 1200
        await other.remove("acme", [each.token for each in many[1:]])
        assert [each async for each in one.entries("acme")] == many[:1]

    async def test_entries_of_administrators_and_of_refusals_lie_beside_each_other(
        self, lists: Lists
    ) -> None:
        one, other, _ = lists
        by_hand = an_entry("a@example.org")
        pending = replace(by_hand, by=SuppressedBy.BOUNCE, count=1, is_pending=True)
        soon = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
        learnt = replace(pending, count=2, is_pending=False, expires_at=soon)
        token = by_hand.token
        await one.add("", [pending])
        assert await other.find("", [token]) == {token: pending}
        await one.add("", [by_hand])
        await other.add("", [learnt])
        assert await one.find("", [token]) == {token: by_hand}
        assert [each async for each in one.entries("")] == [by_hand, learnt]
        await one.remove("", [token])
        assert await other.find("", [token]) == {}

    async def test_a_list_with_two_entries_for_each_address_is_read_whole(
        self, lists: Lists
    ) -> None:
        one, other, _ = lists
        many = [an_entry(f"a{number}@example.org") for number in range(1100)]
        both = [replace(each, by=by) for each in many for by in SuppressedBy]
        await one.add("", both)
        read = [each async for each in other.entries("")]
        assert len(read) == len(both)
        assert {(each.token, each.by) for each in read} == {(each.token, each.by) for each in both}

    async def test_what_expires_is_kept_until_then(self, lists: Lists) -> None:
        one, other, _ = lists
        now = datetime.now(UTC).replace(microsecond=0)
        entry = replace(
            an_entry("a@example.org"), added_at=now, count=3, expires_at=now + timedelta(hours=1)
        )
        await one.add("", [entry])
        assert await other.find("", [entry.token]) == {entry.token: entry}

    async def test_entries_are_kept_as_they_are(self, lists: Lists) -> None:
        one, other, _ = lists
        odd = SuppressedAddress(
            bytes(range(32)), '"ä\\" b"@bücher.example', "550 5.1.1 ü", SuppressedBy.BOUNCE, AT
        )
        await one.add("té nant/1", [odd])
        assert await other.find("té nant/1", [odd.token]) == {odd.token: odd}


class TestMemorySuppressionList(SuppressionListContract):
    @pytest.fixture
    def lists(self) -> Lists:
        world = MemoryWorld(ManualClock())
        one, other = (MemoryServers(world).views() for _ in range(2))
        names = ("a.one", "a.one", "a.other")
        of = (one, other, one)
        return tuple(  # type: ignore[return-value]
            each.view(name).suppression_list for each, name in zip(of, names, strict=True)
        )


class TestFileSuppressionList(SuppressionListContract):
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "suppressed.sqlite"

    @pytest.fixture
    def lists(self, file: Path) -> Lists:
        return (
            FileSuppressionList(file),
            FileSuppressionList(file),
            FileSuppressionList(file.with_name("other.sqlite")),
        )

    async def test_what_expired_goes_with_the_next_change(self, lists: Lists, file: Path) -> None:
        expired = replace(an_entry("a@example.org"), expires_at=AT + timedelta(hours=1))
        await lists[0].add("", [expired])
        later = replace(an_entry("b@example.org"), added_at=AT + timedelta(hours=2))
        await lists[1].add("", [later])
        assert [each async for each in lists[0].entries("")] == [later]

    async def test_processes_write_at_once(self, lists: Lists, file: Path) -> None:
        await asyncio.gather(
            *(
                each.add("", [an_entry(f"a{number}-{at}@example.org")])
                for number in range(20)
                for at, each in enumerate(lists[:2])
            )
        )
        assert len([each async for each in lists[0].entries("")]) == 40
        assert file.stat().st_mode & 0o077 == 0

    async def test_mail_is_looked_for_while_many_addresses_are_added(
        self, lists: Lists, file: Path
    ) -> None:
        """Ten MB of them: the file is not locked before they are committed."""
        await lists[0].add("", [an_entry("a@example.org")])
        found: list[int] = []

        class Late(datetime):
            def isoformat(self, *_: object) -> str:
                with closing(sqlite3.connect(file, timeout=0)) as looking:
                    found.append(len(looking.execute("SELECT 1 FROM suppressed").fetchall()))
                return AT.isoformat()

        reason, last = "r" * 4000, Late.fromtimestamp(0, UTC)
        tokens = (number.to_bytes(32, "big") for number in range(2500))
        many = [SuppressedAddress(token, None, reason, SuppressedBy.BOUNCE, AT) for token in tokens]
        many.append(SuppressedAddress(b"\xff" * 32, None, "", SuppressedBy.BOUNCE, last))
        await lists[0].add("", many)

        assert set(found) == {1}

    async def test_a_file_without_its_table_is_an_empty_list(
        self, lists: Lists, file: Path
    ) -> None:
        """A process was killed amid the first address."""
        file.touch()
        assert await lists[0].find("", [bytes(32)]) == {}
        await lists[0].add("", [an_entry("a@example.org")])
        assert len([each async for each in lists[1].entries("")]) == 1

    async def test_a_file_that_is_none_is_reported(self, lists: Lists, file: Path) -> None:
        file.write_bytes(b"x" * 4096)
        with pytest.raises(StoreDamaged, match="cannot be read"):
            await lists[0].find("", [bytes(32)])
        with pytest.raises(StoreDamaged, match="cannot be read"):
            await lists[0].add("", [an_entry("a@example.org")])

    async def test_a_file_that_was_put_in_its_place_is_found(
        self, lists: Lists, file: Path
    ) -> None:
        one, _, elsewhere = lists
        before, after = an_entry("a@example.org"), an_entry("b@example.org")
        await one.add("", [before])
        await elsewhere.add("", [after])
        assert await one.find("", [before.token, after.token]) == {before.token: before}
        file.with_name("other.sqlite").replace(file)
        assert await one.find("", [before.token, after.token]) == {after.token: after}
        file.unlink()
        assert await one.find("", [before.token, after.token]) == {}

    async def test_a_row_of_a_later_release_suppresses_too(self, lists: Lists, file: Path) -> None:
        entry = an_entry("a@example.org")
        await lists[0].add("", [entry])
        with sqlite3.connect(file) as open_file:
            open_file.execute("UPDATE suppressed SET by = 'oracle'")
        open_file.close()
        assert await lists[1].find("", [entry.token]) == {entry.token: entry}

    async def test_a_folder_that_is_gone_is_an_error(self, tmp_path: Path) -> None:
        gone = FileSuppressionList(tmp_path / "gone" / "suppressed.sqlite")
        assert await gone.find("", [bytes(32)]) == {}
        with pytest.raises(StoreFailed, match="there is no folder"):
            await gone.add("", [an_entry("a@example.org")])


@pytest.mark.needs("cassandra")
class TestCassandraSuppressionList(SuppressionListContract):
    @pytest.fixture
    async def lists(self, keyspace: str) -> AsyncIterator[Lists]:
        sessions = [Session(servers.cassandra(keyspace)) for _ in range(2)]
        one, other = map(CassandraViewStore, sessions)
        name = f"suppressed.{uuid4().hex}"
        yield (
            one.view(name).suppression_list,
            other.view(name).suppression_list,
            one.view(f"{name}-2").suppression_list,
        )
        for each in sessions:
            await each.close()

    async def test_an_erased_queue_has_no_list(self, lists: Lists, keyspace: str) -> None:
        one, _, stranger = lists
        entry = an_entry("a@example.org")
        await one.add("", [entry])
        await stranger.add("", [entry])
        session = Session(servers.cassandra(keyspace))
        await CassandraViewStore(session).view(one._queue).erase()  # type: ignore[attr-defined]
        await session.close()

        assert await one.find("", [entry.token]) == {}
        assert await stranger.find("", [entry.token]) == {entry.token: entry}
