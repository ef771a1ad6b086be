"""Reads the history of each mail from a log in quarantine. FORMAT.md 9.

Every valid frame counts, whatever lies between them: outcomes of recipients, ends of mails, holds,
dead letters. Pages that the disk does not return, and unreadable records, are counted and skipped.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath

from postroad.embedded.log import frames, records, segments
from postroad.embedded.log.envelopes import ENVELOPE_BYTES, EnvelopeRecord, Unreadable, read_head
from postroad.embedded.log.frames import Frame
from postroad.embedded.log.layout import segment_of
from postroad.errors import StoreFailed
from postroad.ports.files import File, Files

PAGE = 4096
"""The least bytes that a failing disk refuses."""

NEVER = -1
"""An entry number before the first."""

SPOOL_FILE = "mail-"
"""The name of a spool file in `quarantine/` is this and its slot."""


@dataclass(slots=True)
class MailHistory:
    """The records of one mail. `is_garbage`: the flag of its last ENVELOPE; `started`: the entry
    number of its last START; `last_hold`: entry number and value of its last HOLD."""

    last: EnvelopeRecord | None = None
    is_garbage: bool = False
    started: int = NEVER
    deliveries: list[records.DeliveryRecord] = field(default_factory=list)
    last_hold: tuple[int, bool] = (NEVER, False)
    has_ended: bool = False

    @property
    def since(self) -> list[records.DeliveryRecord]:
        """The DELIVERYs of the last ENVELOPE's entry and later ones."""
        first = NEVER if self.last is None else self.last.entry_number
        return [each for each in self.deliveries if each.entry_number >= first]

    @property
    def finished(self) -> set[int]:
        return {number for each in self.since for number in each.numbers}

    @property
    def failures(self) -> dict[int, str]:
        failed = (each for each in self.since if each.kind is records.DeliveryKind.FAILED)
        return {number: each.text for each in failed for number in each.numbers}

    @property
    def is_unknown(self) -> bool:
        """True if no frame shows whether it is held."""
        return self.last is None and self.last_hold[0] == NEVER

    @property
    def held(self) -> bool:
        entry_number, held = self.last_hold
        return (
            held if self.last is None or entry_number >= self.last.entry_number else self.last.held
        )

    @property
    def is_over(self) -> bool:
        """True if the records prove that no recipient is left."""
        last = self.last
        if self.has_ended or last is None:
            return self.has_ended
        is_left = last.dead or last.failures or self.failures or set(last.numbers) - self.finished
        return not is_left

    @property
    def seems_over(self) -> bool:
        """True if the last ENVELOPE is garbage without a START: then the FINISH ended it, or a
        record is missing."""
        return self.last is not None and self.is_garbage and self.started < self.last.entry_number


@dataclass(slots=True)
class SalvagedLog:
    """Histories by mail id. `moved`: slots whose files an earlier rebuild moved to quarantine;
    `unreadable_parts`: pages and files that the disk did not return."""

    histories: dict[bytes, MailHistory] = field(default_factory=dict)
    moved: set[int] = field(default_factory=set)
    unreadable_records: int = 0
    unreadable_parts: int = 0


def salvage_log(files: Files, directories: Iterable[PurePath]) -> SalvagedLog:
    """Read the logs in these directories, oldest first. Blocking.
    Raises: StoreFailed when a directory cannot be listed."""
    salvaged = SalvagedLog()
    for directory in directories:
        for name in sorted(files.names(directory)):
            if segment_of(name) is not None:
                _read_segment(files, directory / name, salvaged)
            elif (slot := name.removeprefix(SPOOL_FILE)).isdecimal() and slot != name:
                salvaged.moved.add(int(slot))
    return salvaged


def _read_segment(files: Files, path: PurePath, salvaged: SalvagedLog) -> None:
    data = _bytes_of(files, path, salvaged)
    header = segments.read_header(data[: segments.HEADER_BLOCK])
    if header is None:
        return
    flags = data[segments.HEADER_BLOCK : header.first]
    seed = frames.checksum(header.encode())
    for frame in frames.stray_frames(data, seed, header.first):
        try:
            _add(
                salvaged.histories,
                frame,
                is_garbage=flags[frame.ordinal : frame.ordinal + 1] == b"\1",
            )
        except Unreadable:
            salvaged.unreadable_records += 1
            _hold_unreadable(salvaged.histories, frame)


def _bytes_of(files: Files, path: PurePath, salvaged: SalvagedLog) -> bytes:
    """Return a file's bytes, with zeros for those that the disk does not return."""
    try:
        file = files.open(path)
    except StoreFailed:
        salvaged.unreadable_parts += 1
        return b""
    try:
        return b"".join(readable(file, 0, file.size(), salvaged))
    except StoreFailed:  # the length is unknown too
        salvaged.unreadable_parts += 1
        return b""
    finally:
        file.close()


def readable(file: File, offset: int, length: int, salvaged: SalvagedLog) -> Iterator[bytes]:
    """Yield bytes in the largest pieces that the disk returns: halves, down to a page. Zeros stand
    for those that it does not."""
    try:
        yield file.pread(offset, length)
    except StoreFailed:
        if length <= PAGE:
            salvaged.unreadable_parts += 1
            yield bytes(length)
            return
        half = length // 2 // PAGE * PAGE or PAGE
        yield from readable(file, offset, half, salvaged)
        yield from readable(file, offset + half, length - half, salvaged)


def _hold_unreadable(histories: dict[bytes, MailHistory], frame: Frame) -> None:
    """Hold a mail whose ENVELOPE cannot be read, if by its fixed part it was held or a dead letter:
    an administrator decides."""
    if frame.type == records.ENVELOPE and len(frame.payload) >= ENVELOPE_BYTES:
        head = read_head(frame.payload)
        if head.held or head.dead:
            histories.setdefault(head.mail_id, MailHistory()).last_hold = (head.entry_number, True)


def _add(histories: dict[bytes, MailHistory], frame: Frame, *, is_garbage: bool) -> None:
    """Add one record to the history of its mail. Raises: Unreadable."""
    if frame.type in (records.OUTCOMES, records.KEY):
        return  # says nothing about who waits for the mail
    record = records.decode(frame.type, frame.payload)
    if record is None:
        return
    history = histories.setdefault(record.mail_id, MailHistory())
    match record:
        case EnvelopeRecord():
            if history.last is None or record.entry_number >= history.last.entry_number:
                history.last, history.is_garbage = record, is_garbage
        case records.StartRecord():
            history.started = max(history.started, record.entry_number)
        case records.DeliveryRecord() if record.kind is not records.DeliveryKind.DEFERRED:
            history.deliveries.append(record)
        case records.FinishRecord():
            history.has_ended = True
        case records.HoldRecord() if record.entry_number >= history.last_hold[0]:
            history.last_hold = (record.entry_number, record.held)
        case _:
            pass
