"""One mail while it comes in: finds its end, checks it, and buffers it in memory or in a file.

The intake enqueues only a complete mail, because an enqueue has a deadline and a client may be
slow. It reads also a mail that it refuses to the end, because it would execute the rest as
commands; it counts what exceeds the limit, and drops it.

Trace fields: the intake adds a `Received:` field, and finds mail loops by counting them.

Source: RFC 5321 4.4 (trace), 6.3 (loops); RFC 3848 (protocols); RFC 5322 3.3 (date)."""

import asyncio
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from email.utils import format_datetime
from functools import lru_cache
from io import FileIO
from pathlib import Path

from postroad.domain.mail.dot_stuffing import Unstuffer
from postroad.domain.mail.mail import Origin
from postroad.domain.mail.shapes import MAX_RECEIVED_FIELDS, Scanner, Shape
from postroad.domain.smtp.next_hops import address_literal
from postroad.domain.smtp.replies import Reply
from postroad.errors import StoreFull
from postroad.intake import reply_texts
from postroad.intake.submitted_header import SubmittedHeader

_FIELD = b"\nreceived:"


def trace_field(
    origin: Origin,
    hostname: str,
    name: str,
    moment: datetime,
    cipher: tuple[str, str] | None = None,
) -> bytes:
    """Return the field, folded, with its line end. `name` is the mail's name: an administrator
    finds the mail in the queue by it. The dialogue checked the client's name, so it cannot break
    out of the field. `cipher`: the version of TLS and the cipher, which stand in a comment as
    Postfix writes it."""
    secured = f"\t(using {cipher[0]} with cipher {cipher[1]})\r\n" if cipher else ""
    literal = address_literal(origin.address or "unknown")
    return (
        f"Received: from {origin.host or 'unknown'} ({literal})\r\n"
        f"{secured}\tby {hostname} with {origin.protocol} id {name};\r\n"
        f"\t{_date(moment.replace(microsecond=0))}\r\n"
    ).encode()


@lru_cache(maxsize=1)
def _date(second: datetime) -> str:
    return format_datetime(second)


class HopCounter:
    """Counts `Received:` fields in a header that arrives in chunks."""

    def __init__(self) -> None:
        self.hops = 0
        self._tail = b"\n"  # the first line begins like any other
        self._is_over = False

    def feed(self, chunk: bytes) -> None:
        """Count in the next octets of the mail; those after the header are skipped."""
        if self._is_over or not chunk:
            return
        end = chunk.find(b"\n\r\n") + 1  # alone: a sum with the whole chunk copies it
        data = self._tail + (chunk[:end] if end else chunk)
        if early := data.find(b"\n\r\n") + 1:
            data = data[:early]
        self._is_over = bool(end or early)
        self.hops += data.lower().count(_FIELD)
        self._tail = data[1 - len(_FIELD) :]  # one octet longer, and a field would count twice


MEMORY_BYTES = 256 * 1024
"""Octets of one mail in memory. Times the number of sessions, it bounds the memory of mails."""

SPILLED_BYTES = 64 * 1024
"""Octets of one write to the file of a larger mail."""


