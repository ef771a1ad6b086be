"""The suite bites: each rule of FORMAT.md, undone alone, breaks a promise that it then names.

What is undone here are the resolutions of the holes by which the scheme would lose mail on power
loss (AMB-3 to AMB-6), the order of the answer and the sync, and the rules R1, R3 and R5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from crash.cuts import check_cuts
from crash.lossy import LossyFile, LossyFiles
from crash.script import (
    Phase,
    aging,
    changing_minds,
    crowd,
    first_mails,
    hurried,
    imported,
    received,
    record,
)
from crash.world import Broken, Outside, start
from postroad.domain.mail.shapes import Shape
from postroad.embedded.log import frames, spool_files
from postroad.embedded.log.lanes import LaneLog
from postroad.embedded.log.layout import MAX_PACK_BYTES, NEW, offset_of
from postroad.embedded.log.records import DeliveryRecord
from postroad.embedded.log.spool_files import Filling, NewMail, SpoolFiles
from postroad.embedded.store import enqueue, leases, maintenance
from postroad.embedded.store.engine import Engine
from postroad.embedded.store.maintenance import Maintenance, Snapshot
from postroad.embedded.store.owner import OwnedQueue
from postroad.errors import PostroadError, QueueClosed
from support.memory.clock import ManualClock


async def broken(*phases: Phase) -> str:
    """Record a run of the store as it is now and return the promise that a cut breaks."""
    journal = await record(*phases)
    with pytest.raises((Broken, PostroadError)) as found:
        await check_cuts(journal)
    return str(found.value)


@pytest.mark.parametrize("phases", [(crowd, aging), (hurried,), (received,), (imported,)])
async def test_nothing_undone_breaks_nothing(phases: tuple[Phase, ...]) -> None:
    journal = await record(*phases)

    assert await check_cuts(journal, every=5 if len(phases) > 1 else 1) > 50


async def test_amb_3_a_header_is_no_proof_of_the_bytes_under_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Undone: a set envelope offset means a complete mail."""
    monkeypatch.setattr(spool_files, "_is_whole", lambda *_: True)

    assert "calls junk a mail" in await broken(crowd)


async def test_amb_4_a_garbage_flag_is_written_only_behind_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Undone: garbage flags are written as soon as their STARTs are appended."""
    honest = leases.start

    def eager(engine: Engine, entry: Any, waiting: Any) -> None:
        honest(engine, entry, waiting)
        if entry.segment.file is not None:
            entry.segment.write_garbage_flags([entry.ordinal])

    monkeypatch.setattr(leases, "start", eager)

    assert "P1" in await broken(crowd)


async def test_amb_4_garbage_flags_wait_for_the_sync_of_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Undone: a checkpoint writes garbage flags before it syncs the lanes."""
    honest = Maintenance._snapshot

    def hasty(self: Maintenance) -> Snapshot | None:
        snapshot = honest(self)
        for segment, numbers in snapshot.garbage.items() if snapshot else ():
            if segment.file is not None:
                segment.write_garbage_flags(numbers)
        return snapshot

    monkeypatch.setattr(Maintenance, "_snapshot", hasty)

    assert "P1" in await broken(aging)


async def test_amb_5_a_segment_is_synced_before_the_next_one_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Undone: rotation without a barrier."""
    honest = LaneLog._write

    def without_barrier(self: LaneLog, batches: Any, to_sync: Any) -> None:
        honest(self, [replace(each, earlier=None) for each in batches], to_sync)

    monkeypatch.setattr(LaneLog, "_write", without_barrier)

    assert "is damaged" in await broken(crowd)


async def test_amb_6_segments_go_only_behind_a_completed_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Undone: segments are removed before the checkpoint is written."""
    honest = Maintenance._write

    def removed_first(self: Maintenance, snapshot: Snapshot) -> None:
        for lane, state in snapshot.checkpoint.lanes.items():
            for segment in self._engine.lanes[lane].segments:
                if segment.sequence < state.first_sequence:
                    path = self._engine.layout.segment(lane, segment.sequence)
                    self._engine.files.unlink(path)
        self._engine.files.sync_directory(self._engine.layout.log)
        honest(self, snapshot)

    monkeypatch.setattr(Maintenance, "_write", removed_first)

    assert "missing" in await broken(aging)


async def test_amb_6_a_segment_stays_while_it_may_hold_what_the_index_does_not_know_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Undone: only entries that are durable count."""
    honest = maintenance._first_needed

    def hasty(lane: LaneLog, scan_from: int | None) -> int:
        known, lane.durable = lane.durable, lane.end
        try:
            return honest(lane, scan_from)
        finally:
            lane.durable = known

    monkeypatch.setattr(maintenance, "_first_needed", hasty)

    assert "P1" in await broken(hurried)


async def test_amb_6_a_checkpoint_syncs_the_lanes_that_it_names_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Undone: old segments go while the replacements of their mails are not durable."""
    honest = LaneLog._write

    def only_new(self: LaneLog, batches: Any, to_sync: Any) -> None:
        honest(self, batches, to_sync if self.lane == NEW else None)

    monkeypatch.setattr(LaneLog, "_write", only_new)

    assert "is damaged" in await broken(aging)


