"""`postroad mta` over a directory, with one next hop: it is started, gets mail, and is killed."""

from __future__ import annotations

import asyncio
import smtplib
from collections.abc import Mapping, Sequence
from pathlib import Path

from postroad import open_queue
from support.programs import Program
from support.sink import Sink


async def an_mta(
    folder: Path,
    root: Path,
    sink_port: int,
    receivers: int = 0,
    environment: Mapping[str, str] | None = None,
) -> tuple[Program, int]:
    program = await Program.start(
        folder,
        *("mta", "--queue", f"embedded://{root}", "--listen", "127.0.0.1:0"),
        *("--relay", f"127.0.0.1:{sink_port}", "--tls", "none", "--receivers", str(receivers)),
        environment={"POSTROAD_RETRY_LANES": "1s", **(environment or {})},
    )
    return program, await program.port("listening")


def send(port: int, names: Sequence[str]) -> list[str]:
    """Send mails one after the other; return those that were answered with 250."""
    accepted = []
    try:
        with smtplib.SMTP("127.0.0.1", port) as client:
            for name in names:
                client.sendmail(
                    "a@origin.example", [f"{name}@dest.example"], f"Subject: {name}\r\n\r\nx\r\n"
                )
                accepted.append(name)
    except (smtplib.SMTPException, OSError):
        pass  # it was killed
    return accepted


async def until_empty(root: Path) -> None:
    async with open_queue(f"embedded://{root}") as queue:
        while (await queue.size()).size:
            await asyncio.sleep(0.1)


async def kill_amid_mail(
    folder: Path,
    root: Path,
    sink: Sink,
    lives: Sequence[Sequence[Sequence[str]]],
    *,
    behind: int,
    receivers: int = 0,
) -> list[str]:
    """Kill an MTA once for each of `lives`, which has the names of the mails of each client, when
    `behind` more mails have arrived at the sink; then let it deliver what is left.

    Returns the names that it accepted.
    """
    accepted = list[str]()
    for clients in lives:
        program, port = await an_mta(folder, root, sink.port, receivers)
        sending = [asyncio.create_task(asyncio.to_thread(send, port, each)) for each in clients]
        before = len(sink.mails)
        while len(sink.mails) < before + behind:
            await asyncio.sleep(0.01)
        await program.kill()
        accepted += [name for each in await asyncio.gather(*sending) for name in each]
    program, _ = await an_mta(folder, root, sink.port)
    await until_empty(root)
    await program.stop()
    return accepted