class MessageBuffer:
    """Appends content to `first`, which does not count as size. The caller calls `discard` in the
    end. The file is in `folder`, without a name, so that a process that is killed leaves none;
    `has_room` returns whether so many octets may be written there; `header` checks and completes
    the header."""

    def __init__(
        self,
        limit_bytes: int,
        first: bytes = b"",
        folder: Path | None = None,
        *,
        has_room: Callable[[int], bool] = lambda _: True,
        normalises_line_ends: bool = False,
        takes_long_lines: bool = False,
        header: SubmittedHeader | None = None,
    ) -> None:
        self.size_bytes = 0
        self.problem: StoreFull | None = None
        """Why the file could not be written."""

        self._limit = limit_bytes
        self._folder, self._has_room = folder, has_room
        # Not a list of chunks: tiny ones take many times their size.
        self._kept: bytearray | bytes = bytearray(first)
        self._unstuffer, self._hops = Unstuffer(normalises_line_ends), HopCounter()
        self._takes_long_lines = takes_long_lines
        self._header = header
        self._scanner = Scanner()
        self._shape: Shape | None = None
        self._file: FileIO | None = None
        self._deciding = threading.Lock()
        """Held while `discard`, or the thread that writes, finds out whether it is the last of
        both: the last one removes the file."""
        self._is_writing = self._is_discarded = False

    @property
    def is_too_large(self) -> bool:
        """True if the mail exceeds the limit; then nothing of it is buffered."""
        return self.size_bytes > self._limit

    @property
    def must_spill(self) -> bool:
        """True if the caller must call `spill` before the next `feed`."""
        return len(self._kept) > (MEMORY_BYTES if self._file is None else SPILLED_BYTES)

    def feed(self, chunk: bytes) -> bytes | None:
        """Add a chunk. Return the octets after the mail's end once it has ended, else None."""
        content, rest = self._unstuffer.feed(chunk)
        self.append(content, is_end=rest is not None)
        return rest

    def append(self, content: bytes, *, is_end: bool) -> None:
        """Add octets that are content as they are."""
        self._hops.feed(content)
        self.size_bytes += len(content)
        if self._header is not None:
            content = self._header.feed(content, is_end=is_end)
        if self.size_bytes > self._limit:
            self.discard()
        elif self.problem is None:
            self._kept += content

    async def spill(self) -> None:
        """Write the octets in memory to a file; a failure becomes the mail's `problem`."""
        kept, self._kept = self._kept, bytearray()
        self._scanner.feed(bytes(kept))
        if not self._has_room(len(kept)):
            self.problem = StoreFull("a large mail leaves too little free for the queue's log")
            return
        try:
            await asyncio.to_thread(self._write, kept)
        except OSError as error:
            self.problem = StoreFull("a large mail cannot be written to a file")
            self.problem.__cause__ = error

    @property
    def shape(self) -> Shape:
        """The shape of the mail, once it has ended: what is in memory is looked at as a whole."""
        if self._shape is None:
            self._scanner.feed(bytes(self._kept))
            self._shape = self._scanner.end()
        return self._shape

    def verdict(self) -> Reply | None:
        """Return the reply that refuses the mail, or None."""
        if self.is_too_large:
            return reply_texts.TOO_LARGE
        if self._header is not None and self._header.refusal is not None:
            return self._header.refusal
        if self.shape.bare_line_ends:
            return reply_texts.BARE_LINE_ENDS
        if self.shape.has_nul:
            return reply_texts.NUL_OCTETS
        if self.shape.longest_line and not self._takes_long_lines:
            return reply_texts.LONG_LINE
        if self._hops.hops >= MAX_RECEIVED_FIELDS:
            return reply_texts.LOOP
        return reply_texts.reply_for(self.problem) if self.problem else None

    async def complete(self) -> None:
        """Bring a mail that has ended into one place: memory, or the file."""
        if self._file is not None or self.must_spill:
            await self.spill()
        else:
            self._kept = bytes(self._kept)

    @property
    def content(self) -> bytes | Path:
        """The mail, as octets or as a file that this process can open until `discard`."""
        file = self._file  # opened by this name, it is read from its beginning
        return bytes(self._kept) if file is None else Path(f"/proc/self/fd/{file.fileno()}")

    def discard(self) -> None:
        """Drop the mail and its file, after a write that is under way. Idempotent."""
        self._kept = bytearray()
        with self._deciding:
            self._is_discarded = True
            if self._is_writing:
                return
        self._remove()

    def _remove(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # its content is not needed
                file.close()

    def _write(self, octets: bytearray | bytes) -> None:
        """Runs in a thread, which goes on when the task that waits for it is cancelled."""
        if self._is_discarded_when(writing=True):
            return
        try:
            self._append(octets)
        finally:
            if self._is_discarded_when(writing=False):
                self._remove()

    def _is_discarded_when(self, *, writing: bool) -> bool:
        with self._deciding:
            self._is_writing = writing and not self._is_discarded
            return self._is_discarded

    def _append(self, octets: bytearray | bytes) -> None:
        if self._file is None:
            # Unbuffered: a failed write of a buffer is repeated, and fails again, at close.
            self._file = tempfile.TemporaryFile(buffering=0, dir=self._folder)  # noqa: SIM115 - see `discard`
        left = memoryview(octets)
        while left:
            left = left[self._file.write(left) :]
