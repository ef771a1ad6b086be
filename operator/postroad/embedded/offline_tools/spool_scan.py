"""Finds mails by their spool files and the salvaged log. FORMAT.md 9.

An intact file is a mail. A mail without an intact file counts as finished if its slot is free or
has another mail, because a slot is released only behind a FINISH (R3). An unreadable file that may
be a mail moves to quarantine, so that no later mail overwrites it."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePath
from typing import Any
from uuid import UUID

from postroad.domain.mail.envelope_documents import envelope_of
from postroad.domain.mail.mail import Envelope
from postroad.embedded.log.envelopes import EnvelopeRecord
from postroad.embedded.log.layout import (
    NEW,
    OWN_FILE,
    PLACE_SIZES,
    Layout,
    file_of,
    kind_of,
    offset_of,
)
from postroad.embedded.log.slots import slots_on_disk
from postroad.embedded.log.spool_files import FREE, SpoolFiles, SpoolHeader
from postroad.embedded.offline_tools.log_salvage import (
    SPOOL_FILE,
    MailHistory,
    SalvagedLog,
    readable,
)
from postroad.embedded.store.recovery import ALL_FINISHED, as_dead_letter, with_recipients
from postroad.errors import StoreDamaged, StoreFailed
from postroad.ports.files import Files

EVERYWHERE = 1 << 40
"""More spool directories than there are."""


class SpoolScan:
    """All spool files, read once. `lost` names mails without an intact file, and unreadable files
    that may be mails."""

    def __init__(
        self, files: Files, layout: Layout, salvaged: SalvagedLog, quarantine: PurePath
    ) -> None:
        self._files, self._layout, self._salvaged = files, layout, salvaged
        self._quarantine = quarantine
        self._spool_files = SpoolFiles(files, layout)
        self._whole: set[bytes] = set()
        self._holders: dict[int, bytes | None] = {}
        """The holder of each slot that has a file: see `SpoolFiles.holder`."""
        self._unreadable: dict[int, str] = {}
        """The errors of unreadable files, by slot."""
        self.finished = self.unfinished_files = 0
        self.lost: list[str] = []

    def records(self) -> Iterator[EnvelopeRecord]:
        """Yield an ENVELOPE for every mail that is not known to be finished; then fill `lost`, and
        move lost files to quarantine. Raises: StoreFailed when a directory cannot be listed."""
        for slot in self._slots():
            found = self._read(slot)
            if found is None:
                continue
            header, envelope = found
            history = self._salvaged.histories.get(header.mail_id, MailHistory())
            record = _record_of(slot, header, envelope_of(envelope), history)
            if record is None:
                self._free(slot)
            else:
                yield record
        lost = set(self._lost_mails())
        lost |= set(self._lost_files(lost))
        for slot in sorted(lost & self._holders.keys()):
            self._quarantine_file(slot)
        self._spool_files.close()

    def _slots(self) -> Iterator[int]:
        """Yield the slots that can have a mail: of a file the first, and each before its end."""
        for slot in slots_on_disk(self._files, self._layout, EVERYWHERE):
            if slot == file_of(slot):
                end = 0
                with suppress(StoreFailed):  # `_read` reports it
                    end = self._spool_files.size(slot)
            if slot == file_of(slot) or offset_of(slot) < end:
                yield slot

    def _read(self, slot: int) -> tuple[SpoolHeader, dict[str, Any]] | None:
        """Return header and envelope of the mail in a slot; None when it has no intact one."""
        try:
            found = self._spool_files.verify(slot)
        except (StoreFailed, StoreDamaged) as error:
            found, self._unreadable[slot] = None, str(error)
        if found is not None:
            self._holders[slot] = found[0].mail_id
            self._whole.add(found[0].mail_id)
            return found
        try:
            self._holders[slot] = self._spool_files.holder(slot)
        except StoreFailed:
            self._holders[slot] = None
        # Most places of a file have no mail: only one with a header was begun.
        is_begun = kind_of(slot) == OWN_FILE or self._holders[slot] not in (None, FREE)
        self.unfinished_files += is_begun and slot not in self._unreadable
        return None

    def _free(self, slot: int) -> None:
        """Free the file of a finished mail, because the new log has no FINISH for it."""
        self.finished += 1
        with suppress(StoreFailed):  # only another rebuild would deliver it again
            self._spool_files.free(slot)

    def _lost_mails(self) -> Iterator[int]:
        """Add to `lost` the mails of the salvaged log that are not finished and have no intact
        file; yield their slots."""
        for mail_id, history in self._salvaged.histories.items():
            last = history.last
            if last is None or history.is_over or mail_id in self._whole:
                continue
            if not self._has_ended(mail_id, last.slot, history):
                missing = "" if last.slot in self._holders else ", which is missing"
                name = UUID(bytes=last.enqueue_id)
                self.lost.append(f"{name} in spool file {last.slot}{missing}")
                yield last.slot

    def _has_ended(self, mail_id: bytes, slot: int, history: MailHistory) -> bool:
        """True if a mail without an intact file has ended, though its FINISH is gone: its slot has
        another mail or is free, or its file was removed."""
        if slot in self._holders:
            return self._holders[slot] not in (None, mail_id)
        return slot not in self._salvaged.moved and history.seems_over

    def _lost_files(self, named: set[int]) -> Iterator[int]:
        """Add to `lost` the unreadable files of mails not known as finished; yield their slots."""
        for slot, error in self._unreadable.items():
            holder = self._holders[slot]
            if slot in named or holder == FREE:
                continue
            if holder is not None and self._salvaged.histories.get(holder, MailHistory()).is_over:
                self.finished += 1
                continue
            name = "a file" if holder is None else f"mail {UUID(bytes=holder)}"
            self.lost.append(f"{name} in spool file {slot} ({error})")
            yield slot

    def _quarantine_file(self, slot: int) -> None:
        """Rename a file for an administrator to inspect: into quarantine or, if that is on another
        disk, in its directory. Of a file that other mails have too, copy the place and free it.
        Where the disk refuses that, it stays."""
        target = self._quarantine / f"{SPOOL_FILE}{slot}"
        if kind_of(slot) != OWN_FILE:
            with suppress(StoreFailed):
                self._copy(slot, target)
                self._spool_files.free(slot)
            return
        source = self._layout.spool_file(slot)
        for goal in (target, source.with_name(f"{source.name}.damaged")):
            try:
                self._files.rename(source, goal)
            except StoreFailed:
                continue
            with suppress(StoreFailed):
                self._files.sync_directory(goal.parent)
            return

    def _copy(self, slot: int, target: PurePath) -> None:
        """Copy what the disk returns of a place; the rest is zeros. Raises: StoreFailed."""
        source = self._files.open(self._layout.spool_file(slot))
        copy = self._files.open(target, create=True)
        try:
            pieces = readable(source, offset_of(slot), PLACE_SIZES[kind_of(slot)], self._salvaged)
            copy.pwrite(0, *pieces)
            copy.sync()
        finally:
            source.close()
            copy.close()
        self._files.sync_directory(target.parent)


def _record_of(
    slot: int, header: SpoolHeader, whole: Envelope, history: MailHistory
) -> EnvelopeRecord | None:
    """Return the ENVELOPE of a mail by spool file and history; None: no recipient is left."""
    if history.is_over:
        return None
    record = history.last or EnvelopeRecord(
        mail_id=header.mail_id,
        enqueue_id=header.mail_id,
        slot=slot,
        entry_number=0,
        envelope=whole,
        numbers=tuple(range(len(whole.recipients))),
        accepted_us=header.accepted_us,
        enqueued_us=header.accepted_us,
        size_bytes=header.content_length,
    )
    addresses = dict(enumerate(whole.recipients))
    failed = {n: (addresses[n], text) for n, text in history.failures.items() if n in addresses}
    record = record._replace(
        slot=slot,
        entry_number=record.entry_number + 1,
        predecessor=(NEW, 0),
        held=history.held or (history.is_unknown and whole.is_quarantined),
        failures={**record.failures, **failed},
    )
    if record.dead:
        return record
    left = dict(zip(record.numbers, record.envelope.recipients, strict=True))
    left = {number: to for number, to in left.items() if number not in history.finished}
    if left:
        return with_recipients(record, left)
    return as_dead_letter(record, {}, ALL_FINISHED)
