"""Mails in spool files: content, envelope, and the header that makes them valid; one sync.
FORMAT.md 4.

Blocking: called in threads. The files used last stay open, because the pools hand them out again
first; a million waiting mails need no descriptors.
Source: 003; SP-4..13; AMB-1..3."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntFlag
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

from postroad.domain.mail.shapes import Scanner, Shape
from postroad.embedded.log.envelopes import read_envelope
from postroad.embedded.log.frames import checksum, extended
from postroad.embedded.log.layout import Layout, file_of, kind_of, offset_of
from postroad.embedded.log.options import KEPT_OPEN
from postroad.errors import BlobMissing, StoreFailed
from postroad.ports.files import File, Files

MAGIC = b"PRspool1"
HEADER_BYTES = 128

CHUNK = 1024 * 1024
SMALL = 256 * 1024
"""Bytes of content up to which a mail is cached, or read without a thread."""

_HEAD = Struct("<I16sQQIIIIQIQQQ")
_CRC = Struct("<I")


class ContentFlags(IntFlag):
    """Properties of a content. KNOWN is absent where an earlier release stored it."""

    KNOWN = 1
    EIGHT_BIT_HEADER = 2
    EIGHT_BIT_BODY = 4
    LEADING_DOTS = 8
    TERMINATED = 16
    NUL = 32


KNOWN, EIGHT_BIT_HEADER, EIGHT_BIT_BODY, LEADING_DOTS, TERMINATED, NUL = ContentFlags


class SpoolHeader(NamedTuple):
    """The header of a spool file; an envelope offset of 0 means that its slot is free."""

    reserved: int
    mail_id: bytes
    content_length: int
    envelope_offset: int
    envelope_length: int
    content_crc: int
    envelope_crc: int
    header_size: int
    accepted_us: int
    found: int
    bare_line_ends: int
    longest_line: int
    folds: int

    @property
    def shape(self) -> Shape | None:
        """The shape of the content; None where an earlier release stored it."""
        found = ContentFlags(self.found)
        if KNOWN not in found:
            return None
        return Shape(
            header_size=self.header_size,
            has_8bit_header=EIGHT_BIT_HEADER in found,
            has_8bit_body=EIGHT_BIT_BODY in found,
            has_leading_dots=LEADING_DOTS in found,
            bare_line_ends=self.bare_line_ends,
            longest_line=self.longest_line,
            folds=self.folds,
            is_terminated=TERMINATED in found,
            has_nul=NUL in found,
        )

    def encode(self) -> bytes:
        body = _HEAD.pack(*self).ljust(HEADER_BYTES - 12, b"\0")
        return MAGIC + _CRC.pack(checksum(body)) + body


def read_header(block: bytes) -> SpoolHeader | None:
    """Read a header; None when its checksum is wrong, or the file is free."""
    if len(block) < HEADER_BYTES or block[:8] != MAGIC:
        return None
    body = block[12:HEADER_BYTES]
    if _CRC.pack(checksum(body)) != block[8:12]:
        return None
    header = SpoolHeader(*_HEAD.unpack_from(body))
    return header if header.envelope_offset else None


Kept = tuple[bytes, Shape | None]
"""A content and its shape."""

FREE = b""
"""The holder of a free slot: see `SpoolFiles.holder`."""


class NewMail(NamedTuple):
    """A mail that is whole in memory, and its slot. `shape`: its content's, where it is known."""

    slot: int
    mail_id: bytes
    content: bytes
    envelope: bytes
    accepted_us: int
    shape: Shape | None = None


