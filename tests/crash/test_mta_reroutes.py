"""`postroad mta` obeys a reroute that was made before it was killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.programs import Program
from support.sink import Sink
from support.small_mta import an_mta, send, until_empty


async def command(folder: Path, root: Path, *arguments: str) -> None:
    name, *options = arguments
    program = await Program.start(folder, name, "--queue", f"embedded://{root}", *options)
    assert await program.process.wait() == 0, program.log.read_text()


async def test_a_reroute_outlives_the_process_and_holds_for_its_first_mail(tmp_path: Path) -> None:
    root = tmp_path / "store"
    async with Sink() as usual, Sink() as other:
        program, port = await an_mta(tmp_path, root, usual.port)
        await asyncio.to_thread(send, port, ["one"])
        await until_empty(root)
        to = ("--to", f"127.0.0.1:{other.port}", "--tls", "none")
        held = ("--for", "1h", "--reason", "it is broken")
        await command(tmp_path, root, "reroute", "--site", "127.0.0.1", *to, *held)
        await program.kill()

        program, port = await an_mta(tmp_path, root, usual.port)
        await asyncio.to_thread(send, port, ["two"])
        await until_empty(root)
        await program.stop()

    assert [list(each.recipients) for each in usual.mails] == [["one@dest.example"]]
    assert [list(each.recipients) for each in other.mails] == [["two@dest.example"]]
