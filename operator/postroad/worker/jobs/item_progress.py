"""Progress of one item: its jobs end at different times, the item ends once.

Outcomes that finish a recipient are recorded as soon as they are known, those that come while a
record is under way with the next one. The item ends when its last job has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

from postroad.domain.delivery.retries import RetryPlan
from postroad.domain.mail.address_lists import message_id_of
from postroad.domain.mail.mail import Outcome
from postroad.errors import EntryLost, QueueClosed
from postroad.ports.mail_queue import Item
from postroad.telemetry.logs import logger
from postroad.worker.jobs.deliveries import (
    NO_TIME,
    UNEXPECTED,
    Deliverer,
    Took,
    counts_of,
    ids_of,
)

_log = logger("worker")

ZERO = timedelta(0)


class ItemProgress:
    """One item in flight. `on_over` is called once, when nothing is to be done about it any
    more."""

    __slots__ = (
        "_backoff_until",
        "_being_recorded",
        "_deliverer",
        "_is_paced",
        "_keeper",
        "_on_over",
        "_outcomes",
        "_recording",
        "_unrecorded",
        "_untried",
        "begun",
        "is_cut_off",
        "is_over",
        "item",
        "message_id",
        "open_jobs",
        "plans",
        "span",
    )  # fmt: skip

    def __init__(
        self, item: Item, deliverer: Deliverer, on_over: Callable[[ItemProgress], None]
    ) -> None:
        self.item = item
        self.message_id: str | None = None
        """Once a connection began to read the content of an item that is `logged`."""
        self.open_jobs: set[int] = set()
        """Jobs and lookups whose end is to come."""
        self.plans: dict[str, RetryPlan] | None = None
        """By recipient, where that has another one than the queue."""
        self.is_over = False
        self.is_cut_off = False
        """True if the process ends: an item with recipients that were not tried is not ended, and
        comes again at once."""
        self._deliverer = deliverer
        self._on_over = on_over
        self.begun = deliverer.clock.elapsed()
        self.span = None if deliverer.tracer is None else deliverer.begin_span(item)
        """From the lease to the end; None: there is none."""
        self._outcomes: dict[str, Outcome] = {}
        self._unrecorded: dict[str, Outcome] = {}
        self._untried: dict[str, str] = {}
        self._backoff_until = ZERO
        self._is_paced = True
        """True if limits by rate are all why recipients were not tried."""
        self._keeper: asyncio.Task[None] | None = None
        self._recording: asyncio.Future[None] | None = None
        self._being_recorded: asyncio.Future[None] | None = None

    def is_late(self, now: timedelta) -> bool:
        """True if the item must not be in flight any longer."""
        return now >= self.item.lease_until

    @property
    def is_at_end(self) -> bool:
        """True if all that is left is to record, or to end the item."""
        return not self.open_jobs

    def saw_content(self, start: bytes) -> None:
        """Look at the first octets of the content, for what is logged of it."""
        if self.message_id is None and self._deliverer.is_logging:
            self.message_id = message_id_of(start)

    def on_outcomes(
        self, outcomes: Mapping[str, Outcome], took: Took = NO_TIME, until: timedelta = ZERO
    ) -> None:
        """Note what became of recipients, and how long that took; who is deferred is not to come
        again before `until` of the clock. Of an item that was given up it is counted and logged
        alone: the log then explains a second copy."""
        self._backoff_until = max(self._backoff_until, until)
        if not self.is_over:
            self._outcomes.update(outcomes)
            self._unrecorded.update(outcomes)
        # Last: a log that fails loses none.
        self._deliverer.note(self.item, outcomes, took, self.message_id)

    def without_outcome(self) -> list[str]:
        """Return the recipients of whom no outcome is known."""
        return [each for each in self.item.mail.recipients if each not in self._outcomes]

    def not_tried(
        self,
        recipients: Iterable[str],
        reason: str,
        until: timedelta = ZERO,
        *,
        is_paced: bool = False,
    ) -> None:
        """Note recipients to whom nothing was transmitted, and why; they are not to come again
        before `until` of the clock, and where a limit by rate `is_paced` at that time."""
        self._is_paced &= is_paced
        self._untried.update(dict.fromkeys(recipients, reason))
        self._backoff_until = max(self._backoff_until, until)

    def go_on(self) -> None:
        """Do what is due after changes: record, or end the item."""
        if self._keeper is None and not self.is_over and (self._unrecorded or self.is_at_end):
            self._keeper = asyncio.get_running_loop().create_task(self._keep())

    def recording(self) -> asyncio.Future[None]:
        """Return what is done once that is durable which comes next, or the item is over."""
        if self._recording is None:
            self._recording = asyncio.get_running_loop().create_future()
            if self.is_over:
                self._recording.set_result(None)
        return self._recording

    def give_up(self) -> None:
        """Leave the item as it is: the queue has ended it, or hands it out again."""
        self._recorded()
        if not self.is_over:
            self.is_over = True
            if self.span is not None:
                self.span.end({"postroad.ending": "given back"})
            self._on_over(self)

    def cancel(self) -> None:
        """Break off what is being recorded, and give the item up."""
        if self._keeper is not None:
            self._keeper.cancel()
        self.give_up()

    async def _keep(self) -> None:
        try:
            while self.open_jobs:
                if not self._unrecorded:  # no `await` since: what comes then has no keeper
                    self._pause()
                    return
                # Before the record: what comes during it is not in it, and a connection that
                # goes on too early leaves two mails for a kill to repeat.
                self._being_recorded, self._recording = self._recording, None
                await self._deliverer.record(self.item, self._taken())
                _settle(self._being_recorded)
            if not self.is_over:  # else the queue ended it while a record was under way
                await self._end()
        except EntryLost as error:
            _log.warning(
                "entry lost",
                **ids_of(self._deliverer.queue, self.item),
                **counts_of(self._outcomes),
                error=str(error),
            )
        except QueueClosed:
            pass  # the item comes again
        except Exception:
            _log.exception(
                "unexpected error in an item", **ids_of(self._deliverer.queue, self.item)
            )
            if self.open_jobs:
                self._pause()
                return  # it ends with its last job
            await self._defer()
        self.give_up()

    def _pause(self) -> None:
        """Wait for what else becomes of the item."""
        self._keeper = None
        self._recorded()

    def _recorded(self) -> None:
        _settle(self._being_recorded)
        _settle(self._recording)
        self._being_recorded = self._recording = None

    async def _defer(self) -> None:
        """End an item whose end failed by an unexpected error: else it would be leased until the
        process ends, in the place of another."""
        try:
            await self._deliverer.defer(self.item, self._outcomes, UNEXPECTED)
        except (QueueClosed, EntryLost):
            pass  # it comes again, or is over
        except Exception:
            _log.exception("an item was not deferred")

    def _taken(self) -> Mapping[str, Outcome]:
        taken, self._unrecorded = self._unrecorded, {}
        return taken

    async def _end(self) -> None:
        if self.is_cut_off and self._untried:
            await self._deliverer.record(self.item, self._taken())
            return
        now = self._deliverer.clock.elapsed()
        ending = await self._deliverer.end(
            self.item,
            self._outcomes,
            self._untried,
            self._taken(),
            now - self.begun,
            self._backoff_until - now,
            is_paced=self._is_paced,
            plans=self.plans,
        )
        if self.span is not None:
            self.span.end({"postroad.ending": ending})


def _settle(recording: asyncio.Future[None] | None) -> None:
    if recording is not None and not recording.done():
        recording.set_result(None)
