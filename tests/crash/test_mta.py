"""`postroad mta` over a directory: no server, one process; killed at any time, it loses nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from support.programs import Program
from support.sink import Sink
from support.small_mta import an_mta, kill_amid_mail, send, until_empty


@pytest.mark.parametrize("receivers", [0, 2])
async def test_mails_pass_and_the_queue_can_be_asked_meanwhile(
    tmp_path: Path, receivers: int
) -> None:
    root, names = tmp_path / "store", [f"mail{number}" for number in range(30)]
    async with Sink() as sink:
        program, port = await an_mta(tmp_path, root, sink.port, receivers)
        try:
            accepted = await asyncio.to_thread(send, port, names)
            asked = await Program.start(tmp_path, "size", "--queue", f"embedded://{root}", "--json")
            assert await asked.stop_by_itself() == 0
            await until_empty(root)
        finally:
            code = await program.stop()

    assert code == 0
    assert accepted == names
    counted = {"size", "delayed", "held", "dead_letters", "oldest_due"}
    assert set(json.loads(asked.log.read_text())) == counted
    assert Counter(to for mail in sink.mails for to in mail.recipients) == Counter(
        f"{name}@dest.example" for name in names
    )


@pytest.mark.parametrize("receivers", [0, 2])
async def test_killed_again_and_again_it_loses_nothing_that_it_accepted(
    tmp_path: Path, receivers: int
) -> None:
    lives = [
        [[f"life{life}client{c}mail{n}" for n in range(200)] for c in range(4)] for life in range(4)
    ]
    async with Sink() as sink:
        accepted = await kill_amid_mail(
            tmp_path, tmp_path / "store", sink, lives, behind=20, receivers=receivers
        )

    arrived = Counter(to.partition("@")[0] for mail in sink.mails for to in mail.recipients)
    assert set(accepted) <= set(arrived)
    assert len(accepted) >= 4 * (20 - 4)  # the last mail of each client may lack its answer


async def receivers_of(program: Program) -> list[int]:
    """Return the ids of a program's children."""
    return [
        int(status.parent.name)
        for status in Path("/proc").glob("[0-9]*/stat")
        if int(status.read_text().rpartition(")")[2].split()[1]) == program.pid
    ]


async def test_a_receiver_that_ends_ends_the_mta_and_an_mta_that_ends_its_receivers(
    tmp_path: Path,
) -> None:
    """No process of an MTA runs alone; its supervisor starts all of it again."""
    async with Sink() as sink:
        program, port = await an_mta(tmp_path, tmp_path / "store", sink.port, receivers=2)
        assert await asyncio.to_thread(send, port, ["one"]) == ["one"]
        first, second = map(Path, (f"/proc/{child}" for child in await receivers_of(program)))
        os.kill(int(first.name), signal.SIGKILL)
        assert await program.stop_by_itself() != 0
        assert not second.exists()

        program, port = await an_mta(tmp_path, tmp_path / "store", sink.port, receivers=1)
        assert await asyncio.to_thread(send, port, ["two"]) == ["two"]
        (only,) = map(Path, (f"/proc/{child}" for child in await receivers_of(program)))
        await program.kill()
        while only.exists():
            await asyncio.sleep(0.05)


async def test_the_store_has_no_owner_before_the_last_receiver_of_the_owner_before_has_ended(
    tmp_path: Path,
) -> None:
    """It may still be writing into a spool file: it holds the lock too (FORMAT.md 4)."""
    root = tmp_path / "store"
    async with Sink() as sink:
        program, port = await an_mta(tmp_path, root, sink.port, receivers=1)
        assert await asyncio.to_thread(send, port, ["one"]) == ["one"]
        (receiver,) = await receivers_of(program)
        os.kill(receiver, signal.SIGSTOP)
        os.kill(program.pid, signal.SIGKILL)
        await program.stop_by_itself()
        try:
            asked = await Program.start(tmp_path, "verify", str(root))
            assert await asked.stop_by_itself() != 0
            assert "a process owns" in asked.log.read_text()
        finally:
            os.kill(receiver, signal.SIGCONT)  # it finds its parent gone, and ends

        program, port = await an_mta(tmp_path, root, sink.port, receivers=1)
        assert await asyncio.to_thread(send, port, ["two"]) == ["two"]
        await until_empty(root)
        await program.stop()

    assert {to for mail in sink.mails for to in mail.recipients} == {
        "one@dest.example", "two@dest.example",
    }  # fmt: skip


async def test_an_orphan_that_was_draining_already_ends_soon(tmp_path: Path) -> None:
    """A client in the middle of a mail has half a minute when the MTA drains, and no longer when
    the MTA is killed meanwhile: the next owner waits for the end of its receivers."""
    root = tmp_path / "store"
    async with Sink() as sink:
        program, port = await an_mta(tmp_path, root, sink.port, receivers=1)
        (receiver,) = await receivers_of(program)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for command in (b"HELO x", b"MAIL FROM:<a@x.example>", b"RCPT TO:<b@y.example>", b"DATA"):
            await reader.readline()
            writer.write(command + b"\r\n")
        assert (await reader.readline()).startswith(b"354")
        assert not is_draining(receiver, port)
        os.kill(program.pid, signal.SIGTERM)
        while not is_draining(receiver, port):
            await asyncio.sleep(0.05)
        os.kill(program.pid, signal.SIGKILL)
        await program.stop_by_itself()

        async with asyncio.timeout(60):
            while Path(f"/proc/{receiver}").exists():
                await asyncio.sleep(0.1)
        writer.close()


def is_draining(receiver: int, port: int) -> bool:
    """Whether a process has closed the socket that it listened on, and accepts no client."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = {line[9] for line in lines if line[1].endswith(f":{port:04X}") and line[3] == "0A"}
    links = set()
    for each in Path(f"/proc/{receiver}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.add(str(each.readlink()))
    return not links & {f"socket:[{inode}]" for inode in listening}
