"""A new log from the spool files, when the old one is damaged. FORMAT.md 9.

Every whole spool file is a mail that was accepted, or nearly: without the log, nobody knows for
whom it is done. What the old log still says is believed (remembering.py). So no mail is lost by
this; some may be delivered twice (surveying.py). The old log goes to `quarantine/` whole; nothing
of it is deleted.
Source: SP-23; AMB-2, AMB-12.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from postroad.embedded.checkpoints import Checkpoint, write_checkpoint
from postroad.embedded.engine import Engine
from postroad.embedded.layout import Layout
from postroad.embedded.log_salvage import salvage_log
from postroad.embedded.spool_scan import SpoolScan
from postroad.ports.files import Files

AT_ONCE = 500
"""Records between two syncs, so that memory stays bounded."""

COMPLETE = "complete"
"""The file in `quarantine/N` that says: the log of this rebuild has all that the old ones said."""

DRAFT = "checkpoint.new"
"""The new checkpoint, until it gets its name."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What was done. `lost` are mails whose spool files are damaged or missing, and files that may
    be such mails: they were put aside. `unreadable_parts` are pages and files of the old log that
    the disk did not give."""

    mails: int
    finished: int
    unfinished_files: int
    unreadable_records: int
    unreadable_parts: int
    lost: list[str]
    quarantine: PurePath


async def rebuild(engine: Engine) -> Rebuilt:
    """Make a new log for a store that is locked and not otherwise open. Until it is complete the
    store has no checkpoint and opens nowhere; interrupted, it is begun again. What the disk does
    not give of the old log or of a spool file is told, and ends nothing.
    Raises: StoreFull, StoreFailed."""
    files, layout = engine.files, engine.layout
    quarantine = await engine.log_threads.run(_quarantine_log, files, layout)
    directories = await engine.log_threads.run(_interrupted, files, layout)
    salvaged = await engine.log_threads.run(salvage_log, files, directories)
    scan = SpoolScan(files, layout, salvaged, quarantine)
    mails = 0
    for record in scan.records():
        engine.write(record)
        mails += 1
        if mails % AT_ONCE == 0:
            await _sync(engine)
    await _sync(engine)
    await engine.log_threads.run(_begin_anew, files, layout, quarantine)
    return Rebuilt(
        mails=mails,
        finished=scan.finished,
        unfinished_files=scan.unfinished_files,
        unreadable_records=salvaged.unreadable_records,
        unreadable_parts=salvaged.unreadable_parts,
        lost=scan.lost,
        quarantine=quarantine,
    )


async def _sync(engine: Engine) -> None:
    for lane in engine.lanes.values():
        await lane.commit(lane.end)


def _quarantine_log(files: Files, layout: Layout) -> PurePath:
    """Move checkpoint and log into a new directory of `quarantine/`, the checkpoint first."""
    files.make_directory(layout.quarantine)
    _take_back(files, layout)
    target = layout.quarantine / str(max(_numbers(files, layout), default=0) + 1)
    files.make_directory(target)
    files.sync_directory(layout.quarantine)
    if layout.checkpoint.name in files.names(layout.root):
        files.rename(layout.checkpoint, target / layout.checkpoint.name)
    files.sync_directory(target)
    files.sync_directory(layout.root)
    files.make_directory(layout.log)
    for name in files.names(layout.log):
        files.rename(layout.log / name, target / name)
    files.sync_directory(target)
    files.sync_directory(layout.log)
    return target


def _numbers(files: Files, layout: Layout) -> list[int]:
    return sorted(int(name) for name in files.names(layout.quarantine) if name.isdecimal())


def _take_back(files: Files, layout: Layout) -> None:
    """A rebuild that left a draft said that it is complete, if it did, and then was not: the log
    it made was never used, and the older ones know more."""
    if DRAFT not in files.names(layout.root):
        return
    for number in _numbers(files, layout)[-1:]:
        files.unlink(layout.quarantine / str(number) / COMPLETE)
        files.sync_directory(layout.quarantine / str(number))
    files.unlink(layout.root / DRAFT)
    files.sync_directory(layout.root)


def _interrupted(files: Files, layout: Layout) -> list[PurePath]:
    """Return what was put aside since the last rebuild that was completed: logs that were put
    aside earlier know nothing of the mail that passed since then."""
    found: list[PurePath] = []
    for number in _numbers(files, layout):
        directory = layout.quarantine / str(number)
        found = [] if COMPLETE in files.names(directory) else [*found, directory]
    return found


def _begin_anew(files: Files, layout: Layout, quarantine: PurePath) -> None:
    """Write a checkpoint that says: read everything. With its name, the store is one again; just
    before, this rebuild becomes a completed one."""
    draft = layout.root / DRAFT
    file = files.open(draft, create=True)
    write_checkpoint(file, Checkpoint(number=1))
    file.close()
    files.sync_directory(layout.root)
    files.open(quarantine / COMPLETE, create=True).close()
    files.sync_directory(quarantine)
    files.rename(draft, layout.checkpoint)
    files.sync_directory(layout.root)
