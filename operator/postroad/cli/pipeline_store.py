"""`postroad pipeline archive` of a queue in a directory."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from postroad.adapters.machine.clocks import MachineClock
from postroad.bootstrap.archived_store import LakeLock, begin_archive, check_lake, name_of
from postroad.cli.pipeline_options import address_key, installed, open_spark
from postroad.pipeline.addresses import kept_address
from postroad.pipeline.runs import Run
from postroad.settings import Settings


async def archive_store(
    url: str, lake: Path, settings: Settings, master: str, patience: timedelta
) -> Run:
    """Put into a lake what the store of a URL let go since the last run. `patience`: how long it
    waits for another run. Raises: NotInstalled, InvalidQueueURL, InvalidInput, QueueNotFound,
    StoreDamaged, ArchiveUnderWay, LakeTooNew, JobFailed."""
    kept = kept_address(settings.pipeline.addresses, address_key(settings))
    name, clock = name_of(url), MachineClock()
    check_lake(lake, name)
    installed(settings)  # a store keeps nothing for a run that cannot be
    folder, _ = begin_archive(url)
    async with LakeLock(lake, name, clock, patience), open_spark(settings, master) as session:
        from postroad.pipeline.spark.claimed_lake import in_thread
        from postroad.pipeline.spark.store_archiving import archive_segments
        from postroad.pipeline.spark.store_lake import open_store_lake

        _, found = begin_archive(url)  # what came while Spark started
        tables = await in_thread(lambda: open_store_lake(session, lake, create=True))
        return await in_thread(archive_segments, tables, folder, found, kept, clock, uuid4())
