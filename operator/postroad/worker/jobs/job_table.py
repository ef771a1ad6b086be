"""The open jobs of a worker: by number, by item, by site, and by the connection that has them."""

from __future__ import annotations

from collections.abc import Iterator

from postroad.worker.jobs.ledger import Ledger
from postroad.worker.jobs.open_jobs import OpenJob


class JobTable:
    """Each open job is here and, by its number, in its ledger, which has look-ups beside jobs."""

    def __init__(self) -> None:
        self._jobs: dict[int, OpenJob] = {}
        self._at: dict[str, dict[int, OpenJob]] = {}

    def __iter__(self) -> Iterator[OpenJob]:
        return iter(list(self._jobs.values()))

    def __getitem__(self, number: int) -> OpenJob:
        return self._jobs[number]

    def get(self, number: int) -> OpenJob | None:
        """Return a job; None where it has ended."""
        return self._jobs.get(number)

    def add(self, job: OpenJob) -> None:
        """Add a job that begins to wait for a connection."""
        self._jobs[job.number] = job
        self._at.setdefault(job.route.name, {})[job.number] = job
        job.ledger.open_jobs.add(job.number)

    def forget(self, job: OpenJob) -> None:
        """Drop a job that has ended. Idempotent."""
        if self._jobs.pop(job.number, None) is not None:
            at_site = self._at[job.route.name]
            del at_site[job.number]
            if not at_site:
                del self._at[job.route.name]
        job.ledger.open_jobs.discard(job.number)

    def of(self, ledger: Ledger) -> list[OpenJob]:
        """Return the open jobs of an item, without its look-ups."""
        return [self._jobs[number] for number in ledger.open_jobs if number in self._jobs]

    def waiting(self, ledger: Ledger) -> int:
        """Return how many jobs of an item wait for a connection."""
        return sum(job.connection is None for job in self.of(ledger))

    def by_site(self) -> list[list[OpenJob]]:
        """Return the jobs of each site that has some, the oldest first."""
        return [list(each.values()) for each in self._at.values()]

    def count_at(self, site: str) -> int:
        """Return how many jobs a site has."""
        return len(self._at.get(site, ()))

    def on_connection(self, number: int) -> list[int]:
        """Return the numbers of the jobs that a connection has."""
        return [each for each, job in self._jobs.items() if job.connection == number]

    def in_transmission(self) -> dict[int, OpenJob]:
        """Return of each connection the job that it transmits, or that comes first when it opens:
        found once for all, because there may be thousands of jobs."""
        first: dict[int, OpenJob] = {}
        for job in sorted(self._jobs.values(), key=lambda each: each.place):
            if job.connection is not None:
                first.setdefault(job.connection, job)
        return first
