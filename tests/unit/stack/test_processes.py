"""Processes of a server are found by their mark and signalled as exactly themselves."""

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack import processes


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    processes.kill_members(tmp_path)


def start(member: Path, script: str) -> list[processes.Process]:
    processes.start(member, ["sh", "-c", script], member / "log")
    deadline = time.monotonic() + 10
    while not (member / "ready").exists():
        assert time.monotonic() < deadline, (member / "log").read_text()
        time.sleep(0.01)
    return processes.members(member)


def test_a_started_process_is_a_member_in_a_session_of_its_own(member: Path) -> None:
    found = start(member, "touch ready; exec sleep 60")

    assert [process.leads_session for process in found] == [True]
    assert found[0].session != os.getsid(0)


def test_daemons_of_a_member_are_members(member: Path) -> None:
    found = start(member, "setsid sleep 60 & sleep 60 & touch ready; wait")

    assert len(found) == 3


def test_a_member_is_seen_in_the_midst_of_an_exec(member: Path) -> None:
    script = member / "again"
    script.write_text("touch ready; exec sh again")
    start(member, "exec sh again")

    assert all(processes.members(member) for _ in range(100))


def test_a_folder_with_a_similar_name_has_no_part_in_it(member: Path) -> None:
    start(member, "touch ready; exec sleep 60")

    assert processes.members(member.with_name(member.name + "-2")) == []
    assert processes.members(member.with_name(member.name[:-1])) == []


def test_all_members_end_even_when_they_are_frozen(member: Path) -> None:
    for process in start(member, "trap '' TERM; sleep 60 & touch ready; wait"):
        processes.send(process, signal.SIGSTOP)

    processes.kill_members(member)

    assert processes.members(member) == []


def test_a_frozen_process_is_seen_as_stopped(member: Path) -> None:
    (process,) = start(member, "touch ready; exec sleep 60")

    processes.freeze([process.pid])

    assert processes.members(member)[0].stopped


def test_freeze_a_process_of_busy_threads_returns_when_each_stands(member: Path) -> None:
    writing = "with open('written', 'ab', 0) as file:\n while True: file.write(b'x')"
    (member / "busy.py").write_text(
        "import pathlib, threading\n"
        f"def write(): exec({writing!r})\n"
        "for _ in range(8): threading.Thread(target=write).start()\n"
        "pathlib.Path('ready').touch()\n"
    )
    (process,) = start(member, f"exec {sys.executable} busy.py")

    processes.freeze([process.pid])

    written = (member / "written").stat().st_size
    time.sleep(0.1)
    assert (member / "written").stat().st_size == written


def test_a_later_process_of_the_same_pid_is_not_signalled(member: Path) -> None:
    (process,) = start(member, "touch ready; exec sleep 60")
    earlier = dataclasses.replace(process, started=process.started - 1)

    assert not processes.send(earlier, signal.SIGKILL)
    assert len(processes.members(member)) == 1


def test_descendants_are_found_whatever_their_environment(member: Path) -> None:
    found = start(member, "env -i sleep 60 & touch ready; wait")
    deadline = time.monotonic() + 5
    while len(processes.descendants([found[0].pid])) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
