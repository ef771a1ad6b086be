"""Dead letters in maintenance: unfinished `give_up` and `requeue` operations are finished, and
letters older than their lifetime are discarded, with their bytes.

One process at a time goes over the letters; its claim is the timetable. Source: ADR 0025.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from postroad.distributed.administration.discard import discard_letter
from postroad.distributed.administration.requeue import requeue_letter
from postroad.distributed.engine.engine import Engine
from postroad.distributed.entries import dead_letters
from postroad.distributed.entries.mail_errors import MailErrors
from postroad.domain.values.identifiers import moment_of
from postroad.ports.view import DeadLetter
from postroad.telemetry import metrics

CLAIM_ID = UUID(int=3)
"""What the process that goes over the letters claims; no entry has this id."""

LETTER_PASS_INTERVAL = timedelta(minutes=10)
"""From one pass to the next; after a pass that took long, ten times as long as it took."""


class LetterMaintenance:
    """Goes over the dead letters, every `LETTER_PASS_INTERVAL` or less often."""

    def __init__(self, engine: Engine, owner: UUID) -> None:
        self._engine = engine
        self._owner = owner
        self._due = timedelta(0)

    async def run(self) -> None:
        """Go over all letters if it is time and no other process does. Raises: as
        `RowMaintenance.run`."""
        engine, began = self._engine, self._engine.clock.elapsed()
        if began < self._due:
            return
        undecodable = metrics.UNDECODABLE.labels(engine.label, "letter")
        if not await engine.view.claim(CLAIM_ID, self._owner, LETTER_PASS_INTERVAL):
            undecodable.set(0)  # the process that goes over them counts them
            self._due = began + LETTER_PASS_INTERVAL
            return
        undecodable.set(await self._pass())
        now = engine.clock.elapsed()
        pause = max(LETTER_PASS_INTERVAL, 10 * (now - began))
        await engine.view.claim(CLAIM_ID, self._owner, pause)
        self._due = now + pause

    async def _pass(self) -> int:
        """Maintain each letter; return how many cannot be decoded."""
        errors, undecodable = MailErrors(self._engine), 0
        async for letter in self._engine.view.letters():
            if not letter.is_decoded:
                undecodable += 1
                continue
            with errors.of(letter.enqueue_id):
                await self._maintain(letter)
        errors.check()
        errors.end()
        return undecodable

    async def _maintain(self, letter: DeadLetter) -> None:
        engine, entry = self._engine, letter.entry
        if letter.requeued_as is not None:
            await requeue_letter(engine, letter)
        elif self._is_over(letter):
            await self._expire(letter)
        elif entry is not None:
            limits = await engine.limits_cache.limits()
            if not limits.have_passed(entry.key.slice_start):
                mark = await engine.view.mark(entry.key)
                if mark is None or not dead_letters.is_rejected(mark):
                    await dead_letters.finish(engine, entry)

    def _is_over(self, letter: DeadLetter) -> bool:
        """Whether a letter is older than its lifetime. `died_at` may come from a wrong clock; an id
        is made only by a right one."""
        since = max(letter.died_at, moment_of(letter.enqueue_id))
        return self._engine.clock.now() - since > self._engine.dead_letter_lifetime

    async def _expire(self, letter: DeadLetter) -> None:
        await self._engine.limits_cache.check_clock()
        if await discard_letter(self._engine, letter):
            metrics.EXPIRED.labels(self._engine.label).inc()
