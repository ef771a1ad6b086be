"""Looks for the recipients of items on the suppression list, before their routes are found."""

import asyncio
from collections.abc import Callable, Iterator, Sequence

from postroad.errors import PostroadError
from postroad.telemetry.logs import logger
from postroad.worker.jobs.deliveries import ids_of
from postroad.worker.jobs.item_progress import ItemProgress
from postroad.worker.sites.suppressing import Suppressing

_log = logger("worker")

UNREADABLE = "451 4.3.0 the suppression list cannot be read"


class Screening:
    """The items whose recipients are looked for, under the `numbers` that jobs have too.
    `on_screened` gets those that are left. Needs a running event loop."""

    def __init__(
        self,
        queue: str,
        suppressing: Suppressing,
        numbers: Iterator[int],
        on_screened: Callable[[ItemProgress, Sequence[str]], None],
    ) -> None:
        self._queue, self._suppressing = queue, suppressing
        self._numbers, self._on_screened = numbers, on_screened
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_on(self) -> bool:
        """True if there is a list to look at."""
        return self._suppressing.rules is not None

    def begin(self, ledger: ItemProgress) -> None:
        """Look for the recipients of an item. Returns at once."""
        number = next(self._numbers)
        ledger.open_jobs.add(number)
        task = asyncio.get_running_loop().create_task(self._screen(ledger, number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Break off what is under way."""
        for task in self._tasks:
            task.cancel()

    async def _screen(self, ledger: ItemProgress, number: int) -> None:
        envelope = ledger.item.mail
        try:
            outcomes = await self._suppressing.find(envelope)
        except Exception as error:  # mail to who asked for none is worse than mail that waits
            text = error.explain() if isinstance(error, PostroadError) else repr(error)
            _log.warning(UNREADABLE, **ids_of(self._queue, ledger.item), error=text)
            ledger.open_jobs.discard(number)
            ledger.not_tried(envelope.recipients, UNREADABLE)
            ledger.go_on()
            return
        ledger.open_jobs.discard(number)
        if ledger.is_over:
            return
        if outcomes:
            ledger.on_outcomes(outcomes)
        self._on_screened(ledger, [each for each in envelope.recipients if each not in outcomes])
