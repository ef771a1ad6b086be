"""An enqueue with a key: of several with one key, one mail is queued.

The first takes the key for its entry, queues the mail as any other, and then notes that it is
accepted. An enqueue that finds the key taken by an entry that is not accepted waits until that is
settled. When the other one can no longer succeed, the view decides: a row without an ending gets a
successor, which has a message for certain, and is accepted; an entry without a row is withdrawn, so
that a row or message that comes late meets a mark, and the key is taken over. Source: ADR 0045.
"""

from __future__ import annotations

from dataclasses import replace as copy
from uuid import UUID

from postroad.distributed.engine.engine import Engine
from postroad.distributed.engine.timing import persist
from postroad.distributed.enqueue.withdrawal import delete_upload
from postroad.distributed.entries.endings import CLEANED
from postroad.distributed.entries.live_slices import rescue
from postroad.distributed.entries.replacement import is_removed, is_withdrawn, replace, withdraw
from postroad.domain.mail.mail import Mail
from postroad.domain.queues.entries import Change, Entry, Mark, UndecodableRow
from postroad.domain.queues.references import check_same, digest_of, token_of
from postroad.domain.values.identifiers import moment_of
from postroad.ports.enqueue_keys import KeyedEntry

TRIES = 3
"""Attempts at the note that a mail is accepted, where the view does not answer."""


class EnqueueKey:
    """The key of one enqueue. `token` and `digest` are those of its key and mail."""

    def __init__(self, engine: Engine, token: bytes, digest: bytes) -> None:
        self._engine, self._token, self._digest = engine, token, digest
        self._mine: KeyedEntry | None = None
        self.began = engine.clock.elapsed()
        """When the id of the entry that has the key was about to be made."""

    @classmethod
    async def of(cls, engine: Engine, key: str, mail: Mail) -> EnqueueKey:
        """Return the key of an enqueue. Raises: InvalidInput, ViewError."""
        token_of(key)
        digest = digest_of(mail)
        identity = await engine.view.identity()
        scope = min((each.bytes for each in identity.incarnations), default=b"")
        return cls(engine, token_of(key, scope), digest)

    async def take(self, entry: Entry) -> Entry | UUID:
        """Take the key. Returns the entry, under an id that is just made; or the id of the entry
        that was accepted with this key before. Raises: KeyReused, ServerError, ClockSkew,
        ConfigurationStale, QueueClosed."""
        engine, backoff = self._engine, self._engine.backoff()
        instead_of: KeyedEntry | None = None
        while True:
            self.began = engine.clock.elapsed()
            entry = copy(entry, key=await engine.new_key())
            engine.check_open()
            mine = _keyed(entry, self._digest)
            standing = await self._write(mine, instead_of)
            instead_of = None
            if standing is mine:
                self._mine = mine
                return entry
            if standing is None:
                continue
            queued = standing.is_accepted or await self._was_queued(standing, entry)
            if queued:
                check_same(self._digest, standing.digest)
                await self._accept(standing)
                return standing.key.enqueue_id
            if queued is None:
                await backoff.wait()
            else:
                instead_of = standing

    async def _write(self, mine: KeyedEntry, instead_of: KeyedEntry | None) -> KeyedEntry | None:
        """Return what the key stands for; None where that is neither entry."""
        view = self._engine.view
        if instead_of is None:
            return await view.take_key(self._token, mine)
        return mine if await view.change_key(self._token, instead_of, mine) else None

    async def accept(self) -> None:
        """Note that the mail is queued. Raises: ServerError; the mail is queued all the same, which
        an enqueue with this key finds out."""
        if self._mine is not None:
            await self._accept(self._mine)

    async def _accept(self, keyed: KeyedEntry) -> None:
        if keyed.is_accepted:
            return
        view, accepted = self._engine.view, copy(keyed, is_accepted=True)
        await persist(
            self._engine.backoff(),
            TRIES,
            lambda: view.change_key(self._token, keyed, accepted),
        )

    async def _was_queued(self, keyed: KeyedEntry, mine: Entry) -> bool | None:
        """Return whether an entry that is not accepted was queued after all; None while it may be
        on its way. An entry that will not come is ended. Raises: as `replacement.replace`."""
        view = self._engine.view
        row = await view.row(keyed.key)
        mark = await view.mark(keyed.key)
        if mark is not None and is_withdrawn(mark):
            return False
        if row is not None and mark is not None and not mark.is_live:
            return True
        if not self._is_overdue(keyed):
            return None
        if row is None:
            return await self._is_accepted_without_row(keyed, mine)
        if isinstance(row, UndecodableRow):
            return True
        return await self._is_rescued(row)

    def _is_overdue(self, keyed: KeyedEntry) -> bool:
        """True if the enqueue that took the key has failed by its own clock, if it has not
        succeeded."""
        timing = self._engine.timing
        age = self._engine.clock.now() - moment_of(keyed.key.enqueue_id)
        return age >= timing.deadline + timing.apart

    async def _is_rescued(self, row: Entry) -> bool:
        """Give a row that may have no message a successor, unless it was ended; return whether the
        mail was queued."""
        engine = self._engine
        if (await engine.view.limits()).have_passed(row.key.slice_start):
            await rescue(engine, row)
            return True
        standing = await replace(engine, row, Change.nothing(row))
        return standing is None or not is_withdrawn(standing)

    async def _is_accepted_without_row(self, keyed: KeyedEntry, mine: Entry) -> bool:
        """Withdraw an entry that has no row; return whether it had ended otherwise. What was
        cleaned counts as not queued: a second mail is better than none."""
        ghost = copy(
            mine,
            key=keyed.key,
            mail_id=keyed.mail_id,
            blob_key=keyed.blob_key,
            accepted_at=keyed.accepted_at,
            enqueued_at=keyed.accepted_at,
        )
        standing: Mark | None = await withdraw(self._engine, ghost)
        if standing is None or is_withdrawn(standing):
            if standing is not CLEANED:
                await delete_upload(self._engine, keyed.blob_key)
            return False
        return not is_removed(standing)  # a purge ends what has no row, too


def _keyed(entry: Entry, digest: bytes) -> KeyedEntry:
    return KeyedEntry(entry.key, entry.mail_id, entry.blob_key, entry.accepted_at, digest)
