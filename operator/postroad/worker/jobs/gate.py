"""What keeps jobs from the scheduler: suspensions of their sites, and limits by rate.

Source: ADR 0062, 0064.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

from postroad.domain.mail.mail import Outcome
from postroad.ports.clock import Clock
from postroad.worker.jobs.ledger import Ledger
from postroad.worker.jobs.open_jobs import OpenJob
from postroad.worker.routing import DeliveryRoute
from postroad.worker.sites.control import SiteControl
from postroad.worker.sites.pacing import Pacer

PACED = "451 4.3.2 a limit by rate is used up"
UNSHARED = "451 4.3.2 a limit by rate cannot be shared, as the board of the queue is away"


class Passage(Enum):
    """What becomes of a job at the gate: it goes to the scheduler; `due` names it later; it has
    ended, and its recipients come again."""

    GOES = auto()
    HELD = auto()
    PUT_OFF = auto()


class Gate:
    """Lets jobs to the scheduler. `control`: which sites get no mail; None: all get theirs.
    `pacer`: what is under limits by rate; None: nothing is."""

    def __init__(
        self, clock: Clock, control: SiteControl | None = None, pacer: Pacer | None = None
    ) -> None:
        self._clock, self._control, self._pacer = clock, control, pacer

    def is_shut(self, ledger: Ledger, route: DeliveryRoute, recipients: tuple[str, ...]) -> bool:
        """Return whether a site gets no mail now; its recipients are then put off."""
        if self._control is None:
            return False
        if (suspension := self._control.suspended(route.name)) is None:
            return False
        until = self._clock.elapsed() + self._control.put_off_for(suspension)
        ledger.not_tried(recipients, f"451 4.3.2 suspended: {suspension.reason}", until)
        return True

    def admit(self, job: OpenJob) -> Passage:
        """Take a job under its limits by rate; one that is not to wait here for them is put off."""
        if self._pacer is None:
            return Passage.GOES
        wait = self._pacer.admit(job.number, job.limited())
        if wait is None:
            return Passage.HELD
        if not wait:
            return Passage.GOES
        until = self._clock.elapsed() + wait
        reason = UNSHARED if self._pacer.is_away else PACED
        job.ledger.not_tried(job.recipients, reason, until, is_paced=True)
        return Passage.PUT_OFF

    def drop(self, job: OpenJob) -> None:
        """Hold a job no longer. Idempotent."""
        if self._pacer is not None:
            self._pacer.drop(job.number)

    def due(self) -> Iterable[int]:
        """Return the jobs that were held, and go now."""
        return () if self._pacer is None else self._pacer.due()

    def heard(self, site: str, outcomes: Iterable[Outcome]) -> None:
        """Look at what a transmission to a site came to: its answers may suspend it."""
        if self._control is not None:
            self._control.heard(site, outcomes)

    def suspended_since(self) -> Iterable[str]:
        """Return the sites that were suspended since this was called last."""
        return () if self._control is None else self._control.new()
