"""Makes a new log from the spool files when the old one is damaged. FORMAT.md 9.

Every intact spool file is a mail that was accepted, or nearly (spool_scan.py). The records of the
old log that can be read count (log_salvage.py). So no mail is lost; some may be delivered twice,
where an outcome cannot be read. The old log moves to `quarantine/` whole.
Source: SP-23; AMB-2, AMB-12."""

from dataclasses import dataclass
from pathlib import PurePath

from postroad.embedded.log.layout import Layout, segment_of
from postroad.embedded.log.slots import Checkpoint, write_checkpoint
from postroad.embedded.offline_tools.log_salvage import salvage_log
from postroad.embedded.offline_tools.spool_scan import SpoolScan
from postroad.embedded.store.archive import name_lost
from postroad.embedded.store.engine import Engine
from postroad.ports.files import Files

AT_ONCE = 500
"""Records between two syncs, which bound the memory."""

COMPLETE = "complete"
"""The file in `quarantine/N` of a completed rebuild: its log has all records of the old ones."""

DRAFT = "checkpoint.new"
"""The name of the new checkpoint until it is complete."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result. `lost`: mails without an intact spool file, and unreadable files that may be
    mails; their files are in `quarantine`. `unreadable_parts`: pages and files of the old log that
    the disk did not return."""

    mails: int
    finished: int
    unfinished_files: int
    unreadable_records: int
    unreadable_parts: int
    lost: list[str]
    quarantine: PurePath


async def rebuild(engine: Engine) -> Rebuilt:
    """Make a new log for a store that this process has locked and not opened. Until it is complete
    the store has no checkpoint and cannot be opened; an interrupted rebuild is run again. Pages
    and files that the disk does not return are reported, and do not end it.
    Raises: StoreFull, StoreFailed."""
    files, layout = engine.files, engine.layout
    quarantine = await engine.log_threads.run(_quarantine_log, files, layout)
    directories = await engine.log_threads.run(_interrupted, files, layout)
    await engine.log_threads.run(_name_history, files, layout, directories, engine.now_us())
    salvaged = await engine.log_threads.run(salvage_log, files, directories)
    scan = SpoolScan(files, layout, salvaged, quarantine)
    mails = 0
    for record in scan.records():
        engine.write(record)
        mails += 1
        if mails % AT_ONCE == 0:
            await _sync(engine)
    await _sync(engine)  # before the checkpoint: a cut would leave an empty store that opens
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
    """Move checkpoint and log into a new directory of `quarantine/`."""
    files.make_directory(layout.quarantine)
    _undo_draft(files, layout)
    target = layout.quarantine / str(max(_numbers(files, layout), default=0) + 1)
    files.make_directory(target)
    files.sync_directory(layout.quarantine)
    # First: without it the store does not open; with it, it might with half of its log.
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


def _undo_draft(files: Files, layout: Layout) -> None:
    """Undo the COMPLETE of a rebuild that left its draft: no process used the log that it made."""
    if DRAFT not in files.names(layout.root):
        return
    for number in _numbers(files, layout)[-1:]:
        files.unlink(layout.quarantine / str(number) / COMPLETE)
        files.sync_directory(layout.quarantine / str(number))
    # Behind COMPLETE: without the draft it counts, and outcomes in the older logs are forgotten.
    files.unlink(layout.root / DRAFT)
    files.sync_directory(layout.root)


def _interrupted(files: Files, layout: Layout) -> list[PurePath]:
    """Return the directories of quarantine since the last completed rebuild. Earlier logs do not
    count, because they have no records of the mail since then."""
    found: list[PurePath] = []
    for number in _numbers(files, layout):
        directory = layout.quarantine / str(number)
        found = [] if COMPLETE in files.names(directory) else [*found, directory]
    return found


def _name_history(files: Files, layout: Layout, directories: list[PurePath], now_us: int) -> None:
    """Let the lake have a gap where the history lies in quarantine."""
    found = [each / name for each in directories for name in files.names(each) if segment_of(name)]
    name_lost(files, layout, found, now_us)


def _begin_anew(files: Files, layout: Layout, quarantine: PurePath) -> None:
    """Write a checkpoint by which recovery reads the whole log."""
    draft = layout.root / DRAFT
    file = files.open(draft, create=True)
    write_checkpoint(file, Checkpoint(number=1))
    file.close()
    files.sync_directory(layout.root)
    # Before the renaming, which opens the store: the next rebuild would add a log that this one has
    # replaced, and bring mails back that ended since.
    files.open(quarantine / COMPLETE, create=True).close()
    files.sync_directory(quarantine)
    files.rename(draft, layout.checkpoint)
    files.sync_directory(layout.root)
