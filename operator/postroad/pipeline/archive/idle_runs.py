"""Runs over a store in a directory of which the lake has everything: they need no Spark.

Source: ADR 0063, 0075."""

from uuid import UUID

from postroad.domain.values.instants import instant, microseconds
from postroad.embedded.history import read_history
from postroad.embedded.log.layout import Layout
from postroad.pipeline.archive.archive import JOB, Run
from postroad.pipeline.archive.lake_files import KEPT_STATES, LakeFiles, digest_of
from postroad.ports.clock import Clock
from postroad.ports.files import Files

COUNTS = ("entries", "changed", "unreadable", "segments", "gaps")
"""Counts of a run over a store, by name."""


def idle_run(
    files: Files, layout: Layout, known: LakeFiles, clock: Clock, run_id: UUID
) -> Run | None:
    """Say until when the lake has all, and return the run; None where Spark has something to do:
    records that are new, segments that the store let go or dropped, former states to expire. No
    other run may write the lake meanwhile. Raises: StoreDamaged, StoreFailed."""
    began = clock.now()
    times, last = known.times(), known.last_read()
    if times is None or last is None or not last.began <= began < last.began + KEPT_STATES:
        return None
    found = read_history(files, layout, microseconds(began))
    if found is None or found.begun_us is None or found.archived.dropped:
        return None
    ends = {each.salt.hex(): each.end for each in found.segments}
    is_known = digest_of(ends) == last.digest and found.begun_us <= microseconds(times.through)
    if not is_known or any(each.archived is not None for each in found.segments):
        return None
    if (through := instant(found.through_us)) > times.through:
        known.put_times(times._replace(through=through))
    return Run(run_id, JOB, began, clock.now(), dict.fromkeys(COUNTS, 0))
