"""`postroad console` as a process: its link, its signals, and its end amid an operation."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from postroad import Mail, Selector, open_queue
from support.repository import ROOT

MAILS = 2500
"""Two portions and a half."""


@contextmanager
def a_process(*options: str) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-m", "postroad", "console", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "operator")},
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def link_of(process: subprocess.Popen[str]) -> str:
    """Return the address in the next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().removeprefix("open ").strip()


@contextmanager
def a_session(link: str) -> Iterator[httpx.Client]:
    base = link.partition("/?")[0]
    with httpx.Client(base_url=base, headers={"Origin": base}, timeout=60) as client:
        assert client.get(link).status_code == 303
        yield client


def store(folder: Path, count: int) -> str:
    url = f"embedded://{folder}/store"

    async def fill() -> None:
        async with open_queue(url, create=True) as queue:
            mails = [Mail("a@example.org", ("b@example.net",), b"x") for _ in range(count)]
            await asyncio.gather(*map(queue.enqueue, mails))

    asyncio.run(fill())
    return url


def test_the_first_line_is_a_link_and_a_hang_up_prints_another(tmp_path: Path) -> None:
    url = store(tmp_path, 1)
    with a_process("--queue", url, "--listen", "127.0.0.1:0") as process:
        link = link_of(process)
        with a_session(link) as client:
            [queue] = client.get("/api/v1/queues").json()["items"]
            assert (queue["namespace"], queue["name"], queue["sizes"]["size"]) == (
                "local",
                "store",
                1,
            )
            assert client.get("/readyz").text == "ready\n"
            assert "postroad_queue_mails" in client.get("/metrics").text
            assert client.get(link).status_code == 401

            process.send_signal(signal.SIGHUP)
            other = link_of(process)
            assert other != link
            with a_session(other):
                pass

        process.terminate()
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors
        assert "token" not in errors
        assert link.partition("token=")[2] not in errors


def test_an_operation_of_a_console_that_was_killed_is_done_by_the_same_request(
    tmp_path: Path,
) -> None:
    url = store(tmp_path, MAILS)
    wanted = {"operation": "hold", "selector": {"all": True}}
    path = "/api/v1/queues/local/store/operations"
    with (
        a_process("--queue", url, "--listen", "127.0.0.1:0") as process,
        a_session(link_of(process)) as client,
    ):
        begun = client.post(path, json=wanted).json()
        assert begun["matched"] == MAILS
        with client.stream("GET", f"{path}/{begun['id']}/events") as events:
            for line in events.iter_lines():
                if line.startswith("data: ") and json.loads(line[6:])["done"]:
                    break
            process.kill()
        process.wait()
    with (
        a_process("--queue", url, "--listen", "127.0.0.1:0") as process,
        a_session(link_of(process)) as client,
    ):
        begun = client.post(path, json=wanted).json()
        assert begun["matched"] == MAILS
        lines = client.get(f"{path}/{begun['id']}/events").text.splitlines()
        last = json.loads([each for each in lines if each.startswith("data: ")][-1][6:])
        assert last["phase"] == "Done"
        assert 0 < last["done"] < MAILS
        sizes = client.get("/api/v1/queues/local/store").json()["sizes"]
        assert (sizes["size"], sizes["held"]) == (MAILS, MAILS)


def test_a_console_works_beside_the_owner_of_a_directory_and_outlives_it(tmp_path: Path) -> None:
    url = store(tmp_path, 3)

    async def beside() -> None:
        owner = await open_queue(url)
        with a_process("--queue", url, "--listen", "127.0.0.1:0") as process:
            link = await asyncio.to_thread(link_of, process)
            base = link.partition("/?")[0]
            async with httpx.AsyncClient(base_url=base) as client:
                await client.get(link)
                await owner.hold(Selector.all())
                path = "/api/v1/queues/local/store"
                listed = (await client.get(f"{path}/mails")).json()["items"]
                assert [each["state"] for each in listed] == ["held"] * 3
                assert (await client.get(f"{path}/mails/{listed[0]['id']}/content")).content == b"x"
                await owner.close()
                assert (await client.get(path)).json()["sizes"]["held"] == 3

    asyncio.run(beside())


def test_each_queue_has_the_report_in_the_folder_of_its_whole_name(tmp_path: Path) -> None:
    url, reports = store(tmp_path, 1), tmp_path / "reports"
    for name in ("local/store", "elsewhere/store", "store"):
        (reports / name).mkdir(parents=True)
        (reports / name / "index.html").write_text(name)
    options = ("--queue", url, "--listen", "127.0.0.1:0", "--reports", str(reports))
    with a_process(*options) as process, a_session(link_of(process)) as client:
        assert client.get("/api/v1/queues/local/store/report").text == "local/store"


@pytest.mark.parametrize(
    ("listen", "words"),
    [("0.0.0.0:0", "listens on loopback"), ("192.0.2.1:80", "ssh -L"), ("*:80", "loopback")],
)
def test_a_console_listens_on_loopback_alone(tmp_path: Path, listen: str, words: str) -> None:
    with a_process("--queue", f"embedded://{tmp_path}", "--listen", listen) as process:
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 1
        assert words in errors
        assert output == ""
