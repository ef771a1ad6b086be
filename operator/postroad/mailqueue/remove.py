"""Remove and purge: a mark that wins, then the bytes. The message finds the mark when it comes."""

from __future__ import annotations

from postroad.domain.selectors import Selector
from postroad.domain.turns import Ending, EndingKind, Mark, Turn
from postroad.errors import BlobsError
from postroad.mailqueue.browse import Waiting, waiting
from postroad.mailqueue.bulk import count
from postroad.mailqueue.endings import end
from postroad.mailqueue.engine import Engine
from postroad.mailqueue.protocol import hand_down_delivery, replacement_of


async def remove(engine: Engine, selector: Selector) -> int:
    """Remove the selected mails that wait now; return how many. Raises: InvalidInput, ViewError."""
    selector.require_purpose()
    engine.check_open()
    began = engine.clock.now()

    async def one(each: Waiting) -> bool:
        return each.turn.accepted_at <= began and await remove_turn(engine, each.row, each.mark)

    return await count(waiting(engine, selector), one)


async def remove_turn(engine: Engine, turn: Turn, mark: Mark | None = None) -> bool:
    """Remove a mail, starting from one of its turns; go on to its successors if it has some.

    Returns whether it is removed by this call; False when it ended before.
    """
    if mark is None:
        ending = Ending(EndingKind.REMOVED, engine.clock.now())
        mark = await end(engine, turn, ending)
        if mark is None:
            await _delete_bytes(engine, turn)
            engine.on_ending()
            return True
    if mark.ending is None or mark.ending.kind is not EndingKind.REPLACED:
        return False
    if mark.delivered_at is not None:
        await hand_down_delivery(engine, turn, mark)
        return False
    successor, change = replacement_of(mark)
    new = turn.with_change(successor, change)
    if not mark.published:
        # Its row comes first, so that the mark that ends it is not without one. No message is
        # needed any more: the replacement is finished by its successor's end.
        await engine.view.insert(new)
    removed = await remove_turn(engine, new)
    if not mark.published and not await engine.view.mark_published(turn.key, successor.enqueue_id):
        return await remove_turn(engine, turn, await engine.view.mark(turn.key)) or removed
    return removed


async def _delete_bytes(engine: Engine, turn: Turn) -> None:
    try:
        await engine.blobs.delete(turn.blob_key)
    except BlobsError as error:
        # Its message deletes them when it comes, the audit where there is none.
        engine.log.debug("bytes of a removed mail stay for now", error=type(error).__name__)
