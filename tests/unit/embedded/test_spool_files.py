"""Spool files: which stay open, and what one write holds."""

from __future__ import annotations

import struct
from pathlib import PurePosixPath

import pytest

from crash.lossy import LossyFiles, Sync, Write
from postroad.domain.mail.shapes import shape_of
from postroad.embedded.log import spool_files
from postroad.embedded.log.frames import checksum
from postroad.embedded.log.layout import Layout
from postroad.embedded.log.spool_files import HEADER_BYTES, ContentFlags, NewMail, SpoolFiles
from postroad.errors import BlobMissing, StoreDamaged, StoreFailed, StoreFull

ROOT = PurePosixPath("/store")
LAYOUT = Layout(ROOT, ROOT / "mail")
MAIL_ID = bytes(range(16))


class CountedFiles(LossyFiles):
    """Counts every opening."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.openings = 0
        self.make_directory(LAYOUT.spool_directory(0))
        for slot in range(slots):
            super().open(LAYOUT.spool_file(slot), create=True).close()
        self.journal.steps.clear()

    def ask(self, what: str) -> None:
        self.openings += what == "open"
        super().ask(what)


def fill(store: SpoolFiles, slot: int, content: bytes = b"x") -> None:
    store.store(NewMail(slot, MAIL_ID, content, b"{}", 1))


def test_a_file_that_is_used_again_and_again_is_opened_once() -> None:
    files = CountedFiles(1)
    store = SpoolFiles(files, LAYOUT)
    before = files.openings

    for _ in range(5):
        fill(store, 0)
        store.free(0)

    assert files.openings == before + 1


def test_no_more_files_stay_open_than_allowed() -> None:
    files = CountedFiles(5)
    store = SpoolFiles(files, LAYOUT, kept_open=3)
    for slot in range(5):
        fill(store, slot)
    before = files.openings

    for slot in (4, 3, 2):
        store.free(slot)
    assert files.openings == before
    store.free(0)

    assert files.openings == before + 1


def test_a_removed_file_is_not_kept_open() -> None:
    files = CountedFiles(1)
    store = SpoolFiles(files, LAYOUT)
    fill(store, 0)

    store.remove(0)

    assert files.open_files == 0
    with pytest.raises(StoreFailed, match="missing"):
        store.free(0)


def test_a_file_that_is_not_the_mails_does_not_stay_open() -> None:
    files = CountedFiles(1)
    store = SpoolFiles(files, LAYOUT)
    fill(store, 0)
    store.close()

    with pytest.raises(BlobMissing, match="does not hold"):
        store.open(0, bytes(16))
    files.fail = {files.calls + 2: StoreFailed("cannot read: Input/output error")}
    with pytest.raises(StoreFailed, match="cannot read"):
        store.open(0, MAIL_ID)

    assert files.open_files == 0


def test_a_file_that_refused_a_write_is_opened_anew() -> None:
    files = CountedFiles(1)
    store = SpoolFiles(files, LAYOUT)
    fill(store, 0)
    files.fail = {files.calls + 1: StoreFull("no")}
    before = files.openings

    with pytest.raises(StoreFull):
        fill(store, 0)
    fill(store, 0, b"again")

    assert files.openings == before + 1
    assert store.read(0, MAIL_ID)[0] == b"again"


def test_a_whole_mail_is_one_write_and_one_sync() -> None:
    files = CountedFiles(1)
    store = SpoolFiles(files, LAYOUT)
    calls = files.calls

    fill(store, 0, b"content")

    assert files.calls == calls + 3  # open, write, sync
    *parts, sync = files.journal.steps
    assert isinstance(sync, Sync)
    writes = [part for part in parts if isinstance(part, Write)]
    assert [(each.offset, len(each.data)) for each in writes] == [
        (0, HEADER_BYTES),
        (HEADER_BYTES, 7),
        (HEADER_BYTES + 7, 2),
    ]


def test_a_file_that_is_missing_cannot_be_filled() -> None:
    """It is a failure of the disk, because no code removes the file of a slot in use."""
    store = SpoolFiles(CountedFiles(1), LAYOUT)

    with pytest.raises(StoreFailed, match="missing"):
        store.begin(1)
    with pytest.raises(StoreFailed, match="missing"):
        fill(store, 1)


def test_a_header_tells_who_has_a_slot() -> None:
    files = CountedFiles(4)
    store = SpoolFiles(files, LAYOUT)
    for slot in range(3):
        fill(store, slot)
    files.open(LAYOUT.spool_file(0)).pwrite(HEADER_BYTES, b"?")
    store.free(1)
    files.open(LAYOUT.spool_file(2)).pwrite(20, b"?")

    assert store.holder(0) == MAIL_ID, "whole or not"
    assert store.holder(1) == spool_files.FREE
    assert store.holder(2) is None
    assert store.holder(3) is None, "an empty file was not freed"


def test_a_whole_file_with_an_envelope_that_is_none_is_damaged() -> None:
    store = SpoolFiles(CountedFiles(1), LAYOUT)
    fill(store, 0)

    with pytest.raises(StoreDamaged):
        store.verify(0)


def test_what_the_content_looks_like_is_in_the_header_of_its_file() -> None:
    store = SpoolFiles(CountedFiles(1), LAYOUT)
    content = b"Subject: \xff\r\n\r\n.\r\n\0" + b"x" * 3000 + b"\n\xff"

    fill(store, 0, content)

    assert store.read(0, MAIL_ID) == (content, shape_of((content,)))


def test_each_property_of_a_content_has_the_bit_that_files_have() -> None:
    assert {each.name: each.value for each in ContentFlags} == {
        "KNOWN": 1,
        "EIGHT_BIT_HEADER": 2,
        "EIGHT_BIT_BODY": 4,
        "LEADING_DOTS": 8,
        "TERMINATED": 16,
        "NUL": 32,
    }


def test_a_file_of_the_release_before_says_nothing_of_its_content() -> None:
    """It left zeros there, and a list of dots in the envelope."""
    files = CountedFiles(1)
    store = SpoolFiles(files, LAYOUT)
    content, envelope = b"a: b\r\n\r\n.x", b'{"shape":{"dots":[8],"parts":[]}}'
    body = struct.pack(
        "<I16sQQIIIIQ", 0, MAIL_ID, len(content), HEADER_BYTES + len(content), len(envelope),
        checksum(content), checksum(envelope), 8, 1,
    ).ljust(HEADER_BYTES - 12, b"\0")  # fmt: skip
    header = b"PRspool1" + struct.pack("<I", checksum(body)) + body
    files.open(LAYOUT.spool_file(0)).pwrite(0, header, content, envelope)

    assert store.read(0, MAIL_ID) == (content, None)


def test_the_release_before_reads_what_this_one_writes() -> None:
    """It knows the fields up to the moment of acceptance, and passes over the others."""
    files = CountedFiles(1)
    fill(SpoolFiles(files, LAYOUT), 0, b"a: b\r\n\r\n.x")

    block = files.open(LAYOUT.spool_file(0)).pread(0, HEADER_BYTES)
    fields = struct.unpack_from("<I16sQQIIIIQ", block, 12)

    assert struct.unpack_from("<I", block, 8) == (checksum(block[12:HEADER_BYTES]),)
    assert (fields[1], fields[2], fields[7], fields[8]) == (MAIL_ID, 10, 8, 1)
