"""Verifies and dumps a store that no process owns. FORMAT.md 5.2.

`verify` and `dump` change nothing. They read each lane up to its end or to the first frame that is
not valid, and name the records before it that cannot be read. Their callers take the lock, so that
no process writes meanwhile.
Source: SP-23, AMB-12."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from postroad.domain.queues.documents import outcomes_of, outcomes_value
from postroad.embedded.log import slots
from postroad.embedded.log.envelopes import EnvelopeRecord
from postroad.embedded.log.frames import Frame
from postroad.embedded.log.layout import NEW, Lane, Layout
from postroad.embedded.log.records import (
    ENVELOPE,
    DeliveryRecord,
    FinishRecord,
    HoldRecord,
    KeyRecord,
    OutcomesRecord,
    Record,
    StartRecord,
    decode,
)
from postroad.embedded.log.segments import Segment, envelope_at, place, position, record_at
from postroad.embedded.log.slots import Checkpoint
from postroad.embedded.log.spool_files import SpoolFiles
from postroad.embedded.store import recovery
from postroad.errors import PostroadError, StoreDamaged
from postroad.ports.files import Files


@dataclass(slots=True)
class StoreReport:
    """The contents of a store, and its damage. When `is_determined` is false, a record that
    decides which mail waits cannot be read: mails were neither counted nor checked."""

    is_determined: bool = True
    records: int = 0
    mails: int = 0
    dead_letters: int = 0
    working: int = 0
    damage: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return not self.damage


@dataclass(frozen=True, slots=True)
class _Opened:
    checkpoint: Checkpoint
    lanes: dict[Lane, list[Segment]]


@contextmanager
def _opened_for_reading(files: Files, layout: Layout) -> Iterator[_Opened]:
    """Find checkpoint and lanes without changing anything. Raises: StoreDamaged."""
    with ExitStack() as opened:
        try:
            file = files.open(layout.checkpoint)
        except FileNotFoundError as error:
            raise StoreDamaged("the checkpoint is missing") from error
        opened.callback(file.close)
        checkpoint = slots.read_checkpoint(file)
        lanes, _ = recovery.find_lanes(files, layout, checkpoint, opened, is_reading=True)
        yield _Opened(checkpoint, lanes)


def verify(files: Files, layout: Layout) -> StoreReport:
    """Read the records up to the first frame that is not valid, and the content of every live
    mail. The report names unreadable records; those behind them are read too."""
    report = StoreReport()
    try:
        with _opened_for_reading(files, layout) as opened:
            live = _live(opened, report)
    except StoreDamaged as error:
        report.damage.append(str(error))
        return report
    if not report.is_determined:
        report.damage.append("waiting mail cannot be determined: an unreadable record affects it")
        return report
    spool_files = SpoolFiles(files, layout)
    used: dict[int, bytes] = {}
    for record in live:
        report.dead_letters += record.dead
        report.mails += not record.dead
        if used.setdefault(record.slot, record.mail_id) != record.mail_id:
            report.damage.append(f"two mails claim spool file {record.slot}")
        _check_content(spool_files, record, report)
    return report


def _check_content(spool_files: SpoolFiles, record: EnvelopeRecord, report: StoreReport) -> None:
    try:
        found = spool_files.verify(record.slot)
    except (PostroadError, FileNotFoundError) as error:
        report.damage.append(f"spool file {record.slot} cannot be read: {error}")
        return
    if found is None or found[0].mail_id != record.mail_id:
        mail = UUID(bytes=record.mail_id)
        report.damage.append(f"spool file {record.slot} does not hold mail {mail}")


def _live(opened: _Opened, report: StoreReport) -> list[EnvelopeRecord]:
    """Return the mails that recovery would find, by its rules."""
    replay = recovery.Replay(opened.checkpoint)
    for lane in sorted(opened.lanes, key=lambda each: each != NEW):
        start = replay.start if lane == NEW else replay.start_of(lane)
        for segment, offset in recovery.stretches(opened.lanes[lane], start):
            for frame in _frames_of(segment, offset):
                with _reported(report):
                    replay.feed_frame(segment, frame)
    report.is_determined = not report.damage
    report.working = len(replay.working) if report.is_determined else 0
    at_work = {(work.lane, work.position) for work in replay.working.values()}
    live = []
    for segments in opened.lanes.values():
        for segment in segments:
            flags = segment.garbage_flags()
            for frame in _frames_of(segment, segment.header.first):
                report.records += 1
                where = (segment.lane, position(segment.sequence, frame.offset))
                is_garbage = bool(flags[frame.ordinal]) or where in replay.garbage
                if frame.type != ENVELOPE:
                    with _reported(report):
                        record_at(segment, frame)
                elif where in at_work or not is_garbage:
                    with _reported(report):
                        live.append(envelope_at(segment, frame.offset, frame.payload))
    return live


@contextmanager
def _reported(report: StoreReport) -> Iterator[None]:
    """Add the error of an unreadable record to the report, once, and go on."""
    try:
        yield
    except StoreDamaged as error:
        if str(error) not in report.damage:
            report.damage.append(str(error))


def _frames_of(segment: Segment, offset: int) -> Iterator[Frame]:
    """Yield a segment's frames up to its end. Raises: StoreDamaged."""
    while offset < segment.end:
        found, offset = recovery.read_frames(segment, offset)
        yield from found


