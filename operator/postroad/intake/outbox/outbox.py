"""The queue of an intake that has an outbox: a mail goes to the queue itself or, where that is away
or the outbox comes first, into a store on this machine, from which it goes on by itself.

Both ways have one enqueue key, so that an enqueue whose end is unknown and the mail in the outbox
are one mail of the queue. Source: ADR 0090."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol
from uuid import UUID

from postroad.domain.mail.mail import Mail
from postroad.errors import (
    DeadlineExceeded,
    InvalidInput,
    PostroadError,
    QueueClosed,
    StoreFull,
    ViewUnavailable,
)
from postroad.intake.accepted_events import publish_accepted
from postroad.intake.outbox.entries import keyed, packed
from postroad.ports.clock import Clock, Randomness
from postroad.ports.events import EventLog
from postroad.ports.mail_queue import NO_DELAY, MailQueue, check_delay
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import (
    OUTBOX_BYTES,
    OUTBOX_MAILS,
    OUTBOX_OLDEST,
    OUTBOX_RESULTS,
    of_queue,
)

_log = logger("outbox")

MAX_WAIT = timedelta(seconds=5)
"""Time that the queue has to take a mail before it goes into the outbox; more for a large one."""

MIN_BYTES_PER_SECOND = 1 << 20

AWAY = timedelta(seconds=60)
"""Time after a failure for which mails go into the outbox at once, unless the queue takes one."""


class QueueBehind(Protocol):
    """A queue that takes mail which was accepted before."""

    async def enqueue(
        self,
        mail: Mail,
        delay: timedelta = NO_DELAY,
        *,
        key: str | None = None,
        accepted_at: datetime | None = None,
    ) -> UUID: ...


class Outbox:
    """`IntakeQueue` over a store that this process owns, and a queue that may be away. `is_first`:
    each mail goes into the outbox, not only those that the queue does not take. Belongs to one
    event loop."""

    incoming: Path | None = None

    def __init__(
        self,
        name: str,
        store: MailQueue,
        max_bytes: int,
        clock: Clock,
        randomness: Randomness,
        *,
        is_first: bool = False,
    ) -> None:
        self.name, self.store = name, store
        self._max_bytes, self._clock, self._randomness = max_bytes, clock, randomness
        self._is_first = is_first
        self._queue: QueueBehind | None = None
        self.events: EventLog | None = None
        self.mails = self.octets = 0
        self._keeping = 0
        self.oldest: dict[UUID, datetime] = {}
        """When the mails were accepted that go on next, by their mail ids."""

        self._away_until = timedelta(0)
        labels = of_queue(name)
        OUTBOX_MAILS.labels(*labels).set_function(lambda: self.mails)
        OUTBOX_BYTES.labels(*labels).set_function(lambda: self.octets)
        OUTBOX_OLDEST.labels(*labels).set_function(self._oldest_seconds)
        self._results = {
            each: OUTBOX_RESULTS.labels(*labels, each)
            for each in ("kept", "forwarded", "refused", "full")
        }

    def opened(self, queue: QueueBehind, events: EventLog | None) -> None:
        """Take up the queue once its servers have answered, with its events."""
        self._queue, self.events = queue, events

    @property
    def is_away(self) -> bool:
        """True if the queue takes no mail, as far as is known."""
        return self._queue is None or self._clock.elapsed() < self._away_until

    def count(self, result: str) -> None:
        self._results[result].inc()

    def has_room(self, size_bytes: int, *, is_taken: bool = False) -> bool:
        return True  # a mail that finds no room in the outbox may still go to the queue

    # -- mail in ---------------------------------------------------------------------------------

    async def enqueue(
        self, mail: Mail, delay: timedelta = NO_DELAY, *, key: str | None = None
    ) -> UUID:
        """As the port says. The id is that of the queue or, of a mail in the outbox, another: the
        mail's name is the same in both."""
        check_delay(delay)
        now, client_key = self._clock.now(), key
        due_at = now + delay if delay > NO_DELAY else None
        mail, key = keyed(mail, key, self._new_key)
        size = await _size_of(mail)
        kept = packed(mail, key, due_at)
        if self._is_first or (self.is_away and self.mails):
            try:
                return await self._keep(kept, size, client_key)
            except InvalidInput:
                raise
            except PostroadError as error:
                _log.debug("the outbox takes no mail", error=error.explain())
        try:
            return await self._hand_over(mail, delay, key, size, now)
        except (InvalidInput, QueueClosed):
            raise
        except PostroadError as error:
            try:
                return await self._keep(kept, size, client_key)
            except PostroadError as problem:
                _log.warning("the outbox takes no mail", error=problem.explain())
                raise error from problem

    async def _hand_over(
        self, mail: Mail, delay: timedelta, key: str, size: int, now: datetime
    ) -> UUID:
        """Let the queue take a mail within a bounded time. Raises: as `send`."""
        seconds = MAX_WAIT.total_seconds() + size / MIN_BYTES_PER_SECOND
        try:
            async with asyncio.timeout(seconds):
                enqueue_id = await self.send(mail, delay, key, None)
        except TimeoutError as error:
            self._is_now_away(problem := DeadlineExceeded(f"not taken within {seconds:.0f} s"))
            raise problem from error
        await publish_accepted(
            self.events, self.name, enqueue_id, mail.envelope, mail.content, size, now
        )
        return enqueue_id

    async def send(
        self, mail: Mail, delay: timedelta, key: str, accepted_at: datetime | None
    ) -> UUID:
        """Enqueue a mail, and note whether the queue is away. Raises: as `MailQueue.enqueue`, and
        ViewUnavailable while the queue is not open."""
        if self._queue is None:
            raise ViewUnavailable("the queue is not open yet: its servers do not answer")
        try:
            found = await self._queue.enqueue(mail, delay, key=key, accepted_at=accepted_at)
        except (InvalidInput, QueueClosed):
            raise
        except PostroadError as error:
            self._is_now_away(error)
            raise
        if self._away_until:
            _log.info("the queue takes mail again", queue=self.name)
            self._away_until = timedelta(0)
        return found

    def _is_now_away(self, error: PostroadError) -> None:
        if not self._away_until:
            _log.warning("mail waits in the outbox", queue=self.name, error=error.explain())
        self._away_until = self._clock.elapsed() + AWAY

    async def _keep(self, mail: Mail, size: int, key: str | None) -> UUID:
        """Keep a mail in the store. Durable when it returns. Raises: StoreFull, also beyond the
        outbox's own bound; as `MailQueue.enqueue`."""
        try:
            if self.octets + size > self._max_bytes:
                raise StoreFull(
                    f"the outbox holds {self.octets} of {self._max_bytes} octets",
                    hint="it empties as soon as the queue takes mail; give it a larger `size`",
                )
            self._take(1, size)
            self._keeping += 1
            try:
                found = await self.store.enqueue(mail, key=key)
            except BaseException:
                self._take(-1, -size)
                raise
            finally:
                self._keeping -= 1
        except StoreFull:
            self.count("full")
            raise
        self.count("kept")
        return found

    def _new_key(self) -> str:
        return f"outbox:{self._randomness.bits(128):032x}"

    # -- what waits ------------------------------------------------------------------------------

    async def find(self) -> None:
        """Count what an earlier process left, once, before any of it goes on."""
        before = self._clock.now()
        async for view in self.store.browse():
            if view.accepted_at <= before:
                self._take(1, view.size_bytes)
        if self.mails:
            _log.info("mail found in the outbox", queue=self.name, mails=self.mails)

    def left(self, mail_id: UUID, size_bytes: int, result: str) -> None:
        """Note that a mail has left the outbox."""
        self.oldest.pop(mail_id, None)
        self._take(-1, -size_bytes)
        self.count(result)

    async def compare(self) -> None:
        """Take up what an administrator removed or requeued, by the mean size, while no mail is on
        its way in. A mail whose key was repeated is counted once from then on."""
        live = (await self.store.size()).size
        if self._keeping or live == self.mails:
            return
        self.octets = self.octets * live // self.mails if self.mails else 0
        self.mails = live
        if not live:
            self.oldest.clear()

    def _take(self, mails: int, octets: int) -> None:
        self.mails = max(0, self.mails + mails)
        self.octets = max(0, self.octets + octets)

    def _oldest_seconds(self) -> float:
        oldest = min(self.oldest.values(), default=None)
        return 0.0 if oldest is None else max(0.0, (self._clock.now() - oldest).total_seconds())


async def _size_of(mail: Mail) -> int:
    if isinstance(mail.content, bytes):
        return len(mail.content)
    if isinstance(mail.content, Path):
        return (await asyncio.to_thread(mail.content.stat)).st_size
    raise InvalidInput("the content of a mail for an outbox is bytes or a file")
