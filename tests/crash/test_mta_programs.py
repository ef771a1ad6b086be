"""`postroad mta` that hands its mail to programs: killed amid mail, it repeats a mail with its key;
a function gets what a client sent."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from postroad import Mail, open_queue
from support.programs import Program
from support.small_mta import send, until_empty
from support.webhook_server import SECRET, WebhookServer

MAILS, LIVES = 30, 1


async def an_mta(folder: Path, root: Path, *options: str) -> Program:
    return await Program.start(
        folder,
        *("mta", "--queue", f"embedded://{root}", "--listen", "127.0.0.1:0", *options),
        environment={"POSTROAD_RETRY_LANES": "1s", "PYTHONPATH": f"{folder}:operator"},
    )


async def test_a_mail_that_is_repeated_after_a_kill_has_the_same_key(tmp_path: Path) -> None:
    root, secrets = tmp_path / "store", tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "secret").write_text(SECRET)
    async with open_queue(f"embedded://{root}", create=True) as queue:
        for number in range(MAILS):
            await queue.enqueue(Mail("a@o.example", (f"r{number}@d.example", "s@d.example"), b"x"))
    async with WebhookServer() as server:
        options = ("--webhook", server.url, "--webhook-login-folder", str(secrets))
        for _ in range(LIVES):
            server.gate.clear()
            program, before = await an_mta(tmp_path, root, *options), len(server.requests)
            while len(server.requests) < before + 5:  # read, and not answered
                await asyncio.sleep(0.005)
            await program.kill()
            server.gate.set()
        program = await an_mta(tmp_path, root, *options)
        await until_empty(root)
        await program.stop()

    keys = Counter(each.key for each in server.requests)
    recipients = {each.envelope["recipients"][0] for each in server.requests}
    assert recipients == {f"r{number}@d.example" for number in range(MAILS)}
    assert len(keys) == MAILS, "one key for each mail, however often it came"
    assert len(server.requests) >= MAILS + 5 * LIVES
    assert all(each.is_signed_by(SECRET) for each in server.requests)
    assert "hunter2" not in "".join(each.read_text() for each in tmp_path.glob("*.log"))


async def test_a_function_gets_the_mail_of_an_mta(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "from pathlib import Path\n"
        "from postroad import HandedMail, Outcome\n\n\n"
        "def take(mail: HandedMail) -> Outcome:\n"
        f"    Path({str(tmp_path)!r}, mail.key + '.eml').write_bytes(mail.content)\n"
        "    return Outcome.delivered()\n"
    )
    program = await an_mta(tmp_path, tmp_path / "store", "--function", "python:app:take")
    port = await program.port("listening")
    accepted = await asyncio.to_thread(send, port, ["one", "two"])
    await until_empty(tmp_path / "store")
    await program.stop()

    taken = [each.read_bytes() for each in tmp_path.glob("*.eml")]
    assert accepted == ["one", "two"]
    assert sorted(each.partition(b"Subject: ")[2] for each in taken) == [
        b"one\r\n\r\nx\r\n",
        b"two\r\n\r\nx\r\n",
    ]
