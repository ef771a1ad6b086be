"""`verify` finds damage wherever it is; `rebuild` brings back every unfinished mail."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from contract.queue_harness import names, plain_mail
from crash.accidents import (
    LEFT,
    bit_flipped_in_the_first_record,
    checkpoint_deleted,
    checkpoint_zeroed,
    envelope_of,
    every_segment_zeroed,
    fill,
    log_deleted,
    rewrite_record,
    unreadable_record,
)
from postroad import open_queue
from postroad.adapters.disk.files import DiskFiles
from postroad.bootstrap.embedded_store import dump_directory, rebuild_directory, verify_directory
from postroad.domain.mail.mail import QUARANTINE
from postroad.domain.queues.selection import Selector
from postroad.embedded.log.envelopes import decode_envelope, encode_envelope
from postroad.embedded.log.layout import Layout
from postroad.embedded.log.spool_files import content_at
from postroad.embedded.store.archive import read_archive
from postroad.errors import StoreDamaged, StoreInUse


@pytest.fixture
async def root(tmp_path: Path) -> Path:
    return await fill(tmp_path / "store")


async def test_whole_store_is_whole(root: Path) -> None:
    report = verify_directory(root)

    assert report.damage == []
    assert (report.mails, report.dead_letters) == (len(LEFT), 1)
    checkpoint, *records = dump_directory(root)
    assert checkpoint["record"] == "checkpoint"
    assert report.records == len(records)


async def test_dump_prints_every_kind_of_record(root: Path) -> None:
    kinds = {record["record"] for record in dump_directory(root)}

    assert kinds == {"checkpoint", "envelope", "start", "delivery", "finish", "outcomes"}


async def test_store_that_is_in_use_is_left_alone(root: Path) -> None:
    async with open_queue(f"embedded://{root}"):
        with pytest.raises(StoreInUse):
            verify_directory(root)
        with pytest.raises(StoreInUse):
            await rebuild_directory(root)


ACCIDENTS = [
    unreadable_record,
    log_deleted,
    checkpoint_deleted,
    checkpoint_zeroed,
    every_segment_zeroed,
    bit_flipped_in_the_first_record,
]


@pytest.mark.parametrize("accident", ACCIDENTS, ids=lambda each: each.__name__)
async def test_damaged_store_is_reported_never_opened_empty_and_rebuilt(
    root: Path, accident: Callable[[Path], None]
) -> None:
    accident(root)

    assert verify_directory(root).damage
    with pytest.raises(StoreDamaged):
        await open_queue(f"embedded://{root}", create=True)
    rebuilt = await rebuild_directory(root)

    assert rebuilt.lost == []
    assert verify_directory(root).damage == []
    async with open_queue(f"embedded://{root}") as queue:
        found = [*await names(queue.browse()), *await names(queue.dead_letters())]
    assert set(found) >= LEFT | {"dead"}
    assert set(found) <= LEFT | {"dead", "done"}
    assert len(found) == len(set(found))


@pytest.mark.parametrize("is_released", [False, True])
async def test_mail_that_was_accepted_as_held_stays_held_without_its_log(
    tmp_path: Path, is_released: bool
) -> None:
    held = replace(plain_mail("held"), attributes={QUARANTINE: "spam"})
    async with open_queue(f"embedded://{tmp_path}", create=True) as queue:
        await queue.enqueue(held)
        if is_released:
            await queue.release(Selector.all())
    if not is_released:
        log_deleted(tmp_path)

    await rebuild_directory(tmp_path)

    async with open_queue(f"embedded://{tmp_path}") as queue:
        assert [each.held async for each in queue.browse()] == [not is_released]


@pytest.mark.parametrize("accident", [unreadable_record, checkpoint_deleted])
async def test_history_in_quarantine_is_named_as_dropped(
    root: Path, accident: Callable[[Path], None]
) -> None:
    layout = Layout(root, root / "mail")
    accident(root)
    await rebuild_directory(root)
    assert read_archive(DiskFiles(), layout) is None, "a rebuild archives no store"
    (root / "archive").mkdir()

    await rebuild_directory(root)

    found = read_archive(DiskFiles(), layout)
    assert found is not None
    (dropped,) = found.dropped
    assert 0 < dropped.first_us < dropped.before_us
    async with open_queue(f"embedded://{root}") as queue:
        assert set(await names(queue.browse())) >= LEFT


async def test_rebuild_believes_what_the_old_log_still_says(root: Path) -> None:
    checkpoint_deleted(root)

    await rebuild_directory(root)

    async with open_queue(f"embedded://{root}") as queue:
        views = {view.mail.name: view async for view in queue.browse()}
        assert set(views) == LEFT
        assert views["partly"].mail.recipients == ("partly-b@y.example",)
        assert views["held"].held
        assert views["late"].due_at is not None
        assert await names(queue.dead_letters()) == ["dead"]


async def test_every_flipped_bit_of_the_log_is_found_or_harmless(root: Path) -> None:
    """One bit at a time: either the damage is reported, or all mails are there as before."""
    expected = [record for record in dump_directory(root) if record["record"] == "envelope"]
    randomness, reported = random.Random(6), 0
    for segment in (root / "log").iterdir():
        whole = segment.read_bytes()
        end = max(whole.rfind(b"PRf1") + 600, 64)
        first = whole.index(b"PRf1")
        for _ in range(40):
            data = bytearray(whole)
            at = randomness.choice([randomness.randrange(64), randomness.randrange(first, end)])
            if at >= len(data):
                continue
            data[at] ^= 1 << randomness.randrange(8)
            segment.write_bytes(data)

            if verify_directory(root).damage:
                reported += 1
            else:
                found = [each for each in dump_directory(root) if each["record"] == "envelope"]
                is_last = len(found) == len(expected) - 1  # it looks like a torn tail, see A6
                assert found == expected or is_last, f"{segment.name} {at}"
        segment.write_bytes(whole)
        assert verify_directory(root).damage == [], "it was the bit that was reported"

    assert reported > 100


def damage_content(root: Path, name: str) -> int:
    """Flip a bit in the content of a mail; return its slot."""
    slots = [
        record["slot"]
        for record in dump_directory(root)
        if record.get("name") == name and not record["garbage"]
    ]
    file = Path(Layout(root, root / "mail").spool_file(slots[0]))
    data = bytearray(file.read_bytes())
    data[content_at(slots[0]) + 8] ^= 1
    file.write_bytes(data)
    return int(slots[0])


async def test_mail_whose_content_is_damaged_is_named_and_kept(root: Path) -> None:
    slot = damage_content(root, "waits")

    assert any("does not hold" in each for each in verify_directory(root).damage)
    rebuilt = await rebuild_directory(root)

    assert len(rebuilt.lost) == 1
    assert [each.name for each in Path(rebuilt.quarantine).glob("mail-*")] == [f"mail-{slot}"]
    assert verify_directory(root).damage == []


async def test_two_mails_of_one_spool_file_are_reported_and_told_apart(root: Path) -> None:
    (slot,) = (each["slot"] for each in dump_directory(root) if each.get("name") == "newest")

    def of_another(payload: bytes) -> bytes:
        return encode_envelope(decode_envelope(payload)._replace(slot=slot))

    rewrite_record(root, envelope_of("waits"), of_another)

    claimed, foreign = sorted(verify_directory(root).damage, reverse=True)
    assert claimed == f"two mails claim spool file {slot}"
    assert foreign.startswith(f"spool file {slot} does not hold mail ")
    assert (await rebuild_directory(root)).lost == []
    assert verify_directory(root).damage == []
    async with open_queue(f"embedded://{root}") as queue:
        assert set(await names(queue.browse())) == LEFT


async def test_a_second_rebuild_does_not_believe_what_the_first_one_put_aside(root: Path) -> None:
    """What was lost is named once, and so is what could not be read."""
    unreadable_record(root)
    damage_content(root, "waits")
    first = await rebuild_directory(root)
    async with open_queue(f"embedded://{root}") as queue:
        items = queue.dequeue()
        await (await anext(items)).done()
        await queue.enqueue(plain_mail("between"))
    checkpoint_deleted(root)

    second = await rebuild_directory(root)

    assert (len(first.lost), first.unreadable_records) == (1, 1)
    assert (second.lost, second.unreadable_records) == ([], 0)
    async with open_queue(f"embedded://{root}") as queue:
        assert set(await names(queue.browse())) == LEFT - {"waits", "newest"} | {"between"}
        assert await names(queue.dead_letters()) == ["dead"]
