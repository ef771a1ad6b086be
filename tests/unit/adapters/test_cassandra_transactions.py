"""Conditional writes of one partition go together; each caller learns its own result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import pytest

from postroad.adapters.cassandra.session import Session, Statement
from postroad.adapters.cassandra.view.marks import NOTHING, Transactions, Write
from postroad.domain.queues.entries import Ending, EndingKind, EntryKey, Mark, Partition
from postroad.errors import ViewUnavailable

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PARTITION = Partition(NOW, 0)
ENDED = Mark(ending=Ending(EndingKind.REMOVED, NOW))
END, PUBLISH = Statement("END"), Statement("PUBLISH")


@dataclass
class Server:
    """A partition as Cassandra keeps it: a batch is carried out wholly or not at all. `batches` are
    the entries of each; `watermark` is that of a purge; `unseen` has the marks that no plain read
    shows, each with the number of such reads."""

    marks: dict[UUID, Mark] = field(default_factory=dict)
    watermark: UUID | None = None
    unseen: dict[UUID, int] = field(default_factory=dict)
    batches: list[list[int]] = field(default_factory=list)
    lost_answers: int = 0

    async def execute(self, statement: Statement, values: Sequence[Any]) -> list[dict[str, Any]]:
        return await self.execute_batch([(statement, values)])

    async def execute_batch(
        self, together: Sequence[tuple[Statement, Sequence[Any]]]
    ) -> list[dict[str, Any]]:
        self.batches.append([values[0].int for _, values in together])
        applied = all(self._allows(*each) for each in together)
        if applied:
            for _, values in together:
                self.marks[values[0]] = ENDED
        if self.lost_answers:
            self.lost_answers -= 1
            raise ViewUnavailable("the answer is lost")
        return [{"[applied]": applied, "purged_through": self.watermark}]

    async def read(self, partition: Partition, ids: Sequence[UUID]) -> Mapping[UUID, Mark]:
        return {each: self.marks[each] for each in ids if self._shows(each)}

    def _allows(self, statement: Statement, values: Sequence[Any]) -> bool:
        if statement is END:
            return values[0] not in self.marks and values[1] == self.watermark
        return values[0] in self.marks

    def _shows(self, each: UUID) -> bool:
        left = self.unseen.get(each, 0)
        self.unseen[each] = left - 1
        return each in self.marks and left <= 0


def end(number: int) -> Write:
    key = EntryKey(NOW, 0, UUID(int=number))
    return Write(key, END, (key.enqueue_id,), lambda mark: mark is None, wants_watermark=True)


def publish(number: int) -> Write:
    key = EntryKey(NOW, 0, UUID(int=number))
    return Write(key, PUBLISH, (key.enqueue_id,), lambda mark: mark is not None)


async def together(server: Server, *writes: Write) -> list[Mark | None]:
    transactions = Transactions(cast("Session", server), server.read)
    return await transactions.together(PARTITION, writes)


async def test_writes_on_different_entries_are_one_transaction() -> None:
    server = Server({UUID(int=9): ENDED})

    assert await together(server, end(1), end(2), publish(9)) == [None, None, None]
    assert server.batches == [[1, 2, 9]]


async def test_write_that_is_refused_keeps_no_other_from_being_carried_out() -> None:
    server = Server({UUID(int=2): ENDED})

    answers = await together(server, end(1), end(2), publish(3), end(4))

    assert answers == [None, ENDED, NOTHING, None]
    assert server.batches == [[1, 2, 3, 4], [1, 4]]


async def test_two_writes_on_one_entry_are_never_judged_by_what_stood_before_both() -> None:
    server = Server()

    assert await together(server, end(1), publish(1), end(1), end(2)) == [None, None, ENDED, None]
    assert all(len(set(batch)) == len(batch) for batch in server.batches)


async def test_line_that_the_caller_does_not_know_of_costs_one_more_transaction() -> None:
    server = Server(watermark=UUID(int=7))

    assert await together(server, end(8), end(9)) == [None, None]
    assert server.batches == [[8, 9], [8, 9]]


async def test_mark_that_only_a_transaction_sees_blocks_its_own_caller_alone() -> None:
    server = Server({UUID(int=1): ENDED}, unseen={UUID(int=1): 2})

    assert await together(server, end(1), end(2)) == [ENDED, None]


async def test_lost_answer_fails_all_writes_of_the_batch() -> None:
    """Each may have been carried out; who asks again finds its own mark."""
    server = Server(lost_answers=1)

    with pytest.raises(ViewUnavailable):
        await together(server, end(1), end(2))

    assert await together(server, end(1), end(2)) == [ENDED, ENDED]
