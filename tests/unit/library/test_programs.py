"""Whole programs of users, each in a process of its own; those of the page too."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from postroad import Mail, open_queue
from support.repository import ROOT
from unit.library.programs.web_app import made

PROGRAMS = Path(__file__).with_name("programs")
PAGES = [ROOT / "docs/library.md", *sorted((ROOT / "docs/how-to").glob("*.md"))]
TEXT = "".join(page.read_text() for page in PAGES)
BLOCKS = re.findall(r"^```python\n(# (\w+)\n.*?)^```", TEXT, re.S | re.M)


async def begin(*command: str, folder: Path) -> Process:
    path = f"{ROOT / 'operator'}:{folder}"
    environment = {**os.environ, "PYTHONPATH": path, "HOME": str(folder)}
    return await create_subprocess_exec(
        sys.executable, *command, stdout=PIPE, stderr=PIPE, env=environment, cwd=folder
    )


async def run(*command: str, folder: Path) -> str:
    """The output of a program that succeeds."""
    program = await begin(*command, folder=folder)
    output, errors = await program.communicate()
    assert program.returncode == 0, (output + errors).decode()
    return output.decode()


@pytest.mark.parametrize(
    ("program", "arguments", "output"),
    [
        ("bulk.py", ["1000"], "1000 1000\n"),
        ("two_processes.py", [], "400\n"),
        ("cancel.py", [], "50\n"),
        ("script.py", [], "20\n21\n"),
        ("several_consumers.py", [], "100 100\n"),
        ("django_mail.py", [], "1\n"),
        ("bulk_import.py", [], "500\n500\n500\n"),
    ],
)
async def test_a_program_does_what_it_says(
    program: str, arguments: list[str], output: str, tmp_path: Path
) -> None:
    url = f"embedded://{tmp_path}/queue"

    assert await run(str(PROGRAMS / program), url, *arguments, folder=tmp_path) == output


async def test_a_consumer_ends_by_sigterm_behind_its_last_mail(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/queue"
    program = await begin(str(PROGRAMS / "consumer.py"), url, folder=tmp_path)
    async with asyncio.timeout(60):
        while not (tmp_path / "queue" / "lock").exists():
            await asyncio.sleep(0.01)
        async with open_queue(url) as queue:
            await queue.enqueue_all(Mail(None, ["b@c"], each) for each in (b"flaky", b"boom"))
            assert program.stdout is not None
            assert await program.stdout.readline() == b"done flaky\n"
            while not [each async for each in queue.dead_letters()]:
                await asyncio.sleep(0.01)
            program.send_signal(signal.SIGTERM)
            output, errors = await program.communicate()

    assert program.returncode == 0, errors
    assert output.decode() == (
        "['not delivered in 3 attempts: 451 4.3.0 the function raised RuntimeError']\n"
    )


async def test_a_web_application_queues_once_for_an_address(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/queue"
    async with TestClient(TestServer(await made(url))) as client:
        answers = [
            await client.post("/signup", data={"email": email})
            for email in ("b@example.net", "b@example.net", "nonsense")
        ]
        texts = [await each.text() for each in answers]

    assert [each.status for each in answers] == [200, 200, 400]
    assert texts[0] == texts[1]
    assert texts[2] == "recipients: an address has no '@'"


PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "-c/dev/null"]
PYTEST += ["-W", "error::pytest.PytestAssertRewriteWarning"]


@pytest.mark.parametrize(("program", "passed"), [("case_signup.py", 2), ("case_isolation.py", 2)])
async def test_a_test_file_passes(program: str, passed: int, tmp_path: Path) -> None:
    output = await run(*PYTEST, str(PROGRAMS / program), folder=tmp_path)

    assert re.search(rf"\b{passed} passed", output), output


@pytest.mark.parametrize(("text", "name"), BLOCKS, ids=[name for _, name in BLOCKS])
async def test_an_example_of_the_pages_runs(text: str, name: str, tmp_path: Path) -> None:
    for other, of in BLOCKS:
        (tmp_path / f"{of}.py").write_text(
            other.replace("embedded:///var/", f"embedded://{tmp_path}/")
        )

    if name == "consume":
        await run(str(tmp_path / "send.py"), folder=tmp_path)
        program = await begin(str(tmp_path / f"{name}.py"), folder=tmp_path)
        assert program.stdout is not None
        assert (await program.stdout.readline()).endswith(b" Welcome\n")
        program.send_signal(signal.SIGTERM)
        assert await program.wait() == 0
    elif name.startswith("test_"):
        assert " passed" in await run(*PYTEST, str(tmp_path / f"{name}.py"), folder=tmp_path)
    else:
        await run(str(tmp_path / f"{name}.py"), folder=tmp_path)


def test_the_pages_have_examples_and_each_has_a_name_of_its_own() -> None:
    assert len(BLOCKS) >= 7
    assert len(BLOCKS) == TEXT.count("```python\n") == len({name for _, name in BLOCKS})
