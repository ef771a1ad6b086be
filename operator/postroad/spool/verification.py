"""Looking at a store that nobody owns right now: is it whole, and what does it say?

`verify` reads everything and changes nothing; `dump` prints records. Both want the lock, so that
nobody writes meanwhile.
Source: SP-23, AMB-12.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from postroad.errors import PostroadError, StoreDamaged
from postroad.ports.files import Files
from postroad.spool import checkpoints, recovery
from postroad.spool.checkpoints import Checkpoint
from postroad.spool.contents import Contents
from postroad.spool.frames import Frame
from postroad.spool.layout import NEW, Lane, Layout, lane_name
from postroad.spool.records import (
    ENVELOPE,
    Delivery,
    Finish,
    Hold,
    Start,
    Waiting,
    decode,
    decode_waiting,
)
from postroad.spool.segments import Segment, position


@dataclass(slots=True)
class Report:
    """What a store holds, and everything that is wrong with it."""

    records: int = 0
    mails: int = 0
    dead_letters: int = 0
    working: int = 0
    damage: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return not self.damage


@dataclass(frozen=True, slots=True)
class Opened:
    """A store opened for reading."""

    checkpoint: Checkpoint
    lanes: dict[Lane, list[Segment]]


def open_for_reading(files: Files, layout: Layout) -> Opened:
    """Find checkpoint and lanes without changing anything. Raises: StoreDamaged."""
    try:
        file = files.open(layout.checkpoint)
    except FileNotFoundError as error:
        raise StoreDamaged("the checkpoint is missing") from error
    checkpoint = checkpoints.read_checkpoint(file)
    lanes, _ = recovery.find_lanes(files, layout, checkpoint, is_reading=True)
    return Opened(checkpoint, lanes)


def verify(files: Files, layout: Layout) -> Report:
    """Read every record, and the content of every live mail."""
    report = Report()
    try:
        opened = open_for_reading(files, layout)
        live = _live(opened, report)
    except StoreDamaged as error:
        report.damage.append(str(error))
        return report
    contents = Contents(files, layout)
    used: dict[int, bytes] = {}
    for waiting in live:
        report.dead_letters += waiting.dead
        report.mails += not waiting.dead
        if used.setdefault(waiting.slot, waiting.mail_id) != waiting.mail_id:
            report.damage.append(f"two mails claim spool file {waiting.slot}")
        _check_content(contents, waiting, report)
    return report


def _check_content(contents: Contents, waiting: Waiting, report: Report) -> None:
    try:
        found = contents.verify(waiting.slot)
    except (PostroadError, FileNotFoundError) as error:
        report.damage.append(f"spool file {waiting.slot} cannot be read: {error}")
        return
    if found is None or found[0].mail_id != waiting.mail_id:
        mail = UUID(bytes=waiting.mail_id)
        report.damage.append(f"spool file {waiting.slot} does not hold mail {mail}")


def _live(opened: Opened, report: Report) -> list[Waiting]:
    """Return the mails that recovery would find, by the rules of recovery."""
    replay = recovery.Replay(opened.checkpoint)
    for lane in sorted(opened.lanes, key=lambda each: each != NEW):
        start = replay.start if lane == NEW else replay.start_of(lane)
        for segment, offset in recovery.stretches(opened.lanes[lane], start):
            for frame in frames_of(segment, offset):
                with _told(report):
                    replay.feed_frame(segment, frame)
    report.working = len(replay.working)
    at_work = {(work.lane, work.position) for work in replay.working.values()}
    live = []
    for segments in opened.lanes.values():
        for segment in segments:
            marks = segment.marks()
            for frame in frames_of(segment, segment.header.first):
                report.records += 1
                where = (segment.lane, position(segment.sequence, frame.offset))
                is_garbage = bool(marks[frame.mark]) or where in replay.garbage
                if frame.type == ENVELOPE and (where in at_work or not is_garbage):
                    with _told(report):
                        live.append(_waiting(segment, frame))
    return live


def _waiting(segment: Segment, frame: Frame) -> Waiting:
    try:
        return decode_waiting(frame.payload)
    except StoreDamaged as error:
        raise recovery.damaged_at(segment, frame.offset, error) from error


@contextmanager
def _told(report: Report) -> Iterator[None]:
    """Tell of a record that cannot be read, once, and go on."""
    try:
        yield
    except StoreDamaged as error:
        if str(error) not in report.damage:
            report.damage.append(str(error))


def frames_of(segment: Segment, offset: int) -> Iterator[Frame]:
    """Yield a segment's frames up to its end. Raises: StoreDamaged."""
    while offset < segment.end:
        found, offset = recovery.read_frames(segment, offset)
        yield from found


def dump(files: Files, layout: Layout) -> Iterator[dict[str, Any]]:
    """Yield every record as people may read it, lane by lane. Addresses included: it is the
    owner of the mails who asks. Raises: StoreDamaged where the log does."""
    opened = open_for_reading(files, layout)
    checkpoint = opened.checkpoint
    yield {
        "record": "checkpoint",
        "number": checkpoint.number,
        "end": place(NEW, checkpoint.end),
        "scan_from": place(NEW, checkpoint.scan_from),
        "working": [place(NEW, each) for each in checkpoint.working],
    }
    for segments in opened.lanes.values():
        for segment in segments:
            marks = segment.marks()
            for frame in frames_of(segment, segment.header.first):
                where = position(segment.sequence, frame.offset)
                yield {"at": place(segment.lane, where), **_described(frame, marks)}


def place(lane: Lane, where: int) -> str:
    """Return a position as people read it: lane.segment:offset."""
    return f"{lane_name(lane)}.{where >> 32}:{where & 0xFFFFFFFF}"


def _described(frame: Frame, marks: bytes) -> dict[str, Any]:
    try:
        record = decode(frame.type, frame.payload)
    except StoreDamaged as error:
        return {"record": f"unreadable: {error}"}
    if record is None:
        return {"record": f"unknown type {frame.type}"}
    found: dict[str, Any] = {"mail_id": str(UUID(bytes=record.mail_id)), "turn": record.turn}
    match record:
        case Waiting():
            found |= {
                "enqueue_id": str(UUID(bytes=record.enqueue_id)),
                "slot": record.slot,
                "garbage": bool(marks[frame.mark]),
                "name": record.envelope.name,
                "sender": record.envelope.sender,
                "recipients": list(record.envelope.recipients),
                "attempt": record.attempt,
                "held": record.held,
                "reason": record.reason,
            }
        case Start() | Finish():
            found["envelope"] = place(record.lane, record.position)
        case Delivery():
            found |= {"kind": record.kind.name.lower(), "numbers": list(record.numbers)}
        case Hold():
            found["held"] = record.held
    return {
        "record": "envelope" if isinstance(record, Waiting) else type(record).__name__.lower()
    } | found
