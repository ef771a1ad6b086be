"""Tables line up; a terminal gets colours, a pager and questions, and a script none of them."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from postroad import Mail, open_queue
from postroad.cli import tables
from postroad.cli.lazy import LazyGroup
from postroad.cli.tables import Rates, TextTable, lines_of
from support.repository import ROOT


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"embedded://{tmp_path}/store"

    async def fill() -> None:
        async with open_queue(url, create=True) as queue:
            await queue.enqueue_all(Mail(None, [f"r{n}@x.example"], b"x") for n in range(3))

    asyncio.run(fill())
    return url


def at_terminal(*words: str, typed: str = "", **variables: str) -> str:
    """Return what a command prints at a terminal of 80 columns and 24 lines."""
    here, there = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}", "PAGER": "cat", **variables}
    command = [sys.executable, "-m", "postroad", *words]
    with subprocess.Popen(command, stdin=there, stdout=there, stderr=there, env=environment) as run:
        os.close(there)
        os.write(here, typed.encode())
        printed = b""
        while True:
            try:
                part = os.read(here, 65536)
            except OSError:  # the terminal has no process any more
                break
            if not part:
                break
            printed += part
        run.wait(timeout=60)
    os.close(here)
    return printed.decode()


def test_columns_line_up_and_those_without_a_cell_are_left_out() -> None:
    assert lines_of(
        ("NAME", "N", "NONE", "LAST"), [("a", "10", "", "x"), ("longer", "2", "", "")]
    ) == [
        "\033[1mNAME  \033[0m  \033[1m N\033[0m  \033[1mLAST\033[0m",
        "a       10  x",
        "longer   2",
    ]


def test_rows_beyond_the_first_keep_their_widths_and_have_no_second_header(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with TextTable("A", "B", as_json=False) as table:
        table.add({}, "aaa", "b")
        table.show()
        table.add({}, "a", "b")

    assert capsys.readouterr().out == "A    B\naaa  b\na    b\n"


def test_the_change_of_a_number_is_by_the_second() -> None:
    rates = Rates()

    assert [rates.note("a", each) for each in (5, 5, 7, 7)] == ["-", "-", "+2.0", "-"]


def test_a_terminal_has_colours_unless_the_environment_forbids_them(store: str) -> None:
    assert "\033[1mSTATE" in at_terminal("browse", "--queue", store)
    assert "\033" not in at_terminal("browse", "--queue", store, NO_COLOR="1")


def test_a_terminal_is_asked_before_mail_goes_for_ever(store: str) -> None:
    kept = at_terminal("remove", "--queue", store, "--all", typed="n\n")
    assert f"remove 3 mails of {store}? [y/N]" in kept
    assert "Aborted" in kept
    assert "3 waiting" in at_terminal("size", "--queue", store)
    assert "removed 1 mail" in at_terminal(
        "remove", "--queue", store, "--recipient", "r0@x.example", "--yes"
    )
    assert "removed 2 mails" in at_terminal("purge", "--queue", store, typed="y\n")


def test_a_moment_is_shown_in_full_at_a_terminal(tmp_path: Path) -> None:
    shown = at_terminal("trace", "--log", str(tmp_path), "--from", "2026-11-26")

    assert "2026-11-26 is 2026-11-26T00:00:00.000Z" in shown


def run(*words: str, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}", **variables}
    command = [sys.executable, "-m", "postroad", *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, timeout=60
    ).stdout


def test_top_prints_sizes_as_json_once(store: str) -> None:
    (line,) = run("top", "--queue", store, "--json").splitlines()

    found = json.loads(line)
    assert (found["queue"], found["size"], found["held"]) == (store, 3, 0)
    assert "at_least" not in found


def test_top_prints_one_table_where_no_terminal_is(store: str) -> None:
    head, row = run("top", "--queue", store).splitlines()

    assert head.split() == ["QUEUE", "WAITING", "DELAYED", "HELD", "DEAD", "CHANGE/S"]
    assert row.split() == [store, "3", "0", "0", "0", "-"]


def test_a_renewed_table_clears_the_screen_without_colours_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tables, "is_terminal", lambda: True)
    monkeypatch.setattr(time, "sleep", interrupt)

    @click.command()
    def top() -> None:
        tables.watch(("NAME",), lambda: [("a",)], timedelta(seconds=1), once=False)

    group = LazyGroup("postroad", lazy={"top": lambda: top})
    printed = CliRunner(env={"NO_COLOR": "1"}).invoke(group, ["top"], color=True).output

    assert printed.startswith(f"{tables.CLEAR}every 1s, ")
    assert printed.count("\033") == tables.CLEAR.count("\033")


def test_completion_is_installed_where_the_shell_looks(tmp_path: Path) -> None:
    run("completion", "fish", "--install", HOME=str(tmp_path))

    installed = (tmp_path / ".config/fish/completions/postroad.fish").read_text()
    assert "_POSTROAD_COMPLETE=fish_complete" in installed
    assert installed == run("completion", "fish").removesuffix("\n")
