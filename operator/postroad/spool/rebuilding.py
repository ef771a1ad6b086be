"""A new log from the spool files, when the old one is damaged. FORMAT.md 9.

Every whole spool file is a mail that was accepted, or nearly: without the log, nobody knows for
whom it is done. What the valid frames of the old log still say is believed: recipients that were
finished, mails that ended, were held or given up. So no mail is lost by this; some may be delivered
twice. The old log goes to `quarantine/` whole; nothing of it is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from postroad.errors import StoreDamaged
from postroad.ports.files import File, Files
from postroad.spool import frames, segments
from postroad.spool.checkpoints import Checkpoint, write_checkpoint
from postroad.spool.contents import Contents, SpoolHeader
from postroad.spool.engine import Engine
from postroad.spool.envelopes import envelope_from
from postroad.spool.frames import Frame
from postroad.spool.layout import NEW, Layout, segment_of
from postroad.spool.records import Delivery, Finish, Hold, Kind, Waiting, decode
from postroad.spool.recovery import ALL_FINISHED, as_dead_letter, with_recipients
from postroad.spool.slots import slots_on_disk

EVERYWHERE = 1 << 40
"""More spool directories than there are."""

AT_ONCE = 500
"""Records between two syncs, so that memory stays bounded."""


@dataclass(slots=True)
class Rebuilt:
    """What was done. `lost` are mails that the old log knew and whose content is damaged: their
    files lie in quarantine."""

    mails: int = 0
    finished: int = 0
    unfinished_files: int = 0
    unreadable_records: int = 0
    lost: list[str] = field(default_factory=list)
    quarantine: PurePath | None = None


@dataclass(slots=True)
class _Memory:
    """What the old log still says of one mail."""

    last: Waiting | None = None
    deliveries: list[Delivery] = field(default_factory=list)
    held: bool = False
    is_over: bool = False

    @property
    def since(self) -> list[Delivery]:
        """The deliveries that the last ENVELOPE does not know of yet."""
        first = -1 if self.last is None else self.last.turn
        return [each for each in self.deliveries if each.turn >= first]

    @property
    def finished(self) -> set[int]:
        return {number for each in self.since for number in each.numbers}

    @property
    def failures(self) -> dict[int, str]:
        failed = (each for each in self.since if each.kind is Kind.FAILED)
        return {number: each.text for each in failed for number in each.numbers}


async def rebuild(engine: Engine) -> Rebuilt:
    """Make a new log for a store that is locked and not otherwise open. Until it is complete the
    store has no checkpoint and opens nowhere; interrupted, it is begun again.
    Raises: StoreFull, StoreFailed."""
    files, layout = engine.files, engine.layout
    result = Rebuilt()
    result.quarantine = await engine.log_threads.run(_put_aside, files, layout)
    memories = await engine.log_threads.run(_remember, files, layout, result)
    written = 0
    for waiting in _waiting(files, layout, memories, result):
        engine.write(waiting)
        written += 1
        if written % AT_ONCE == 0:
            await _sync(engine)
    result.mails = written
    await _sync(engine)
    await engine.log_threads.run(_begin_anew, files, layout)
    return result


async def _sync(engine: Engine) -> None:
    for lane in engine.lanes.values():
        await lane.commit(lane.end)


def _put_aside(files: Files, layout: Layout) -> PurePath:
    """Move checkpoint and log into a new directory of `quarantine/`, the checkpoint first."""
    files.make_directory(layout.quarantine)
    taken = [int(name) for name in files.names(layout.quarantine) if name.isdecimal()]
    target = layout.quarantine / str(max(taken, default=0) + 1)
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


def _begin_anew(files: Files, layout: Layout) -> None:
    """Write a checkpoint that says: read everything. With it, the store is one again."""
    draft = layout.root / "checkpoint.new"
    files.unlink(draft)
    file = files.open(draft, create=True)
    write_checkpoint(file, Checkpoint(number=1))
    file.close()
    files.sync_directory(layout.root)
    files.rename(draft, layout.checkpoint)
    files.sync_directory(layout.root)


def _remember(files: Files, layout: Layout, result: Rebuilt) -> dict[bytes, _Memory]:
    """Read every valid frame of every log that was put aside, whatever lies between them."""
    memories: dict[bytes, _Memory] = {}
    for number in sorted(files.names(layout.quarantine), key=lambda each: each.zfill(9)):
        directory = layout.quarantine / number
        for name in sorted(files.names(directory)):
            if segment_of(name) is not None:
                file = files.open(directory / name)
                for frame in _readable(file):
                    try:
                        _learn(memories, frame)
                    except StoreDamaged:
                        result.unreadable_records += 1
                file.close()
    return memories


def _readable(file: File) -> Iterator[Frame]:
    data = file.pread(0, file.size())
    header = segments.read_header(data[: segments.HEADER_BLOCK])
    if header is not None:
        yield from frames.stray_frames(data, frames.checksum(header.encode()), header.first)


def _learn(memories: dict[bytes, _Memory], frame: Frame) -> None:
    record = decode(frame.type, frame.payload)
    if record is None:
        return
    memory = memories.setdefault(record.mail_id, _Memory())
    match record:
        case Waiting():
            if memory.last is None or record.turn >= memory.last.turn:
                memory.last, memory.held = record, record.held
        case Delivery() if record.kind is not Kind.DEFERRED:
            memory.deliveries.append(record)
        case Finish():
            memory.is_over = True
        case Hold():
            memory.held = record.held
        case _:
            pass


def _waiting(
    files: Files, layout: Layout, memories: dict[bytes, _Memory], result: Rebuilt
) -> Iterator[Waiting]:
    """Yield an ENVELOPE for every mail that may not be finished."""
    contents, seen = Contents(files, layout), set[bytes]()
    for slot in slots_on_disk(files, layout, EVERYWHERE):
        found = contents.verify(slot)
        if found is None:
            result.unfinished_files += 1
            continue
        seen.add(found[0].mail_id)
        memory = memories.get(found[0].mail_id, _Memory())
        waiting = None if memory.is_over else _again(slot, *found, memory)
        if waiting is None:
            result.finished += 1
        else:
            yield waiting
    for mail_id, memory in memories.items():
        last = memory.last
        if mail_id in seen or memory.is_over or last is None:
            continue
        if last.dead or set(last.numbers) - memory.finished:
            _lose(files, layout, last, result)


def _lose(files: Files, layout: Layout, last: Waiting, result: Rebuilt) -> None:
    """Put the file of a mail whose content is damaged aside, for people to look at."""
    result.lost.append(f"{mail_name(last)} in spool file {last.slot}")
    assert result.quarantine is not None
    try:
        files.rename(layout.spool_file(last.slot), result.quarantine / f"mail-{last.slot}")
        files.sync_directory(result.quarantine)
    except FileNotFoundError:
        pass  # There is nothing to look at.


def mail_name(waiting: Waiting) -> str:
    """Return what to call a mail in a report: its enqueue id, never an address."""
    return waiting.enqueue_id.hex()


def _again(
    slot: int, header: SpoolHeader, envelope: dict[str, Any], memory: _Memory
) -> Waiting | None:
    """Return the ENVELOPE of a mail from its spool file and what is remembered; None when it is
    known that nobody is left."""
    whole = envelope_from(envelope)
    waiting = memory.last or Waiting(
        mail_id=header.mail_id,
        enqueue_id=header.mail_id,
        slot=slot,
        turn=0,
        envelope=whole,
        numbers=tuple(range(len(whole.recipients))),
        accepted_us=header.accepted_us,
        enqueued_us=header.accepted_us,
        size_bytes=header.content_length,
    )
    addresses = dict(enumerate(whole.recipients))
    failed = {n: (addresses[n], text) for n, text in memory.failures.items() if n in addresses}
    waiting = replace(
        waiting,
        slot=slot,
        turn=waiting.turn + 1,
        predecessor=(NEW, 0),
        held=memory.held,
        failures={**waiting.failures, **failed},
    )
    if waiting.dead:
        return waiting
    left = dict(zip(waiting.numbers, waiting.envelope.recipients, strict=True))
    left = {number: to for number, to in left.items() if number not in memory.finished}
    if left:
        return with_recipients(waiting, left)
    return as_dead_letter(waiting, {}, ALL_FINISHED)
