"""Frames whose checksum is right and whose record cannot be read: another program wrote them.

`verify` and `dump` name them, `rebuild` counts them and goes by the spool file, a mail whose
ENVELOPE is one is set aside, and the store stops at those that decide what waits (FORMAT.md 5.2).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from contract.queue_harness import names, plain_mail
from crash.accidents import (
    LEFT,
    checkpoint_deleted,
    envelope_that_is_too_short,
    envelope_with_a_recipient_without_number,
    envelope_with_unreadable_domains,
    fill,
    record_of_a_later_release,
    rewrite_record,
    unparsable,
    unreadable_envelope,
    unreadable_record,
)
from postroad import Outcome, Selector, open_queue
from postroad.adapters.disk.files import DiskFiles
from postroad.bootstrap.embedded_store import dump_directory, rebuild_directory, verify_directory
from postroad.cli import main
from postroad.embedded.log.layout import Layout, offset_of
from postroad.embedded.log.records import ENVELOPE, FINISH, START, StartRecord, decode, encode
from postroad.embedded.log.segments import HEADER_BLOCK, position
from postroad.embedded.log.spool_files import NewMail, SpoolFiles
from postroad.errors import StoreDamaged

Accident = Callable[[Path], None]
OF_ENVELOPES = [
    unreadable_envelope,
    envelope_with_a_recipient_without_number,
    envelope_with_unreadable_domains,
]
OF_RECORDS = [unreadable_record, envelope_that_is_too_short]
"""Those that decide what waits."""

PLACE = r"log/new\.0000000001 at offset \d+: "


@pytest.fixture
async def root(tmp_path: Path) -> Path:
    return await fill(tmp_path / "store")


@pytest.mark.parametrize("accident", [*OF_ENVELOPES, *OF_RECORDS], ids=lambda each: each.__name__)
async def test_a_record_that_cannot_be_read_is_named_and_the_rest_is_shown(
    root: Path, accident: Accident
) -> None:
    before = len(list(dump_directory(root)))
    accident(root)

    damage, *more = verify_directory(root).damage
    assert "log/new.0000000001 at offset" in damage
    assert len(more) == (accident in OF_RECORDS)
    records = list(dump_directory(root))
    assert len(records) >= before
    assert sum("unreadable" in each["record"] for each in records) == 1


async def test_a_record_of_a_later_release_is_passed_over(root: Path) -> None:
    record_of_a_later_release(root)

    assert verify_directory(root).is_whole
    assert "unknown type 200" in [each["record"] for each in dump_directory(root)]
    async with open_queue(f"embedded://{root}") as queue:
        assert set(await names(queue.browse())) == LEFT
    assert (await rebuild_directory(root)).unreadable_records == 0
    async with open_queue(f"embedded://{root}") as queue:
        assert set(await names(queue.browse())) == LEFT


@pytest.mark.parametrize("accident", [*OF_ENVELOPES, *OF_RECORDS], ids=lambda each: each.__name__)
async def test_rebuild_goes_by_the_spool_file_where_a_record_cannot_be_read(
    root: Path, accident: Accident
) -> None:
    accident(root)

    rebuilt = await rebuild_directory(root)

    assert (rebuilt.unreadable_records, rebuilt.unreadable_parts, rebuilt.lost) == (1, 0, [])
    async with open_queue(f"embedded://{root}") as queue:
        views = {view.mail.name: view async for view in queue.browse()}
    assert set(views) == LEFT
    assert views["waits"].mail.recipients == ("waits-a@x.example", "waits-b@y.example")


@pytest.mark.parametrize("accident", OF_ENVELOPES, ids=lambda each: each.__name__)
async def test_a_mail_whose_envelope_cannot_be_read_is_set_aside_and_shown(
    root: Path, accident: Accident
) -> None:
    accident(root)

    async with open_queue(f"embedded://{root}") as queue:
        assert (await queue.size()).size == len(LEFT)
        shown = {view.mail.name: view.last_error async for view in queue.browse()}
        assert set(shown) == LEFT - {"waits"} | {"unreadable mail"}
        assert re.match(PLACE, shown["unreadable mail"] or "")


@pytest.mark.parametrize("accident", OF_RECORDS, ids=lambda each: each.__name__)
async def test_a_record_that_decides_what_waits_keeps_the_store_closed(
    root: Path, accident: Accident
) -> None:
    accident(root)

    with pytest.raises(StoreDamaged, match=PLACE):
        await open_queue(f"embedded://{root}")


@pytest.fixture
async def root_with_work(tmp_path: Path) -> Path:
    """A store whose one mail a consumer had as it was closed."""
    root = tmp_path / "store"
    async with open_queue(f"embedded://{root}", create=True) as queue:
        recipients = ("waits-a@x.example", "waits-b@y.example")
        await queue.enqueue(plain_mail("waits", recipients=recipients))
        item = await anext(queue.dequeue())
        await item.record(dict.fromkeys(recipients[:1], Outcome.delivered()))
    return root


async def test_an_envelope_that_was_being_worked_on_is_set_aside_at_each_start(
    root_with_work: Path,
) -> None:
    root = root_with_work
    unreadable_envelope(root)

    (damage,) = verify_directory(root).damage
    assert "at offset" in damage
    for _ in range(2):
        async with open_queue(f"embedded://{root}") as queue:
            await queue.maintain()
            assert await names(queue.browse()) == ["unreadable mail"]
            assert (await queue.size()).size == 1
    async with open_queue(f"embedded://{root}") as queue:
        assert await queue.remove(Selector.all()) == 1
    assert verify_directory(root).is_whole


@pytest.mark.parametrize("where", [position(1, 1 << 31), position(2, HEADER_BLOCK)])
async def test_a_start_that_names_a_place_outside_the_log_stops_the_store(
    root_with_work: Path, where: int
) -> None:
    def elsewhere(payload: bytes) -> bytes:
        record = decode(START, payload)
        assert isinstance(record, StartRecord)
        return encode(record._replace(position=where))[1]

    rewrite_record(root_with_work, lambda frame: frame.type == START, elsewhere)

    with pytest.raises(StoreDamaged, match="no ENVELOPE at new"):
        async with open_queue(f"embedded://{root_with_work}") as queue:
            await anext(queue.dequeue())


async def test_without_a_finish_verify_does_not_guess_what_waits(tmp_path: Path) -> None:
    """Its mail would look alive, and its slot is another's by now: damage that is none."""
    root = tmp_path / "store"
    async with open_queue(f"embedded://{root}", create=True) as queue:
        await queue.enqueue(plain_mail("ended"))
        await (await anext(queue.dequeue())).done()
        await asyncio.sleep(0.1)  # until its file is free
        await queue.enqueue(plain_mail("has its slot"))
    slots = {each["slot"] for each in dump_directory(root) if each["record"] == "envelope"}
    assert len(slots) == 1
    rewrite_record(root, lambda frame: frame.type == FINISH, lambda payload: payload[:-1] + b"?")

    report = verify_directory(root)

    unreadable, undetermined = report.damage
    assert "a record of type 4" in unreadable
    assert "waiting mail cannot be determined" in undetermined
    assert not report.is_determined
    shown = await asyncio.to_thread(CliRunner().invoke, main, ["verify", str(root)])
    assert shown.exit_code == 1
    assert "mails" not in shown.output