@pytest.mark.parametrize("phase", [crowd, imported])
async def test_the_answer_waits_for_the_sync_of_the_spool_file(
    monkeypatch: pytest.MonkeyPatch, phase: Phase
) -> None:
    """Undone: one sync less on the spool file."""

    def unsynced(self: SpoolFiles, *mails: NewMail) -> list[Shape]:
        file = self._taken(mails[0].slot)
        return [Filling(file, offset_of(each.slot)).finish(each) for each in mails]

    monkeypatch.setattr(SpoolFiles, "store", unsynced)

    assert "lost its content" in await broken(phase)


async def test_the_answer_waits_for_the_sync_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undone: `enqueue` returns when its record is appended."""

    async def impatient(engine: Engine, waiting: Any, json: bytes, *rest: Any) -> None:
        engine.admit(waiting, engine.write(waiting, json))

    monkeypatch.setattr(enqueue, "_accept", impatient)

    assert "P1" in await broken(crowd)


@pytest.mark.parametrize("phase", [crowd, received, imported])
async def test_the_process_that_stores_a_mail_syncs_it_before_it_is_queued(
    monkeypatch: pytest.MonkeyPatch, phase: Phase
) -> None:
    """Undone: the sync of the spool file comes after the answer."""
    monkeypatch.setattr(LossyFile, "sync", _only_of_the_log(LossyFile.sync))

    assert "lost its content" in await broken(phase)


def _only_of_the_log(sync: Callable[[LossyFile], None]) -> Callable[[LossyFile], None]:
    def synced(self: LossyFile) -> None:
        if spool_files.MAGIC not in self.pread(0, MAX_PACK_BYTES):
            sync(self)

    return synced


async def test_a_receiver_is_answered_when_its_mail_is_durable_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Undone: the owner answers when it has appended the record."""

    honest = OwnedQueue.accept_stored

    def impatient(
        self: OwnedQueue, payload: bytes, leased: set[int]
    ) -> tuple[UUID, asyncio.Future[None]]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return honest(self, payload, leased)[0], done

    monkeypatch.setattr(OwnedQueue, "accept_stored", impatient)

    assert "P1" in await broken(received)


async def test_the_store_has_no_owner_while_a_receiver_of_the_owner_before_lives() -> None:
    """Undone: the next owner does not wait for the end of a process that shares the lock. What
    this receiver writes late goes into the file of another mail."""
    files, clock = LossyFiles(), ManualClock()
    queue = await start(files, clock)
    await queue.maintenance.recovering
    late = Outside(files, queue)
    await late.receive("early")  # and gets places for mails of this size
    await queue.close()

    queue = await start(files, clock, seed=1)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    for name in ("later", "other"):
        await outside.enqueue(name)
    with pytest.raises(QueueClosed):
        await late.receive("takes")
    await queue.close()

    with pytest.raises(Broken, match="lost its content"):
        await check_cuts(files.journal, every=len(files.journal.steps), first=0)


async def test_a_delivery_is_recorded_when_it_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undone: `record` returns when its record is appended."""

    async def impatient(engine: Engine, waiting: Any, heard: leases.RecipientsByOutcome) -> None:
        for (kind, text), numbers in heard.items():
            engine.append(
                NEW,
                DeliveryRecord(waiting.mail_id, waiting.entry_number, kind, tuple(numbers), text),
            )

    monkeypatch.setattr(leases, "deliver", impatient)

    assert "P2" in await broken(crowd)


async def test_r1_records_refer_only_to_durable_envelopes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Undone: an entry is started, or changed, before its envelope is durable."""

    async def trusting(self: Engine, entry: Any) -> None:
        pass

    monkeypatch.setattr(Engine, "wait_durable", trusting)

    assert "no ENVELOPE" in await broken(changing_minds)


async def test_r3_a_slot_is_released_only_behind_a_durable_finish(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Undone: the file of a finished mail goes to the pool before that is durable."""

    def at_once(engine: Engine, where: int, slot: int) -> None:
        engine.slots.release(slot)

    monkeypatch.setattr(leases, "_release_behind", at_once)

    assert "lost its content" in await broken(first_mails)


async def test_a_torn_tail_is_cut_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undone: frames are believed without their checksum."""
    honest = frames.frame_at

    def credulous(data: bytes, offset: int, seed: int) -> Any:
        found = honest(data, offset, seed)
        if found is not None or len(data) < offset + frames.HEAD.size:
            return found
        magic, _, length, record_type, _, mark, durable = frames.HEAD.unpack_from(data, offset)
        stop = offset + frames.HEAD.size + length
        if magic != frames.MAGIC or stop > len(data):
            return None
        end = offset + frames.frame_size(length)
        payload = data[offset + frames.HEAD.size : stop]
        return frames.Frame(offset, end, record_type, mark, durable, payload)

    monkeypatch.setattr(frames, "frame_at", credulous)
    journal = await record(crowd)

    with pytest.raises(Exception):  # noqa: B017  # junk may break anything
        await check_cuts(journal)
