"""Waiting mail that nobody else would look after: rows about to expire, replacements that stopped,
mails without a message.

A row is rolled forward at half its lifetime, so that tables may forget rows by age. The lifetime is
asked for in each round, and each row says its own: both may be changed while processes run. A
replacement whose process died is normally finished by the old turn's message; a held mail has none.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from postroad.domain.lifetimes import is_half_over
from postroad.domain.turns import Change, UndecodableRow
from postroad.errors import Undecodable
from postroad.mailqueue import dead, protocol
from postroad.mailqueue.browse import Waiting, waiting
from postroad.mailqueue.engine import Engine
from postroad.mailqueue.items import FINISHED
from postroad.mailqueue.orphans import Orphans
from postroad.mailqueue.requeue import requeue_letter
from postroad.mailqueue.set_aside import SetAside
from postroad.mailqueue.troubles import Troubles, note
from postroad.ports.view import DeadLetter, Limits
from postroad.telemetry import metrics

EVERY = timedelta(minutes=10)
"""All waiting mail is gone over this often; much less than half of any row's lifetime."""


class Tending:
    """Goes over waiting mail now and then."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._orphans = Orphans(engine)
        self._due = timedelta(0)

    async def run(self) -> None:
        """Tend if it is time. Raises: ServerError, ConfigurationStale; and, after all had their
        turn, the first error of single mails, when there were very many."""
        now = self._engine.clock.elapsed()
        if now < self._due:
            return
        lifetime = await self._engine.row_lifetime() or timedelta.max
        troubles = Troubles(self._engine)

        async def keep(row: UndecodableRow) -> None:
            with troubles.of(row.enqueue_id):
                await self._keep(row, lifetime)

        aside = SetAside(self._engine, keep)
        look = await self._orphans.look()
        async for each in waiting(self._engine, aside=aside):
            if each.mark is None:
                look.see(each.row)
            with troubles.of(each.row.enqueue_id):
                await self._tend(each, lifetime)
        await self._orphans.heal(look, troubles)
        await self._tend_letters(troubles, aside)
        aside.publish()
        self._due = now + EVERY
        troubles.end()

    async def _tend(self, each: Waiting, lifetime: timedelta) -> None:
        engine, now = self._engine, self._engine.clock.now()
        if each.mark is not None:
            ending = each.mark.ending
            if ending is not None and now - ending.at > engine.timing.grace:
                await protocol.finish(engine, each.row, each.mark)
        elif is_half_over(now - each.row.enqueued_at, each.row.remaining, lifetime):
            await self._roll_forward(each)

    async def _roll_forward(self, each: Waiting) -> None:
        engine = self._engine
        await self._keep_records(each.row.mail_id)
        standing = await protocol.replace(engine, each.row, Change.nothing(each.row))
        if standing is None:
            metrics.ROLLED_FORWARD.labels(engine.label).inc()

    async def _keep(self, row: UndecodableRow, lifetime: timedelta) -> None:
        """A row that is set aside cannot be given a new turn. It is written again as it is stored,
        for a release that can decode it; but not where cleanup may be about to delete it."""
        engine = self._engine
        if row.remaining is not None and row.remaining > lifetime / 2:
            return
        if not (await engine.bearings.limits()).have_passed(row.key.slice_start):
            if row.mail_id is not None:
                await self._keep_records(row.mail_id)
            await engine.view.renew_row(row.key)

    async def _keep_records(self, mail_id: UUID) -> None:
        """The records of who is finished are written anew: they have the same lifetime as rows, and
        a mail that is held for longer needs them when it is released."""
        try:
            records = (await self._engine.view.records(mail_id)).values()
        except Undecodable:
            note(self._engine, mail_id)  # the row is kept all the same: without it the mail is lost
            return
        finished = tuple(record for record in records if record.outcome.kind in FINISHED)
        if finished:
            await self._engine.view.record(mail_id, finished)

    async def _tend_letters(self, troubles: Troubles, aside: SetAside) -> None:
        """Finish burials and requeues that stopped half way."""
        limits = await self._engine.bearings.refresh()
        async for letter in self._engine.view.buried():
            if not letter.is_decoded:
                aside.letter()
                continue
            with troubles.of(letter.enqueue_id):
                await self._tend_letter(letter, limits)

    async def _tend_letter(self, letter: DeadLetter, limits: Limits) -> None:
        engine, turn = self._engine, letter.turn
        if letter.requeued_as is not None:
            await requeue_letter(engine, letter)
        elif turn is not None and not limits.have_passed(turn.key.slice_start):
            mark = await engine.view.mark(turn.key)
            if mark is None or not dead.is_rejected(mark):
                await dead.finish(engine, turn)
