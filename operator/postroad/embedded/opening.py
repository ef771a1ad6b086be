"""Opens a store, and recovers it: every start is a recovery. FORMAT.md 3 and 9.

`open_store` returns when mail can be received. `recover` runs beside it: it requeues the entries
that consumers had, lets deliveries begin, and then fills the index from the oldest mail on."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from typing import Any

from postroad.embedded.log import slots as checkpoints
from postroad.embedded.log.envelopes import EnvelopeRecord, Unreadable, domains_in, read_head
from postroad.embedded.log.frames import Frame
from postroad.embedded.log.layout import DEAD, FORMAT, HELD, KEYS, NEW, Lane, Layout, segment_of
from postroad.embedded.log.options import StoreOptions
from postroad.embedded.log.records import ENVELOPE, FinishKind, FinishRecord, KeyRecord
from postroad.embedded.log.segments import (
    LiveEntry,
    Segment,
    offset_of,
    place,
    position,
    record_at,
    sequence_of,
    waiting_at,
)
from postroad.embedded.log.slots import Checkpoint, Slots, first_unused_directory, slots_on_disk
from postroad.embedded.store import recovery
from postroad.embedded.store.engine import Engine, log
from postroad.embedded.store.maintenance import Maintenance
from postroad.embedded.store.recovery import Replay
from postroad.errors import QueueNotFound, StoreDamaged
from postroad.ports.files import File, Files

NOT_CREATED = (
    "`postroad mta`, `postroad worker --create` and `open_queue(…, create=True)` create it"
)
"""Advice where a store is not there."""

CHUNK = 32 * 1024
"""Bytes that recovery reads at a time, so that receiving does not wait for it."""

PAUSE_SECONDS = 0.004
"""While mail is being received, recovery pauses this long after each chunk, so that receiving
threads get the interpreter."""


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """State that opening read: the checkpoint, its file, and the lanes."""

    checkpoint: Checkpoint
    checkpoint_file: File
    lanes: dict[Lane, list[Segment]]
    following: dict[Lane, int]
    first_directory: int


def describe(
    files: Files,
    root: PurePath,
    options: StoreOptions,
    *,
    create: bool,
    mail: PurePath | None = None,
) -> tuple[Layout, StoreOptions]:
    """Return the layout of the store in `root`, and `options` with the sizes that it was made with.
    With `create`, make a missing store, with its spool files in `mail`. Blocking. Raises:
    QueueNotFound, StoreDamaged."""
    layout = Layout(root, mail or root / "mail")
    try:
        file = files.open(layout.store)
    except FileNotFoundError:
        _refuse_remains(files, layout)
        if not create:
            raise QueueNotFound(f"there is no store in {root}", hint=NOT_CREATED) from None
        _create(files, layout, options)
        file = files.open(layout.store)
    try:
        known = _read_description(file.pread(0, file.size()))
    finally:
        file.close()
    stored = replace(
        options, segment_bytes=known["segment_bytes"], segment_envelopes=known["marks"]
    )
    return Layout(root, root / known["mail"]), stored


def _read_description(data: bytes) -> dict[str, Any]:
    try:
        known: dict[str, Any] = json.loads(data)
        version = known["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDamaged("the file `store` cannot be read") from error
    if version != FORMAT:
        raise StoreDamaged(
            f"the store has format {version}, this program reads {FORMAT}",
            hint="run the version of postroad that made it",
        )
    return known


def _refuse_remains(files: Files, layout: Layout) -> None:
    """Refuse to make a store over a log whose file `store` is lost. Raises: StoreDamaged."""
    try:
        names = files.names(layout.log)
    except FileNotFoundError:
        return
    if names:
        raise StoreDamaged(f"{layout.root} has a log but no file `store`")


def _create(files: Files, layout: Layout, options: StoreOptions) -> None:
    for directory in (layout.root, layout.log, layout.mail):
        files.make_directory(directory)
    files.unlink(layout.checkpoint)  # left by a creation that a crash interrupted
    checkpoint = files.open(layout.checkpoint, create=True)
    checkpoints.write_checkpoint(checkpoint, Checkpoint(number=1))
    checkpoint.close()
    description = {
        "format": FORMAT,
        "mail": "mail" if layout.mail == layout.root / "mail" else str(layout.mail),
        "segment_bytes": options.segment_bytes,
        "marks": options.segment_envelopes,
    }
    draft = layout.root / "store.new"
    files.unlink(draft)
    file = files.open(draft, create=True)
    file.pwrite(0, json.dumps(description).encode() + b"\n")
    file.sync()  # a rename may be durable without the bytes, and an empty `store` never opens
    file.close()
    files.sync_directory(layout.root)
    # Last: a directory with `store` alone can neither be opened nor made a store.
    files.rename(draft, layout.store)
    files.sync_directory(layout.root)
    for parent in {layout.root.parent, layout.mail.parent}:
        files.sync_directory(parent)  # else a cut takes the directory, with mail that got its 250


def find_store(files: Files, layout: Layout) -> OpenedStore:
    """Read what receiving needs. Blocking. Raises: StoreDamaged."""
    with ExitStack() as opened:
        try:
            file = files.open(layout.checkpoint)
            opened.callback(file.close)
            checkpoint = checkpoints.read_checkpoint(file)
            if not (unused := first_unused_directory(files, layout)):
                _check_unused(files, layout, checkpoint)  # first: a store is left as it is
            lanes, following = recovery.find_lanes(files, layout, checkpoint, opened)
            _empty_incoming(files, layout)
        except FileNotFoundError as error:
            raise StoreDamaged(f"{error.filename or error} is missing") from error
        opened.pop_all()
    return OpenedStore(checkpoint, file, lanes, following, unused)


def _check_unused(files: Files, layout: Layout, checkpoint: Checkpoint) -> None:
    """Refuse a directory of mails that never had any, where the log had: without their disk, all
    would become dead letters, and those that come would lie below it. Raises: StoreDamaged."""
    ends = (state.end for state in checkpoint.lanes.values())
    if any(ends) or any(map(segment_of, files.names(layout.log))):
        raise StoreDamaged(
            f"{layout.mail} has none of the mails of this store", hint="mount the disk of the mails"
        )


def _empty_incoming(files: Files, layout: Layout) -> None:
    """Remove what a killed process left of large mails. Their files have a name for an instant, on
    file systems that make none without."""
    files.make_directory(layout.incoming)
    for name in files.names(layout.incoming):
        files.unlink(layout.incoming / name)


async def open_store(engine: Engine) -> Maintenance:
    """Open a store for receiving, and start its recovery. Raises: StoreDamaged, StoreFailed."""
    found = await engine.log_threads.run(find_store, engine.files, engine.layout)
    for lane, segments in found.lanes.items():
        engine.lanes[lane] = engine.build_lane(lane, segments)
        # Past removed segments, too: a START of one would make the ENVELOPE of a namesake garbage.
        engine.lanes[lane].skip_to(found.following[lane])
    engine.slots = Slots(
        engine.files,
        engine.layout,
        engine.options,
        engine.mail_threads,
        engine.spool_files,
        found.first_directory,
    )
    return Maintenance(
        engine, found.checkpoint_file, found.checkpoint, partial(recover, engine, found)
    )


async def recover(engine: Engine, found: OpenedStore) -> None:
    """Restore the queue from the log. Idempotent, whenever it is interrupted. FORMAT.md 9."""
    await _read_keys(engine, found)  # first: each key looks for its mail in what is read below
    replay = await _replay(engine, found)
    used = await _resume_work(engine, found, replay)
    engine.deliverable.set()
    for lane in sorted(found.lanes, key=lambda each: (each in (HELD, DEAD), -each)):
        await _index_lane(engine, found.lanes[lane], replay, used)
    for record in engine.keys.settle():
        engine.append_key(record)
    engine.indexed.set()
    slots = await engine.mail_threads.run(
        slots_on_disk, engine.files, engine.layout, found.first_directory
    )
    # Behind all lanes: the file of a mail that is not in `used` yet would get another mail.
    engine.slots.adopt([slot for slot in slots if slot not in used])
    log.info("the store is recovered", count=engine.index.live, records=replay.records)


async def _read_keys(engine: Engine, found: OpenedStore) -> None:
    """Read the enqueue keys of the last day. Raises: StoreDamaged."""
    now_us = engine.now_us()
    for segment in found.lanes.get(KEYS, []):
        async for frame in _frames(engine, segment, segment.header.first):
            if isinstance(record := record_at(segment, frame), KeyRecord):
                engine.keys.read(segment.sequence, record, now_us)


async def _replay(engine: Engine, found: OpenedStore) -> Replay:
    """Read the records since the checkpoint, and the working suffix before it (LQ-20..22)."""
    replay = Replay(found.checkpoint, keys=engine.keys)
    # `new` first: a START that is read behind the retry that ended it would repeat the mail.
    lanes = [(NEW, replay.start)]
    lanes += [(lane, replay.start_of(lane)) for lane in found.lanes if lane != NEW]
    for lane, start in lanes:
        segments = found.lanes.get(lane, [])
        for segment, offset in recovery.stretches(segments, start):
            async for frame in _frames(engine, segment, offset):
                replay.feed_frame(segment, frame)
    return replay


async def _frames(engine: Engine, segment: Segment, offset: int) -> AsyncIterator[Frame]:
    while offset < segment.end:
        if engine.arrival_rate.under_way:
            await asyncio.sleep(PAUSE_SECONDS)
        frames, offset = await engine.log_threads.run(recovery.read_frames, segment, offset, CHUNK)
        for frame in frames:
            yield frame


async def _resume_work(engine: Engine, found: OpenedStore, replay: Replay) -> set[int]:
    """Write an ENVELOPE or a FINISH for each entry in hand (LQ-23). Returns the former's slots."""
    last: dict[Lane, int] = {}
    used: set[int] = set()
    for work in replay.working.values():
        record = await _read_envelope(engine, found, work.lane, work.position)
        again = recovery.resumed(record, work)
        if again is None:
            finish = FinishRecord(
                record.mail_id, work.entry_number, work.lane, work.position, FinishKind.DONE
            )
            last[NEW] = engine.append(NEW, finish).end
            continue
        written = engine.write(again)
        engine.admit(again, written)
        last[written.segment.lane] = written.end
        used.add(again.slot)
    for lane, end in last.items():
        await engine.lanes[lane].commit(end)
    return used


