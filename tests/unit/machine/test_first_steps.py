"""How the steps of a machine that was just installed are judged."""

import subprocess
from pathlib import Path

import pytest

from machine.first_steps import Step, complaints, read, script
from machine.fresh_disk import SOURCE

REFUSED = Step("person", "make demo", False, r"needs root")
SHOWN = Step("root", "make demo", True, r"^0 lost")
STEPS = (REFUSED, SHOWN)
CONSOLE = """\
[    0.1] a line of the kernel
step 0 begins
a native Kubernetes needs root
step 0 ends 2 3
step 1 begins
0 lost
step 1 ends 0 61
"""


def wrong(console: str) -> list[str]:
    return list(complaints(read(console, STEPS), STEPS))


def test_steps_that_end_as_they_must_are_right() -> None:
    ended = read(CONSOLE.replace("\n", "\r\n"), STEPS)

    assert [(each.step, each.code, each.seconds) for each in ended] == [
        (REFUSED, 2, 3),
        (SHOWN, 0, 61),
    ]
    assert complaints(ended, STEPS) == []


@pytest.mark.parametrize(
    ("right", "instead", "complaint"),
    [
        ("ends 2 3", "ends 0 3", "person: make demo: ended with 0"),
        ("ends 0 61", "ends 1 61", "root: make demo: ended with 1"),
        ("needs root", "cannot", "person: make demo: shows no 'needs root'"),
        ("step 1 ends 0 61\n", "", "root: make demo: no end"),
    ],
)
def test_what_is_wrong_is_named(right: str, instead: str, complaint: str) -> None:
    assert wrong(CONSOLE.replace(right, instead)) == [complaint]


def test_a_machine_that_did_not_start_has_no_end_of_any_step() -> None:
    assert wrong("panic") == ["person: make demo: no end", "root: make demo: no end"]


def test_the_script_prints_what_is_read(tmp_path: Path) -> None:
    steps = (Step("root", "echo $HOME 'a b'; exit 3", False, r"^/root a b$"),)
    stand_in = tmp_path / "setpriv"
    stand_in.write_text('#!/bin/sh\nwhile [ "$1" != sh ]; do shift; done\nexec "$@"\n')
    stand_in.chmod(0o755)
    text = script(steps).replace(f"cd {SOURCE}", "true")
    shown = subprocess.run(
        ["sh", "-c", text],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert complaints(read(shown, steps), steps) == []