@dataclass(slots=True)
class Filling:
    """A slot that is being filled, with length and checksum of its content so far. `start`: where
    the slot begins in the file."""

    file: File
    start: int = 0
    length: int = 0
    crc: int = 0
    scanner: Scanner = field(default_factory=Scanner)

    def add(self, chunk: bytes) -> None:
        """Write the next piece of content."""
        self.file.pwrite(self.start + HEADER_BYTES + self.length, chunk)
        self.scanner.feed(chunk)
        self.crc = extended(self.crc, chunk)
        self.length += len(chunk)

    def finish(self, mail: NewMail) -> Shape:
        """Write the last piece of content, which `mail` has, envelope and header. A mail of one
        piece is one write. Not durable before `sync`. Returns the shape of the content."""
        shape, last, envelope = mail.shape, mail.content, mail.envelope
        if shape is None:
            self.scanner.feed(last)
            shape = self.scanner.end()
        length = self.length + len(last)
        header = SpoolHeader(
            reserved=0,
            mail_id=mail.mail_id,
            content_length=length,
            envelope_offset=HEADER_BYTES + length,
            envelope_length=len(envelope),
            content_crc=extended(self.crc, last),
            envelope_crc=checksum(envelope),
            header_size=shape.header_size,
            accepted_us=mail.accepted_us,
            found=_found(shape),
            bare_line_ends=shape.bare_line_ends,
            longest_line=shape.longest_line,
            folds=shape.folds,
        ).encode()
        if self.length:
            self.file.pwrite(self.start + HEADER_BYTES + self.length, last, envelope)
            self.file.pwrite(self.start, header)
        else:
            self.file.pwrite(self.start, header, last, envelope)
        return shape

    def sync(self) -> None:
        """Make what was written durable: once before the 250 (SP-9), because checksums prove the
        rest, and no order."""
        self.file.sync()

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class SpoolFiles:
    """The spool files of a store, and the mails in their slots."""

    def __init__(self, files: Files, layout: Layout, kept_open: int = KEPT_OPEN) -> None:
        self._files, self._kept_open = files, kept_open
        self._path = lru_cache(2 * KEPT_OPEN)(layout.spool_file)
        self._idle: OrderedDict[int, File] = OrderedDict()
        """By the first slot of the file."""

    def make(self, slot: int, size: int) -> None:
        """Make the file of a slot, with space for `size` octets. Its name is not durable."""
        file = self._files.open(self._path(slot), create=True)
        try:
            file.allocate(size)
        except BaseException:
            file.close()
            raise
        self.keep(slot, file)

    def allocate(self, slot: int, size: int) -> None:
        """Reserve space up to `size` octets in the file of a slot."""
        with self._used(slot) as file:
            file.allocate(size)

    def begin(self, slot: int) -> Filling:
        """Open a slot's file to be filled. Raises: StoreFailed, StoreFull."""
        return Filling(self._taken(slot), offset_of(slot))

    def store(self, *mails: NewMail) -> list[Shape]:
        """Store mails in slots of one file. Durable when it returns. Returns their shapes."""
        with self._used(mails[0].slot) as file:
            shapes = [Filling(file, offset_of(each.slot)).finish(each) for each in mails]
            file.sync()
        return shapes

    def free(self, slot: int) -> int:
        """Write zeros over the header (SP-12). Returns the size of a file of its own, otherwise 0.
        Not durable."""
        with self._used(slot) as file:
            file.pwrite(offset_of(slot), bytes(HEADER_BYTES))
            return 0 if kind_of(slot) else file.size()

    @contextmanager
    def _used(self, slot: int) -> Iterator[File]:
        """The file of a slot, for this caller alone; closed after an error, otherwise kept."""
        file = self._taken(slot)
        try:
            yield file
        except BaseException:
            file.close()
            raise
        self.keep(slot, file)

    def remove(self, slot: int) -> None:
        """Remove the file of a slot, which has no mail. Not durable."""
        if (file := self._idle.pop(file_of(slot), None)) is not None:
            file.close()
        self._files.unlink(self._path(slot))

    def _take(self, slot: int) -> File:
        """Return a slot's file, for this caller alone. Any thread may call, because each operation
        on the table of idle files is atomic."""
        file = self._idle.pop(file_of(slot), None)
        return file or self._files.open(self._path(slot))

    def _taken(self, slot: int) -> File:
        """Return a slot's file, which must be there. Raises: StoreFailed, StoreFull."""
        try:
            return self._take(slot)
        except FileNotFoundError as error:
            raise StoreFailed(f"spool file {slot} is missing") from error

    def keep(self, slot: int, file: File) -> None:
        """Keep a slot's file open for the next caller."""
        if self._idle.setdefault(file_of(slot), file) is not file:
            file.close()
        elif len(self._idle) > self._kept_open:
            self._idle.popitem(last=False)[1].close()

    def close(self) -> None:
        """Close the idle files."""
        while self._idle:
            self._idle.popitem()[1].close()

    def open(self, slot: int, mail_id: bytes) -> tuple[File, SpoolHeader]:
        """Open a mail for reading. Raises: BlobMissing when the file holds another mail or none."""
        try:
            file = self._files.open(self._path(slot))
        except FileNotFoundError as error:
            raise BlobMissing(f"spool file {slot} is missing") from error
        try:
            header = read_header(file.pread(offset_of(slot), HEADER_BYTES))
            if header is None or header.mail_id != mail_id:
                raise BlobMissing(f"spool file {slot} does not hold this mail")
        except BaseException:
            file.close()
            raise
        return file, header

    def at_hand(self, slot: int, mail_id: bytes, length: int) -> Kept | None:
        """Return a small mail's content and shape from the page cache, without waiting for the
        disk. None for any other or damaged one: `read` reports what is wrong."""
        if length > SMALL:
            return None
        try:
            file = self._take(slot)
        except FileNotFoundError:
            return None
        data = file.at_hand(offset_of(slot), HEADER_BYTES + length)
        self.keep(slot, file)
        header = None if data is None else read_header(data)
        if data is None or header is None or header.mail_id != mail_id:
            return None
        content = data[HEADER_BYTES:]
        return (content, header.shape) if checksum(content) == header.content_crc else None

    def read(self, slot: int, mail_id: bytes) -> Kept:
        """Return a mail's content and shape. Raises: BlobMissing when it is damaged or gone."""
        file, header = self.open(slot, mail_id)
        try:
            content = file.pread(content_at(slot), header.content_length)
        finally:
            file.close()
        if len(content) != header.content_length or checksum(content) != header.content_crc:
            raise BlobMissing(f"spool file {slot} is damaged")
        return content, header.shape

    def verify(self, slot: int) -> tuple[SpoolHeader, dict[str, Any]] | None:
        """Return header and envelope of a mail whose checksums are right; None for a free or
        incomplete file (AMB-3). Raises: StoreDamaged when the envelope cannot be decoded."""
        file = self._files.open(self._path(slot))
        try:
            start = offset_of(slot)
            header = read_header(file.pread(start, HEADER_BYTES))
            if header is None or not _is_whole(file, start, header):
                return None
            envelope = file.pread(start + header.envelope_offset, header.envelope_length)
        finally:
            file.close()
        if len(envelope) != header.envelope_length or checksum(envelope) != header.envelope_crc:
            return None
        return header, read_envelope(envelope)[1]

    def size(self, slot: int) -> int:
        """Return the size of a slot's file. Raises: StoreFailed."""
        file = self._files.open(self._path(slot))
        try:
            return file.size()
        finally:
            file.close()

    def holder(self, slot: int) -> bytes | None:
        """Return the id of the mail that has a slot, by the file's header alone: FREE for zeros,
        None when the header cannot be read. Raises: StoreFailed."""
        file = self._files.open(self._path(slot))
        try:
            block = file.pread(offset_of(slot), HEADER_BYTES)
        finally:
            file.close()
        if block == bytes(HEADER_BYTES):
            return FREE
        header = read_header(block)
        return None if header is None else header.mail_id


def _found(shape: Shape) -> int:
    # A sum: `|` of flags makes an object of each step.
    return (
        KNOWN
        + EIGHT_BIT_HEADER * shape.has_8bit_header
        + EIGHT_BIT_BODY * shape.has_8bit_body
        + LEADING_DOTS * shape.has_leading_dots
        + TERMINATED * shape.is_terminated
        + NUL * shape.has_nul
    )


def content_at(slot: int) -> int:
    """Return where the content of a slot begins in its file."""
    return offset_of(slot) + HEADER_BYTES


def _is_whole(file: File, start: int, header: SpoolHeader) -> bool:
    crc = 0
    for offset in range(0, header.content_length, CHUNK):
        length = min(CHUNK, header.content_length - offset)
        chunk = file.pread(start + HEADER_BYTES + offset, length)
        if len(chunk) < length:
            return False
        crc = extended(crc, chunk)
    return crc == header.content_crc
