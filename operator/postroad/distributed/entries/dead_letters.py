"""Entries as browsing and listings show them. Dead letters: mail is given up, kept apart with the
reason, and listed.

Rows and marks that this release cannot decode are set aside, logged and counted, so that they delay
no other mail. A row that is set aside still counts as live and keeps its slice; browsing and bulk
operations leave it out. An entry whose ending is unknown is over, and keeps its slice too.
Source: ADR 0017."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace as copy
from datetime import datetime, timedelta
from uuid import UUID

from postroad.distributed.engine.engine import Engine
from postroad.distributed.entries.endings import CLEANED, end, mark_if_passed
from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.mail.mail import Envelope, OutcomeKind
from postroad.domain.queues.documents import MailView
from postroad.domain.queues.entries import Ending, EndingKind, Entry, EntryKey, Mark, UndecodableRow
from postroad.domain.queues.selection import Pulse, Selector
from postroad.domain.values.identifiers import moment_of
from postroad.ports.view import DeadLetter
from postroad.telemetry import metrics


def view_of(entry: Entry, now: datetime, dead_letter: DeadLetter | None = None) -> MailView:
    due_at = entry.due_at if entry.due_at is not None and entry.due_at > now else None
    return MailView(
        enqueue_id=entry.enqueue_id,
        mail_id=entry.mail_id,
        mail=entry.envelope,
        accepted_at=entry.accepted_at,
        enqueued_at=entry.enqueued_at,
        due_at=due_at,
        held=entry.held,
        attempt=entry.attempt,
        size_bytes=entry.size_bytes,
        last_error=entry.last_error,
        reason=dead_letter.reason if dead_letter is not None else None,
    )


OVER_THE_LIMIT = "delivery limit exceeded: consumers crashed on it repeatedly"


def month_of(enqueue_id: UUID) -> str:
    """Return the month that a dead letter is filed under, e.g. `2026-01`: that of its id, so that
    giving an entry up twice writes one dead letter."""
    return f"{moment_of(enqueue_id):%Y-%m}"


async def undelivered(engine: Engine, entry: Entry) -> Envelope | None:
    """Return the envelope of a mail for the recipients who did not get it, those included who
    refused it under an earlier entry; None where all got it. Raises: ViewError, Undecodable."""
    outcomes = {
        each: record.outcome.kind
        for each, record in (await engine.view.records(entry.mail_id)).items()
    }
    recipients = entry.envelope.recipients
    left = [each for each in recipients if outcomes.get(each) is not OutcomeKind.DELIVERED]
    left += [
        each
        for each, kind in outcomes.items()
        if kind is OutcomeKind.FAILED and each not in recipients
    ]
    return copy(entry.envelope, recipients=tuple(left)) if left else None


async def give_up(
    engine: Engine,
    entry: Entry,
    envelope: Envelope,
    reason: str,
    outcomes: AttemptOutcomes | None = None,
) -> Mark | None:
    """Move an entry to the dead letters: dead letter, then mark. After a crash between them, the
    process that meets the entry or the dead letter next finishes it. Durable, idempotent. Returns
    None, or the mark of an entry that ended otherwise before; it has no dead letter then."""
    over = await mark_if_passed(engine, entry)
    if over is not None:
        return over
    now = engine.clock.now()
    dead_letter = DeadLetter(
        entry.enqueue_id, month_of(entry.enqueue_id), now, reason, copy(entry, envelope=envelope)
    )
    await engine.view.write_dead_letter(dead_letter)
    return await _end(engine, entry, dead_letter, outcomes)


async def finish(engine: Engine, entry: Entry) -> bool:
    """Finish a `give_up` that stopped before its mark. Returns whether the entry is dead."""
    dead_letter = await engine.view.dead_letter(month_of(entry.enqueue_id), entry.enqueue_id)
    return dead_letter is not None and await _end(engine, entry, dead_letter) is None


async def _end(
    engine: Engine, entry: Entry, dead_letter: DeadLetter, outcomes: AttemptOutcomes | None = None
) -> Mark | None:
    ending = Ending(EndingKind.REJECTED, engine.clock.now())
    standing = await end(engine, entry, ending, outcomes)
    if standing is None or is_rejected(standing):
        return None
    # Where no mark is left, or an unknown one, the entry may have ended with this dead letter.
    if dead_letter.is_decoded and standing is not CLEANED and not standing.is_unknown:
        await engine.view.delete_dead_letter(dead_letter)
    return standing


def is_rejected(mark: Mark) -> bool:
    """Return whether the ending of a mark is a dead letter. A consumer that had the entry in flight
    meanwhile may have delivered it all the same: its dead letter is stale then."""
    is_given_up = mark.ending is not None and mark.ending.kind is EndingKind.REJECTED
    return is_given_up and mark.delivered_at is None


async def end_as_dead(engine: Engine, entry: Entry) -> Mark | None:
    """Return None when the entry ended as rejected, else its mark. Finishes a `give_up` that
    stopped half way. A cleaned entry has no mark any more, and was final; late mail, before browse
    start too, still has its row, and is not over."""
    limits = await engine.limits_cache.refresh()
    if limits.have_passed(entry.key.slice_start) and await engine.view.row(entry.key) is None:
        return None
    ending = Ending(EndingKind.REJECTED, engine.clock.now())
    standing = await engine.view.end(entry.key, ending, entry.traits)
    return None if standing is None or is_rejected(standing) else standing


async def dead_letter_of(engine: Engine, listed: DeadLetter) -> DeadLetter | None:
    """Return the present state of a listed dead letter, None when it is gone. A dead letter that
    came back with a server which missed its deletion, or that a suspended process wrote again, is
    deleted once more: its mail is over, or waits. Call it under the dead letter's claim."""
    current = await engine.view.dead_letter(listed.month, listed.enqueue_id)
    if current is None and listed.entry is not None:
        await engine.view.delete_dead_letter(listed)
    return current