def dump(files: Files, layout: Layout) -> Iterator[dict[str, Any]]:
    """Yield the records as JSON values, lane by lane, with addresses; an unreadable one by its
    error. Raises: StoreDamaged at the first frame that is not valid."""
    with _opened_for_reading(files, layout) as opened:
        yield _described_checkpoint(opened.checkpoint)
        for segment in (each for lane in opened.lanes.values() for each in lane):
            flags = segment.garbage_flags()
            for frame in _frames_of(segment, segment.header.first):
                where = position(segment.sequence, frame.offset)
                yield {"at": place(segment.lane, where), **_described(frame, flags)}


def _described_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "record": "checkpoint",
        "number": checkpoint.number,
        "end": place(NEW, checkpoint.end),
        "scan_from": place(NEW, checkpoint.scan_from),
        "working": [place(NEW, each) for each in checkpoint.working],
    }


NAMES: dict[type[Record], str] = {
    EnvelopeRecord: "envelope",
    StartRecord: "start",
    DeliveryRecord: "delivery",
    FinishRecord: "finish",
    HoldRecord: "hold",
    OutcomesRecord: "outcomes",
    KeyRecord: "key",
}
"""Names that `dump` calls the records."""


def _described(frame: Frame, flags: bytes) -> dict[str, Any]:
    try:
        record = decode(frame.type, frame.payload)
    except StoreDamaged as error:
        return {"record": f"unreadable: {error}"}
    if record is None:
        return {"record": f"unknown type {frame.type}"}
    found: dict[str, Any] = {
        "mail_id": str(UUID(bytes=record.mail_id)),
        "entry_number": record.entry_number,
    }
    match record:
        case EnvelopeRecord():
            found |= {
                "enqueue_id": str(UUID(bytes=record.enqueue_id)),
                "slot": record.slot,
                "garbage": bool(flags[frame.ordinal]),
                "name": record.envelope.name,
                "sender": record.envelope.sender,
                "recipients": list(record.envelope.recipients),
                "attempt": record.attempt,
                "held": record.held,
                "reason": record.reason,
            }
        case StartRecord() | FinishRecord():
            found["envelope"] = place(record.lane, record.position)
        case DeliveryRecord():
            found |= {"kind": record.kind.name.lower(), "numbers": list(record.numbers)}
        case HoldRecord():
            found["held"] = record.held
        case OutcomesRecord():
            found |= _kept(record.document)
        case KeyRecord():
            found |= {
                "enqueue_id": str(UUID(bytes=record.enqueue_id)),
                "accepted": record.is_accepted,
            }
    return {"record": NAMES[type(record)]} | found


def _kept(document: bytes) -> dict[str, Any]:
    """Return what is kept of an attempt, nothing where it cannot be read."""
    try:
        return outcomes_value(outcomes_of(json.loads(document))) or {}
    except ValueError:
        return {}
