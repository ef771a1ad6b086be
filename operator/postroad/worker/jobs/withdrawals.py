"""Takes back what waits: jobs that no connection has, and look-ups of routes."""

from __future__ import annotations

from collections.abc import Callable

from postroad.telemetry.logs import logger
from postroad.worker.jobs.deliveries import UNFORESEEN
from postroad.worker.jobs.job_table import JobTable
from postroad.worker.jobs.ledger import Ledger
from postroad.worker.jobs.look_ups import LookUps
from postroad.worker.jobs.open_jobs import OpenJob

_log = logger("worker")


class Withdrawals:
    """Takes jobs and look-ups back. `on_withdrawn` gets each job, for the scheduler and the gate to
    have it no longer."""

    def __init__(
        self, jobs: JobTable, look_ups: LookUps, on_withdrawn: Callable[[OpenJob], None]
    ) -> None:
        self._jobs = jobs
        self._look_ups = look_ups
        self._on_withdrawn = on_withdrawn

    def withdraw(self, job: OpenJob) -> None:
        """Take back a job that no connection has."""
        self._jobs.forget(job)
        self._on_withdrawn(job)

    def drop_waiting(self, ledger: Ledger) -> tuple[str, ...]:
        """Take back the jobs of an item that no connection has, and its look-ups; return their
        recipients."""
        dropped = list(self._look_ups.drop(ledger))
        for job in self._jobs.of(ledger):
            if job.connection is None:
                self.withdraw(job)
                dropped += job.recipients
        return tuple(dropped)

    def take_back(self, ledger: Ledger, reason: str) -> None:
        """Put off the recipients of an item that only wait."""
        if dropped := self.drop_waiting(ledger):
            ledger.not_tried(dropped, reason)
            ledger.go_on()

    def put_aside(self, ledger: Ledger) -> None:
        """Put off what has no outcome and no connection, after an unforeseen error. Without an end,
        the item would be leased until the process ends, in the place of another."""
        self.drop_waiting(ledger)
        at_work = {each for job in self._jobs.of(ledger) for each in job.recipients}
        ledger.not_tried(
            (each for each in ledger.without_outcome() if each not in at_work), UNFORESEEN
        )
        ledger.go_on()

    def give_back(self, job: OpenJob) -> None:
        """End a job about which no event comes any more."""
        self._jobs.forget(job)
        self.put_aside(job.ledger)
        try:
            self._on_withdrawn(job)
        except Exception:
            _log.exception("a job was not taken back from the scheduler")
