"""How fast a run goes: the engine's durations, the load and the faults, all in proportion.

`PRODUCTION` is for memory, where the run moves the time and long waits cost nothing. Over real
servers a run of minutes has to see slices close, drain, be cleaned and rolled forward. So `QUICK`
divides the durations by about five and keeps the relations that `Timing` checks. docs/chaos/runs.md
lists what `QUICK` changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from postroad.distributed.engine.timing import Timing
from postroad.distributed.maintenance import drain_check, row_maintenance
from postroad.distributed.maintenance import row_maintenance as dead_letter_maintenance
from postroad.domain.configuration.rules import ViewConfiguration


@dataclass(frozen=True, slots=True)
class Pace:
    """Durations, in seconds if not timedelta."""

    timing: Timing
    window: timedelta
    maintenance: float
    """Between two rounds of maintenance of a worker, on average."""
    row_maintenance: timedelta
    purge_timeout: timedelta
    prefetch: tuple[int, ...]
    """The prefetch of a consumer is drawn from these. In memory a broker fills one consumer before
    it serves the next. With few places, two messages about one mail go to two processes, as
    RabbitMQ deals them out."""
    mails: float
    """New mails in a second, of all producers together."""
    administration: float
    """Between two actions of the administrator, on average."""
    fault_every: float
    fault_lasts: tuple[float, float]
    drain_timeout: float
    """How long the drain may take."""

    @property
    def beat(self) -> float:
        """The unit of a consumer's waits: a redelivery delay. Retries and slow deliveries take
        several."""
        return self.timing.redelivery_delay.total_seconds()

    @property
    def view(self) -> ViewConfiguration:
        return ViewConfiguration(self.window, 2, update_browse_start_pace=200)

    def install(self) -> None:
        """Set in this process the durations that are constants of a module."""
        row_maintenance.ROW_PASS_INTERVAL = self.row_maintenance
        dead_letter_maintenance.DEAD_LETTER_PASS_INTERVAL = self.row_maintenance
        drain_check.PURGE_TIMEOUT = self.purge_timeout


PRODUCTION = Pace(
    timing=Timing(),
    window=timedelta(minutes=5),
    maintenance=30,
    row_maintenance=timedelta(minutes=10),
    purge_timeout=timedelta(minutes=10),
    prefetch=(1, 3, 20),
    mails=0.2,
    administration=20,
    fault_every=60,
    fault_lasts=(5, 900),
    drain_timeout=9 * 3600,
)

QUICK = Pace(
    timing=Timing(
        deadline=timedelta(seconds=6),
        skew=timedelta(seconds=1.5),
        grace=timedelta(seconds=17),
        read_lease=timedelta(seconds=8),
        longest_read_lease=timedelta(seconds=8),
        redelivery_delay=timedelta(seconds=4),
        keep_after=timedelta(seconds=2),
        claim=timedelta(seconds=20),
        longest_backoff=timedelta(seconds=3),
        longest_wait=timedelta(seconds=60),
        longest_mail_lease=timedelta(seconds=60),
        upload=timedelta(seconds=30),
    ),
    window=timedelta(seconds=20),
    maintenance=5,
    row_maintenance=timedelta(seconds=20),
    purge_timeout=timedelta(seconds=20),
    prefetch=(20, 60),
    mails=28,
    administration=1.5,
    fault_every=10,
    fault_lasts=(2, 40),
    drain_timeout=600,
)
