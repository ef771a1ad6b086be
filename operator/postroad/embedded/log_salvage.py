"""What a log that was put aside still says of each mail. FORMAT.md 9.

Its valid frames are believed, whatever lies between them: recipients that were finished, mails that
ended, were held or given up. What the disk does not give, and what is no record, is counted and
passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath

from postroad.embedded import frames, segments
from postroad.embedded.envelopes import Unreadable
from postroad.embedded.frames import Frame
from postroad.embedded.layout import segment_of
from postroad.embedded.records import (
    ENVELOPE,
    ENVELOPE_BYTES,
    Delivery,
    EnvelopeRecord,
    Finish,
    Hold,
    Kind,
    Start,
    decode,
    read_head,
)
from postroad.errors import StoreFailed
from postroad.ports.files import File, Files

PAGE = 4096
"""Bytes that a failing disk may refuse alone."""

NEVER = -1
"""Before every entry."""

SPOOL_FILE = "mail-"
"""What the name of a spool file in `quarantine/` begins with; its slot follows."""


@dataclass(slots=True)
class MailHistory:
    """What the log says of one mail. `is_marked` and `started` tell together whether its last
    ENVELOPE was garbage without being worked on; `last_hold` is the last HOLD and its entry."""

    last: EnvelopeRecord | None = None
    is_garbage: bool = False
    started: int = NEVER
    deliveries: list[Delivery] = field(default_factory=list)
    last_hold: tuple[int, bool] = (NEVER, False)
    has_ended: bool = False

    @property
    def since(self) -> list[Delivery]:
        """The deliveries that the last ENVELOPE does not know of yet."""
        first = NEVER if self.last is None else self.last.entry_number
        return [each for each in self.deliveries if each.entry_number >= first]

    @property
    def finished(self) -> set[int]:
        return {number for each in self.since for number in each.numbers}

    @property
    def failures(self) -> dict[int, str]:
        failed = (each for each in self.since if each.kind is Kind.FAILED)
        return {number: each.text for each in failed for number in each.numbers}

    @property
    def held(self) -> bool:
        entry_number, held = self.last_hold
        return (
            held if self.last is None or entry_number >= self.last.entry_number else self.last.held
        )

    @property
    def is_over(self) -> bool:
        """Whether it is known that nobody is left."""
        last = self.last
        if self.has_ended or last is None:
            return self.has_ended
        is_left = last.dead or last.failures or self.failures or set(last.numbers) - self.finished
        return not is_left

    @property
    def seems_over(self) -> bool:
        """Whether the mail has ended unless a record is missing: the mark of its last ENVELOPE was
        written, and nobody had begun to work on it."""
        return self.last is not None and self.is_garbage and self.started < self.last.entry_number


@dataclass(slots=True)
class SalvagedLog:
    """What is remembered, by mail. `moved` are the slots whose files were put aside before;
    `unreadable_parts` are pages and files that the disk did not give."""

    histories: dict[bytes, MailHistory] = field(default_factory=dict)
    moved: set[int] = field(default_factory=set)
    unreadable_records: int = 0
    unreadable_parts: int = 0


def salvage_log(files: Files, directories: Iterable[PurePath]) -> SalvagedLog:
    """Read the logs that were put aside in these directories, oldest first. Blocking.
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
    data = _contents_of(files, path, salvaged)
    header = segments.read_header(data[: segments.HEADER_BLOCK])
    if header is None:
        return
    flags = data[segments.HEADER_BLOCK : header.first]
    seed = frames.checksum(header.encode())
    for frame in frames.stray_frames(data, seed, header.first):
        try:
            _learn(
                salvaged.histories,
                frame,
                is_garbage=flags[frame.ordinal : frame.ordinal + 1] == b"\1",
            )
        except Unreadable:
            salvaged.unreadable_records += 1
            _keep_back(salvaged.histories, frame)


def _contents_of(files: Files, path: PurePath, salvaged: SalvagedLog) -> bytes:
    """Return a file's bytes, with zeros for those that the disk does not give."""
    try:
        file = files.open(path)
    except StoreFailed:
        salvaged.unreadable_parts += 1
        return b""
    try:
        return b"".join(_pieces(file, 0, file.size(), salvaged))
    except StoreFailed:  # without a length there is nothing to go by
        salvaged.unreadable_parts += 1
        return b""
    finally:
        file.close()


def _pieces(file: File, offset: int, length: int, salvaged: SalvagedLog) -> Iterator[bytes]:
    """Yield bytes in pieces as large as can be read: what fails is halved, down to a page."""
    try:
        yield file.pread(offset, length)
    except StoreFailed:
        if length <= PAGE:
            salvaged.unreadable_parts += 1
            yield bytes(length)
            return
        half = length // 2 // PAGE * PAGE or PAGE
        yield from _pieces(file, offset, half, salvaged)
        yield from _pieces(file, offset + half, length - half, salvaged)


def _keep_back(histories: dict[bytes, MailHistory], frame: Frame) -> None:
    """Let a mail be held whose ENVELOPE cannot be read, if its fixed part still says that it was
    held or a dead letter: people shall decide again."""
    if frame.type == ENVELOPE and len(frame.payload) >= ENVELOPE_BYTES:
        head = read_head(frame.payload)
        if head.held or head.dead:
            histories.setdefault(head.mail_id, MailHistory()).last_hold = (head.entry_number, True)


def _learn(histories: dict[bytes, MailHistory], frame: Frame, *, is_garbage: bool) -> None:
    """Take in one record. Raises: Unreadable."""
    record = decode(frame.type, frame.payload)
    if record is None:
        return
    history = histories.setdefault(record.mail_id, MailHistory())
    match record:
        case EnvelopeRecord():
            if history.last is None or record.entry_number >= history.last.entry_number:
                history.last, history.is_garbage = record, is_garbage
        case Start():
            history.started = max(history.started, record.entry_number)
        case Delivery() if record.kind is not Kind.DEFERRED:
            history.deliveries.append(record)
        case Finish():
            history.has_ended = True
        case Hold() if record.entry_number >= history.last_hold[0]:
            history.last_hold = (record.entry_number, record.held)
        case _:
            pass
