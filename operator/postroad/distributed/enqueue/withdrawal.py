"""A failed enqueue is withdrawn: its entry ends, so that no consumer delivers a mail whose sender
has got an error and sends it again.

A consumer that was first makes the enqueue succeed. What cannot be withdrawn is counted, because it
may be delivered once beside what the sender sends again (invariant 1).
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID

from postroad.distributed.engine.engine import Engine
from postroad.distributed.enqueue.later_looks import NOT_WITHDRAWN, count_unwithdrawn
from postroad.distributed.entries.endings import CLEANED
from postroad.distributed.entries.replacement import is_withdrawn, withdraw, withdraw_row
from postroad.domain.queues.entries import Entry, Mark
from postroad.errors import ServerError

End = Callable[[Engine, Entry], Awaitable[Mark | None]]

TAKEN = Mark()
"""Stands for the mark of an entry that a consumer has claimed: the mail was accepted."""


class Withdrawal:
    """The withdrawal of one entry. `owner` is that of its claim; `published` is when the last
    attempt to publish ended, None where no message can exist; `deadline`, by which the enqueue had
    to end."""

    def __init__(
        self,
        engine: Engine,
        entry: Entry,
        owner: UUID,
        *,
        published: timedelta | None,
        has_row: bool,
        deadline: timedelta,
    ) -> None:
        self._engine = engine
        self._entry = entry
        self._published = published
        self._has_row = has_row
        self._deadline = deadline
        self._owner = owner

    async def run(self, longest: timedelta) -> bool:
        """Withdraw the entry, trying for `longest`; return whether a consumer (or an administrator)
        was first, so that the mail was accepted after all."""
        engine, backoff = self._engine, self._engine.backoff()
        if longest and self._published is not None:
            # By the end of a redelivery delay, a consumer that got the message has claimed the
            # entry or ended it.
            await engine.clock.sleep(
                self._published + engine.timing.redelivery_delay - engine.clock.elapsed()
            )
        give_up = engine.clock.elapsed() + longest
        while True:
            try:
                standing = await self._end(withdraw_row if self._has_row else withdraw)
                break
            except Exception as error:
                is_transient = isinstance(error, ServerError) and error.transient
                if not is_transient or engine.clock.elapsed() >= give_up:
                    self._leave(type(error).__name__)
                    if longest:
                        engine.until_closed(self._withdraw_late())
                    return False
            await backoff.wait()
        if standing is CLEANED and not self._has_row:
            self._leave("cleaned")  # whether its row came in time is not known
            return False
        if not await self._is_withdrawn(standing):
            return True
        if longest and self._published is not None:
            engine.on_withdrawn(self._entry)
        return False

    async def _end(self, withdraw: End) -> Mark | None:
        """Withdraw under a claim. Returns the mark that was there first, if any, or `TAKEN`."""
        if self._published is None:
            return await withdraw(self._engine, self._entry)
        view, enqueue_id = self._engine.view, self._entry.enqueue_id
        if not await view.claim(enqueue_id, self._owner, self._engine.timing.claim):
            return TAKEN
        try:
            return await withdraw(self._engine, self._entry)
        finally:
            await view.release_claim(enqueue_id, self._owner)

    def _leave(self, error: str) -> None:
        entry = self._entry
        count_unwithdrawn(self._engine, entry.enqueue_id, entry.mail_id, NOT_WITHDRAWN, error)

    async def _withdraw_late(self) -> None:
        """Withdraw once the view is back: the caller has got its error, and the row would wait
        without a message."""
        engine, backoff = self._engine, self._engine.backoff()
        while True:
            await backoff.wait()
            try:
                standing = await self._end(withdraw_row)
                if standing is None and await self._may_get_its_row():
                    if engine.clock.elapsed() > self._deadline + engine.timing.grace:
                        return  # it was counted; the audit deletes the bytes if no row comes
                    continue
            except Exception as error:
                engine.log.debug("a withdrawal waits for the view", error=type(error).__name__)
                continue
            if await self._is_withdrawn(standing):
                engine.log.info(
                    "a failed enqueue was withdrawn late", enqueue_id=str(self._entry.enqueue_id)
                )
            return

    async def _may_get_its_row(self) -> bool:
        """True if the entry has neither row nor mark: its insert had no reply, and a host of the
        view that stands still may carry it out when it continues. Then the mail waits without a
        mark, and without bytes, if they were deleted. Raises: ViewError."""
        return not self._has_row and await self._engine.view.mark(self._entry.key) is None

    async def _is_withdrawn(self, standing: Mark | None) -> bool:
        """Return whether the withdrawal ended the entry; its bytes are deleted then. A cleaned
        entry had ended otherwise, and its successor may need the bytes."""
        withdrawn = standing is None or (standing is not CLEANED and is_withdrawn(standing))
        if withdrawn:
            await delete_upload(self._engine, self._entry.blob_key)
        return withdrawn


async def delete_upload(engine: Engine, blob_key: str) -> None:
    """Delete the bytes of a mail that is not queued. Best effort."""
    try:
        await engine.blobs.delete(blob_key)
    except Exception as error:  # the audit deletes what stays
        engine.log.debug("bytes of a mail that was not queued stay", error=type(error).__name__)
