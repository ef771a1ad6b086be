"""Decision table of dequeue, for a reference that arrived.

::

    1  its mark is final                                           Settle   (delete bytes, ack)
    2  its slice is before browse start                            Passed   (over, or late: ack)
    3  its replacement stopped half way                            Finish   (then ack)
    4  consumers crashed on it too often                           GiveUp   (dead letters)
    5  the broker redelivered it                                   Redeliver    (one delay step)
    6  it is not due yet                                           Redeliver    (the next step)
    7  it repeats a message that needs no claim                    Replace  (then ack)
    8  another message about the same mail can exist               Claim    (then the marks again)
    9  none of these                                               Attempt

Source: 000 Decision (dequeue); ADR 0003, 0018; invariants 3, 4, 8, 10."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from postroad.domain.queues.entries import EndingKind, Mark
from postroad.domain.queues.names import next_delay, redelivery_delay_after
from postroad.domain.queues.references import Reference


class Verdict(Enum):
    """Action when nothing needs to be published."""

    SETTLE = "the entry is over"
    FINISH = "its replacement has to be finished"
    PASSED = "the entry is over if its row is gone; else it came too late, and needs a new one"
    GIVE_UP = "it goes to the dead letters"
    REPLACE = "it gets a new entry, so that the message it repeats meets a mark"
    CLAIM = "a claim has to be taken, then the marks have to be read again"
    ATTEMPT = "it is handed out"


@dataclass(frozen=True, slots=True)
class Redeliver:
    """Publish `reference` to this step of the delay queues, then ack what arrived."""

    reference: Reference
    delay_seconds: int


@dataclass(frozen=True, slots=True)
class ReferenceArrival:
    """Way in which a reference arrived. `draw` is a number in [0, 1); `redelivery_delay` the first
    delay after a redelivery; `limit` how many crashes are tolerated."""

    now: datetime
    redelivered: bool
    failed_deliveries: int
    browse_start: datetime | None
    redelivery_delay: timedelta
    limit: int
    draw: float


def decide(
    reference: Reference, mark: Mark | None, arrival: ReferenceArrival
) -> Verdict | Redeliver:
    """Return what is to be done with a reference whose entry has this mark."""
    over = _over(mark)
    passed = arrival.browse_start is not None and reference.key.slice_start < arrival.browse_start
    if passed and over is not Verdict.SETTLE:
        return Verdict.PASSED
    if over is not None:
        return over
    if arrival.redelivered:
        again = reference.again(crashes=arrival.failed_deliveries)
        if again.crashes > arrival.limit:
            return Verdict.GIVE_UP
        due = next_delay(again.due_at, arrival.now)
        return Redeliver(
            again,
            due or redelivery_delay_after(again.crashes, arrival.redelivery_delay, arrival.draw),
        )
    if (seconds := next_delay(reference.due_at, arrival.now)) > 0:
        return Redeliver(reference.again(), seconds)
    if reference.is_repetition:
        return Verdict.REPLACE
    return Verdict.CLAIM if reference.claim else Verdict.ATTEMPT


def decide_claimed(mark: Mark | None, previous: Sequence[Mark | None]) -> Verdict:
    """Return what is to be done once the claims are taken and the marks were read after that. A
    consumer may have held, and delivered, an entry that administration replaced."""
    if (over := _over(mark)) is not None:
        return over
    if any(each is not None and each.delivered_at is not None for each in previous):
        return Verdict.SETTLE
    return Verdict.ATTEMPT


def _over(mark: Mark | None) -> Verdict | None:
    if mark is None:
        return None
    if mark.is_final:
        return Verdict.SETTLE
    return Verdict.FINISH if mark.is_unfinished_replacement else None


def deletes_bytes(mark: Mark) -> bool:
    """Return whether no entry and no dead letter needs the bytes of a mail with this final mark. A
    dead letter keeps them, to be requeued. A successor shares them, also when another successor was
    withdrawn in its favour; an enqueue that withdraws deletes its bytes itself. After an unknown
    ending another entry may need them."""
    if mark.is_unknown:
        return False
    if mark.delivered_at is not None:
        return True
    return mark.ending is not None and mark.ending.kind in {
        EndingKind.REMOVED,
        EndingKind.EXPIRED,
    }