async def test_the_command_tells_what_of_the_old_log_could_not_be_read(root: Path) -> None:
    unreadable_envelope(root)

    shown = await asyncio.to_thread(CliRunner().invoke, main, ["rebuild", str(root)])

    assert shown.exit_code == 0, shown.output
    assert "1 of its records could not be read" in shown.output


@pytest.mark.parametrize("name", ["held", "dead"])
async def test_who_was_kept_back_is_held_though_the_envelope_cannot_be_read(
    root: Path, name: str
) -> None:
    rewrite_record(root, lambda frame: frame.type == ENVELOPE, unparsable, lane=name)

    assert (await rebuild_directory(root)).unreadable_records == 1
    async with open_queue(f"embedded://{root}") as queue:
        views = {view.mail.name: view async for view in queue.browse()}
        assert views[name].held


async def test_a_spool_file_whose_envelope_is_none_is_named_and_kept(root: Path) -> None:
    (waits,) = [each for each in dump_directory(root) if each.get("name") == "waits"]
    layout, slot = Layout(root, root / "mail"), waits["slot"]
    contents = SpoolFiles(DiskFiles(), layout)
    found = contents.verify(slot)
    assert found is not None
    contents.store(NewMail(slot, found[0].mail_id, b"content", b"[]", 1))
    contents.close()

    (damage,) = verify_directory(root).damage
    assert f"spool file {slot}" in damage
    for accident in (checkpoint_deleted, _log_and_checkpoint_deleted):
        accident(root)
        rebuilt = await rebuild_directory(root)

        assert rebuilt.mails == len(LEFT) - 1 + 1  # and the dead letter
        (lost,) = rebuilt.lost
        assert f"spool file {slot}" in lost
        aside = Path(rebuilt.quarantine) / f"mail-{slot}"
        assert aside.exists()
        with Path(layout.spool_file(slot)).open("r+b") as file:
            file.seek(offset_of(slot))
            file.write(aside.read_bytes())


def _log_and_checkpoint_deleted(root: Path) -> None:
    checkpoint_deleted(root)
    for segment in (root / "log").iterdir():
        segment.unlink()