async def views(engine: Engine, selector: Selector | None) -> AsyncIterator[MailView]:
    """Yield dead letters. One that cannot be decoded matches only `Selector.all()` (and None), and
    has its death in place of its acceptance.
    Raises: ViewError."""
    now = engine.limits_cache.now()
    wanted = selector or Selector.all()
    async for dead_letter in selected(engine, wanted, every=wanted.pulse):
        yield (
            _unreadable(dead_letter)
            if dead_letter.entry is None
            else view_of(dead_letter.entry, now, dead_letter)
        )


async def selected(
    engine: Engine, selector: Selector, *, every: timedelta | None = None
) -> AsyncIterator[DeadLetter]:
    """Yield the dead letters that are selected, oldest first, and with `every` (`Selector.pulse`)
    some others. Raises: ViewError."""
    now, pulse = engine.limits_cache.now(), Pulse(every, engine.clock.elapsed)
    async for dead_letter in _listed(engine, selector.enqueue_id):
        if dead_letter.entry is None:
            enqueue_id = dead_letter.enqueue_id
            is_meant = selector.is_everything or selector.enqueue_id == enqueue_id
            before = selector.accepted_before
            is_meant = is_meant and (before is None or dead_letter.died_at < before)
            selected = is_meant and selector.within(enqueue_id)
        else:
            selected = selector.matches(dead_letter.entry, now)
        if selected or (selector.within(dead_letter.enqueue_id) and pulse.is_due):
            yield dead_letter
            pulse.note()


async def _listed(engine: Engine, enqueue_id: UUID | None) -> AsyncIterator[DeadLetter]:
    """Yield all dead letters, or that of one id alone."""
    if enqueue_id is None:
        async for each in engine.view.dead_letters():
            yield each
    elif (found := await engine.view.dead_letter(month_of(enqueue_id), enqueue_id)) is not None:
        yield found


def _unreadable(dead_letter: DeadLetter) -> MailView:
    """Return the view of a message that is no reference, addressed to the postmaster."""
    return MailView(
        enqueue_id=dead_letter.enqueue_id,
        mail_id=dead_letter.enqueue_id,
        mail=Envelope(sender=None, recipients=("postmaster",), name="unreadable message"),
        accepted_at=dead_letter.died_at,
        enqueued_at=dead_letter.died_at,
        due_at=None,
        held=False,
        attempt=0,
        size_bytes=len(dead_letter.body or b""),
        reason=dead_letter.reason,
    )


MAX_LOGGED = 20
"""Rows and marks that one pass logs by id; further ones are only counted."""

ROW, MARK = "row", "mark"


class SetAside:
    """Entries that one pass over the view set aside. `renew` is awaited with each that waits."""

    def __init__(
        self, engine: Engine, renew: Callable[[UndecodableRow], Awaitable[None]] | None = None
    ) -> None:
        self._engine = engine
        self._renew = renew
        self._counts: Counter[str] = Counter()

    async def row(self, row: UndecodableRow, mark: Mark | None) -> None:
        """Note a row, unless its mark shows that nothing waits under it."""
        if mark is not None and mark.is_unknown:
            self.mark(row.key)
        elif mark is None or mark.is_live:
            self._note(ROW, row.key, row.reason)
            if self._renew is not None and mark is None:
                await self._renew(row)

    def mark(self, key: EntryKey) -> None:
        """Note a mark whose ending is unknown, or whose change makes no valid entry."""
        self._note(MARK, key, "unknown ending")

    def end(self) -> None:
        """End the pass: log how much was set aside."""
        if self._counts:
            self._engine.log.warning(
                "rows or marks that this release cannot decode were left out; another release of"
                " postroad wrote them, or an administrator",
                rows=self._counts[ROW],
                marks=self._counts[MARK],
            )

    def publish(self) -> None:
        """Set the metrics, after a pass over everything."""
        for what in (ROW, MARK):
            metrics.UNDECODABLE.labels(*self._engine.labels, what).set(self._counts[what])

    def _note(self, what: str, key: EntryKey, reason: str) -> None:
        self._counts[what] += 1
        if self._counts[what] <= MAX_LOGGED:
            self._engine.log.error(
                f"a {what} cannot be decoded and is set aside",
                slice=key.slice_start.isoformat(),
                bucket=key.bucket_id,
                enqueue_id=str(key.enqueue_id),
                error=reason,
            )
