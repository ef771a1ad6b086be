"""The paces of runs: docs/chaos/runs.md has the durations of production and of `QUICK`."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from chaos.checker import FIRST_LOOK, LAST_LOOK, SHOWN
from chaos.pace import PRODUCTION, QUICK, Pace
from postroad.cli.processes.long_running import MAINTENANCE_INTERVAL
from postroad.distributed.maintenance import drain_check, row_maintenance
from postroad.domain.configuration.rules import ViewConfiguration
from support.repository import ROOT

ROW = re.compile(r"^\| (\w[^|]*) \| ([\d., a-z]+) \| ([\d., a-z]+) \|$", re.MULTILINE)


def documented(column: int) -> dict[str, str]:
    """Return a column of the table by the first one."""
    text = (ROOT / "docs/chaos/runs.md").read_text().partition("### Durations over real servers")[2]
    return {found[1]: found[column] for found in ROW.finditer(text.partition("\n## ")[0])}


def written(*durations: timedelta) -> str:
    """Return durations as the table has them."""
    return ", ".join(map(_written, durations))


def _written(duration: timedelta) -> str:
    seconds = duration.total_seconds()
    if seconds >= 3600:
        return f"{seconds / 3600:g} h"
    return f"{seconds / 60:g} min" if seconds >= 120 else f"{seconds:g} s"


def in_code(pace: Pace, window: timedelta) -> dict[str, str]:
    timing = pace.timing
    return {
        "deadline, tolerated skew, grace period": written(
            timing.deadline, timing.skew, timing.grace
        ),
        "lease of limits and configuration, here, anywhere": written(
            timing.read_lease, timing.longest_read_lease
        ),
        "redelivery delay, claim after, claim": written(
            timing.redelivery_delay, timing.keep_after, timing.claim
        ),
        "longest wait, longest lease, longest backoff, longest upload": written(
            timing.longest_wait, timing.longest_mail_lease, timing.longest_backoff, timing.upload
        ),
        "slice window, maintenance, row maintenance, purge timeout": written(
            window, timedelta(seconds=pace.maintenance), pace.row_maintenance, pace.purge_timeout
        ),
    }


@pytest.mark.parametrize(
    ("column", "pace", "window"),
    [(2, PRODUCTION, ViewConfiguration().slice_window), (3, QUICK, QUICK.window)],
    ids=["production", "quick"],
)
def test_the_documented_durations_are_those_of_the_code(
    column: int, pace: Pace, window: timedelta
) -> None:
    assert documented(column) == in_code(pace, window)


def test_the_pace_of_production_is_that_of_the_engine() -> None:
    assert timedelta(seconds=PRODUCTION.maintenance) == MAINTENANCE_INTERVAL
    assert PRODUCTION.row_maintenance == row_maintenance.ROW_PASS_INTERVAL
    assert PRODUCTION.row_maintenance == row_maintenance.DEAD_LETTER_PASS_INTERVAL
    assert PRODUCTION.purge_timeout == drain_check.PURGE_TIMEOUT


def test_the_checker_knows_when_a_process_looks_at_a_failed_enqueue_again() -> None:
    timings = [PRODUCTION.timing, QUICK.timing]

    assert timedelta(seconds=SHOWN) == min(each.redelivery_delay for each in timings)
    assert timedelta(seconds=FIRST_LOOK / 2) > max(each.redelivery_delay for each in timings)
    assert timedelta(seconds=LAST_LOOK - FIRST_LOOK) == max(
        each.longest_mail_lease for each in timings
    )
