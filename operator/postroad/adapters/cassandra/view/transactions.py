"""Lightweight transactions on marks: those of one partition that wait at the same time go as one.

Cassandra runs those of a partition one after the other, with a few rounds between replicas each,
and all mails of a slice share a few partitions. A conditional batch costs as much as one of them
and takes effect wholly or not at all: where the condition of one write does not hold, its caller
gets the mark that refused it, and the others are sent again. When the answer to a batch is lost,
each caller gets ViewUnavailable, as for a lone transaction. Source: ADR 0012."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from postroad.adapters.cassandra.session import Row, Session, Statement
from postroad.domain.queues.entries import EntryKey, Mark, Partition

NOTHING = Mark()
"""Refuses a write that needs a mark where there is none."""


@dataclass(frozen=True, slots=True)
class Write:
    """A conditional write on the mark of one entry. `holds` is its CQL condition in Python.
    `wants_watermark`: the watermark that its caller knows is bound last."""

    key: EntryKey
    statement: Statement
    values: tuple[object, ...]
    holds: Callable[[Mark | None], bool]
    wants_watermark: bool = False

    def bound(self, through: UUID | None) -> tuple[Statement, tuple[object, ...]]:
        return self.statement, ((*self.values, through) if self.wants_watermark else self.values)


class Transactions:
    """Carries out writes of one partition. `read` returns the marks of entries, from their own rows
    or by the watermark."""

    def __init__(
        self,
        session: Session,
        read: Callable[[Partition, Sequence[UUID]], Awaitable[Mapping[UUID, Mark]]],
    ) -> None:
        self._session = session
        self._read = read

    async def together(self, partition: Partition, writes: Sequence[Write]) -> list[Mark | None]:
        """Return for each write None, or the mark that refused it. Raises: ViewError."""
        answers: dict[int, Mark | None] = {}
        waiting = dict(enumerate(writes))
        through: UUID | None = None
        most = len(waiting)
        while waiting:
            going = _first_of_each(waiting, most)
            answer = await self._decide([each.bound(through) for each in going.values()])
            if answer[0]["[applied]"]:
                refusals: dict[int, Mark | None] = dict.fromkeys(going)
                most = len(waiting)
            else:
                ids = [each.key.enqueue_id for each in going.values()]
                refusals = _refused(going, await self._read(partition, ids))
                before, through = through, _watermark_id(answer) or through
                if not refusals and through == before:
                    # The transaction met a mark that the read does not return yet. From now on each
                    # write goes alone, so that only that mark's caller waits for the read.
                    most = 1
            answers |= refusals
            for number in refusals:
                del waiting[number]
        return [answers[number] for number in range(len(writes))]

    async def _decide(self, bound: list[tuple[Statement, tuple[object, ...]]]) -> list[Row]:
        if len(bound) == 1:
            return await self._session.execute(*bound[0])
        return await self._session.execute_batch(bound)


def _watermark_id(answer: list[Row]) -> UUID | None:
    """Return the watermark that refused writes met, if their conditions read it."""
    return next((row["purged_through"] for row in answer if row.get("purged_through")), None)


def _first_of_each(waiting: Mapping[int, Write], most: int) -> dict[int, Write]:
    """Return the first write of each entry, in their order: of two in a batch, the second one's
    condition would not see the first."""
    going: dict[int, Write] = {}
    entries: set[UUID] = set()
    for number, write in waiting.items():
        if write.key.enqueue_id not in entries and len(going) < most:
            going[number] = write
        entries.add(write.key.enqueue_id)
    return going


def _refused(going: Mapping[int, Write], marks: Mapping[UUID, Mark]) -> dict[int, Mark | None]:
    standing = {number: marks.get(each.key.enqueue_id) for number, each in going.items()}
    return {
        number: mark or NOTHING
        for number, mark in standing.items()
        if not going[number].holds(mark)
    }
