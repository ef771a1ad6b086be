"""postroad as no release is: a worker with one precaution undone, for a run to find. A module that
stands in for postroad: `KILLS_BITE=early python -m kills.careless worker …`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from kills.ledger import Kind
from kills.mails import AT_ONCE
from postroad.cli import main
from postroad.domain.mail.mail import Outcome, OutcomeKind
from postroad.worker.jobs.deliveries import Deliverer
from postroad.worker.jobs.transmissions import Transmissions


def _unrecorded() -> None:
    """Who was delivered to is recorded with the end of the mail only."""

    async def record(self: Deliverer, item: Any, outcomes: Mapping[str, Outcome]) -> None:
        return None

    Deliverer.record = record  # type: ignore[method-assign]


def _early() -> None:
    """Who is transmitted to is recorded before, where the site takes the mail at once."""
    assign, running = Transmissions.assign, set[asyncio.Task[None]]()

    def careless(self: Transmissions, job: Any, number: int, now: timedelta) -> None:
        outcome = Outcome(OutcomeKind.DELIVERED, "250 2.0.0 will be")
        item = job.ledger.item
        if (item.mail.sender or "").startswith(AT_ONCE[0]):
            taken = [each for each in job.recipients if each.startswith(AT_ONCE[1])]
            outcomes = dict.fromkeys(taken, outcome)
            running.add(asyncio.create_task(self._deliverer.record(item, outcomes)))
        assign(self, job, number, now)

    Transmissions.assign = careless  # type: ignore[method-assign]


def _unlogged() -> None:
    """The line of an attempt is written some time behind the record."""
    write = Deliverer.log_attempt

    def careless(self: Deliverer, *arguments: Any, **more: Any) -> None:
        later = partial(write, self, *arguments, **more)
        asyncio.get_running_loop().call_later(0.5, later)

    Deliverer.log_attempt = careless  # type: ignore[method-assign]


BITES: Mapping[str, tuple[Callable[[], None], Kind]] = {
    "unrecorded": (_unrecorded, Kind.UNRECORDED),
    "early": (_early, Kind.LOST),
    "unlogged": (_unlogged, Kind.ACCOUNT),
}
"""What is undone, and as what a run finds it."""

if __name__ == "__main__":
    BITES[os.environ["KILLS_BITE"]][0]()
    main()
