"""`postroad pipeline archive` of a queue in a directory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from postroad.adapters.disk.files import DiskFiles
from postroad.adapters.machine.clocks import MachineClock
from postroad.bootstrap.archived_store import LakeLock, begin_archive, check_lake, name_of
from postroad.cli.pipeline.options import address_key, installed, open_spark
from postroad.pipeline.addresses import kept_address
from postroad.pipeline.runs import Run
from postroad.settings import Settings


async def archive_store(
    url: str, lake: Path, settings: Settings, master: str, patience: timedelta
) -> tuple[Run, Sequence[str]]:
    """Put into a lake what the store of a URL recorded since the last run; return the run, and the
    files that could not be read whole. `patience`: how long it waits for another run. Raises:
    NotInstalled, InvalidQueueURL, InvalidInput, QueueNotFound, StoreDamaged, ArchiveUnderWay,
    LakeTooNew, JobFailed."""
    kept = kept_address(settings.pipeline.addresses, address_key(settings))
    name, clock = name_of(url), MachineClock()
    check_lake(lake, name)
    installed(settings)  # a store keeps nothing for a run that cannot be
    layout = begin_archive(url)
    async with LakeLock(lake, name, clock, patience), open_spark(settings, master) as session:
        from postroad.pipeline.spark.jobs.store_archiving import archive_history
        from postroad.pipeline.spark.lake.claimed_lake import in_thread
        from postroad.pipeline.spark.lake.store_lake import open_store_lake

        tables = await in_thread(lambda: open_store_lake(session, lake, create=True))
        source = (DiskFiles(), layout, kept)
        found = await in_thread(archive_history, tables, *source, clock, uuid4())
        return found.run, found.damaged