async def _read_envelope(
    engine: Engine, found: OpenedStore, lane: Lane, where: int
) -> EnvelopeRecord:
    """Read the ENVELOPE that a START names. Raises: StoreDamaged."""
    offset = offset_of(where)
    for segment in found.lanes.get(lane, []):
        if segment.sequence == sequence_of(where) and offset < segment.end:
            frames, _ = await engine.log_threads.run(recovery.read_frames, segment, offset, 4096)
            if frames and frames[0].type == ENVELOPE:
                return waiting_at(segment, offset, frames[0].payload)
    raise StoreDamaged(f"the log has no ENVELOPE at {place(lane, where)}, which a START names")


async def _index_lane(
    engine: Engine, segments: list[Segment], replay: Replay, used: set[int]
) -> None:
    """Add the live entries of one lane to the index, oldest first, and their slots to `used`.
    Raises: StoreDamaged."""
    for segment in segments:
        flags = await engine.log_threads.run(segment.garbage_flags)
        async for frame in _frames(engine, segment, segment.header.first):
            if frame.type != ENVELOPE:
                continue
            segment.next_ordinal = max(segment.next_ordinal, frame.ordinal + 1)
            where = position(segment.sequence, frame.offset)
            if flags[frame.ordinal]:
                continue
            if (segment.lane, where) in replay.garbage:
                segment.garbage.add(frame.ordinal)
                continue
            try:
                used.add(_index(engine, segment, frame))
            except Unreadable as error:
                raise segment.unreadable(frame.offset, error) from error


def _index(engine: Engine, segment: Segment, frame: Frame) -> int:
    head = read_head(frame.payload)
    engine.keys.see(head.mail_id)
    try:
        domains = domains_in(frame.payload, head)
    except Unreadable:
        domains = ""  # the mail is set aside by the first that reads its record
    entry = LiveEntry(
        segment=segment,
        offset=frame.offset,
        length=len(frame.payload),
        ordinal=frame.ordinal,
        enqueue_id=head.enqueue_id,
        slot=head.slot,
        accepted_us=head.accepted_us,
        domains=domains,
        due=engine.due(head.due_us, head.enqueued_us),
    )
    engine.index.add(entry)
    if segment.lane not in (HELD, DEAD):
        engine.offer(entry)
    return head.slot
