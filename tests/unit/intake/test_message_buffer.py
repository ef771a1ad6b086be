"""One mail while it comes in: what it takes of memory, and a disk that is full."""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.mail.shapes import shape_of
from postroad.domain.smtp.replies import Reply
from postroad.errors import StoreFull
from postroad.intake import reply_texts
from postroad.intake.message_buffer import MEMORY_BYTES, SPILLED_BYTES, MessageBuffer

LARGE = 64 * 1024 * 1024


@pytest.fixture
def full_disk() -> Iterator[int]:
    """A system that lets no file grow beyond this size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limit = MEMORY_BYTES + SPILLED_BYTES + 100
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, handler)


async def fed(incoming: MessageBuffer, piece: bytes, size: int) -> None:
    """Feed a mail in pieces, and its end."""
    for _ in range(size // len(piece)):
        assert incoming.feed(piece) is None
        if incoming.must_spill:
            await incoming.spill()
    assert incoming.feed(b"\r\n.\r\nQUIT\r\n") == b"QUIT\r\n"
    await incoming.complete()


def test_a_mail_in_tiny_pieces_takes_no_more_memory_than_its_size() -> None:
    incoming = MessageBuffer(LARGE)
    for _ in range(MEMORY_BYTES // 2):
        incoming.feed(b"x\n")

    kept = sum(sys.getsizeof(each) for each in vars(incoming).values())
    assert kept < 2 * MEMORY_BYTES


@pytest.mark.parametrize("size", [1500, MEMORY_BYTES - 1500, MEMORY_BYTES + 1500, 10**6])
async def test_a_mail_is_whole_in_memory_or_in_a_file(size: int, tmp_path: Path) -> None:
    incoming = MessageBuffer(LARGE, b"Received: x\r\n", tmp_path, takes_long_lines=True)
    await fed(incoming, b"y" * 1500, size)

    content = incoming.content
    found = content if isinstance(content, bytes) else content.read_bytes()
    assert list(tmp_path.iterdir()) == [], "a process that is killed now leaves nothing"
    assert isinstance(content, bytes) == (size < MEMORY_BYTES)
    assert found == b"Received: x\r\n" + b"y" * (size // 1500 * 1500) + b"\r\n"
    assert incoming.verdict() is None
    incoming.discard()
    assert isinstance(content, bytes) or not content.exists()


async def test_a_mail_that_would_use_up_what_the_log_needs_is_refused_for_now(
    tmp_path: Path,
) -> None:
    asked: list[int] = []

    def has_room(size: int) -> bool:
        asked.append(size)
        return sum(asked) < 2 * MEMORY_BYTES

    incoming = MessageBuffer(LARGE, b"", tmp_path, has_room=has_room, takes_long_lines=True)
    await fed(incoming, b"y" * 1500, 3 * MEMORY_BYTES)

    assert isinstance(incoming.problem, StoreFull)
    assert incoming.verdict() == reply_texts.FULL
    assert sum(asked) < 2 * MEMORY_BYTES + 2 * SPILLED_BYTES, "each octet is asked for once"
    incoming.discard()


async def test_a_disk_that_is_full_in_the_middle_of_a_mail_refuses_it_for_now(
    full_disk: int, tmp_path: Path
) -> None:
    incoming = MessageBuffer(LARGE, b"", tmp_path, takes_long_lines=True)
    await fed(incoming, b"y" * 1500, 2 * full_disk)

    assert isinstance(incoming.problem, StoreFull)
    assert incoming.verdict() == reply_texts.reply_for(incoming.problem)
    incoming.discard()
    incoming.discard()
    assert list(tmp_path.iterdir()) == []


async def test_a_mail_that_is_given_up_while_it_is_written_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes goes on when the session is cut off."""
    opening, may_open = threading.Event(), threading.Event()
    make, made = tempfile.TemporaryFile, []

    def slowly(**options: Any) -> Any:
        opening.set()
        may_open.wait()
        made.append(make(**options))
        return made[0]

    monkeypatch.setattr(tempfile, "TemporaryFile", slowly)
    incoming = MessageBuffer(LARGE, b"", tmp_path)
    incoming.feed(b"x" * (MEMORY_BYTES + 1))
    spilling = asyncio.create_task(incoming.spill())
    await asyncio.to_thread(opening.wait)

    spilling.cancel()
    await asyncio.wait([spilling])
    incoming.discard()
    may_open.set()
    await asyncio.get_running_loop().shutdown_default_executor()

    assert made[0].closed


async def test_a_mail_that_is_given_up_before_it_is_written_leaves_no_file(tmp_path: Path) -> None:
    incoming = MessageBuffer(LARGE, b"", tmp_path)
    incoming.feed(b"x" * (MEMORY_BYTES + 1))
    spilling = asyncio.create_task(incoming.spill())
    incoming.discard()

    await spilling

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("piece", [1, 7, 1000, 5000])
@pytest.mark.parametrize(("length", "reply"), [(998, None), (999, reply_texts.LONG_LINE)])
async def test_a_mail_with_a_line_of_more_than_998_octets_is_refused_unless_long_lines_are_taken(
    piece: int, length: int, reply: Reply | None
) -> None:
    mail = b"Subject: x\r\n\r\n" + b"..".ljust(length + 1, b"x") + b"\r\nend\r\n.\r\n"
    strict, lenient = MessageBuffer(LARGE), MessageBuffer(LARGE, takes_long_lines=True)

    for at in range(0, len(mail), piece):
        strict.feed(mail[at : at + piece])
        lenient.feed(mail[at : at + piece])

    assert strict.verdict() == reply
    assert lenient.verdict() is None
    assert lenient.content == strict.content == mail[:-3].replace(b"\r\n..", b"\r\n.")


pieces_of_mail = st.lists(
    st.sampled_from([b".", b"\r\n", b"\r", b"\n", b"\0", b"a", b"\xff", b"\n.\n", b"\r\n."])
)


@given(pieces_of_mail)
def test_bare_line_ends_and_nul_refuse_a_mail_however_its_octets_are_cut(
    pieces: list[bytes],
) -> None:
    mail, _, _ = (b"\r\n" + b"".join(pieces) + b"\r\n.\r\n").partition(b"\r\n.\r\n")
    without_ends = mail.replace(b"\r\n", b"")
    is_bare = b"\r" in without_ends or b"\n" in without_ends
    expected = reply_texts.NUL_OCTETS if b"\0" in mail else None

    buffer, rest = MessageBuffer(LARGE), None
    for piece in (*pieces, b"\r\n.\r\n"):
        rest = buffer.feed(piece) if rest is None else rest

    assert buffer.verdict() == (reply_texts.BARE_LINE_ENDS if is_bare else expected)


@given(pieces_of_mail, st.booleans())
def test_a_mail_comes_with_the_shape_of_its_content_and_its_trace_field(
    pieces: list[bytes], normalises: bool
) -> None:
    buffer = MessageBuffer(LARGE, b"Received: x\r\n", normalises_line_ends=normalises)
    rest = None
    for piece in (*pieces, b"\r\n.\r\n"):
        rest = buffer.feed(piece) if rest is None else rest

    assert isinstance(buffer.content, bytes)
    assert buffer.shape == shape_of((buffer.content,))
    assert not normalises or buffer.verdict() is None
