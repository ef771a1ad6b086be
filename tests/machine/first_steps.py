"""What a person does first on a machine that was just installed, and what each step must end with.

The machine prints a line before and after each step; what is between them is the step's output.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from machine.fresh_disk import PERSON, SOURCE

SUMMARY = r"demo: 11 accepted, 11 delivered, 0 lost, 0 duplicated"


@dataclass(frozen=True)
class Step:
    """A command in the project's folder, and its end."""

    user: str
    command: str
    succeeds: bool
    shown: str
    """A pattern of what a person must read in its output."""


@dataclass(frozen=True)
class Ended:
    """How a step ended."""

    step: Step
    code: int
    seconds: int
    output: str

    @property
    def complaint(self) -> str | None:
        """What is wrong with it."""
        if (self.code == 0) != self.step.succeeds:
            return f"ended with {self.code}"
        if re.search(self.step.shown, self.output, re.MULTILINE) is None:
            return f"shows no {self.step.shown!r}"
        return None


QUEUE = f"embedded://{SOURCE}/build/demo-small/store"
"""What the demo leaves behind, with nothing in it that waits."""

STEPS = (
    Step(PERSON, "make demo-small", False, r"apt-get install python3-venv"),
    Step("root", "apt-get update -q && apt-get install -yq python3-venv", True, "up python3-venv"),
    Step(PERSON, "make demo-small", True, SUMMARY),
    Step(
        PERSON,
        f"echo hello | .venv/bin/postroad enqueue --queue {QUEUE} --from a@example.org"
        " --to b@example.net",
        True,
        r"[0-9a-f-]{36}",
    ),
    Step(PERSON, "make demo", False, r"rootless use is not supported"),
    Step(PERSON, "make test", False, r"rootless use is not supported"),
    # What was refused has changed nothing.
    Step(PERSON, f".venv/bin/postroad size --queue {QUEUE}", True, r"^1 waiting"),
    Step(
        PERSON, "git status --porcelain; ls -A ~/.local/state; echo same", True, r"\Als: .*\nsame$"
    ),
    # As by sudo.
    Step("root", "make demo-small", True, SUMMARY),
    Step("root", "make demo", False, r"needs the controllers cpuset of cgroup v2"),
    Step("root", "make test", False, r"needs the controllers cpuset of cgroup v2"),
)
"""For a kernel of User Mode Linux, which has one processor and therefore no cpusets: with it, the
servers' refusal comes at the start, and names the reason."""

FUNCTION = f"""\
step() {{
    echo "step $1 begins"
    begin=$(cut -d. -f1 /proc/uptime)
    case $2 in root) home=/root ;; *) home="/home/$2" ;; esac
    (
        cd {SOURCE}
        export HOME="$home" USER="$2"
        exec setpriv --reuid "$2" --regid "$2" --init-groups sh -c "$3"
    ) 2>&1 </dev/null
    echo "step $1 ends $? $(($(cut -d. -f1 /proc/uptime) - begin))"
}}
"""


def script(steps: Sequence[Step]) -> str:
    """Return the shell script that takes the steps."""
    calls = [
        shlex.join(["step", str(number), step.user, step.command])
        for number, step in enumerate(steps)
    ]
    return FUNCTION + "\n".join([*calls, ""])


def read(console: str, steps: Sequence[Step]) -> Sequence[Ended]:
    """Return how the steps ended that did, in order."""
    text = console.replace("\r\n", "\n").replace("\r", "\n")
    ended = []
    for number, step in enumerate(steps):
        pattern = rf"^step {number} begins\n(.*?)^step {number} ends (\d+) (\d+)$"
        found = re.search(pattern, text, re.DOTALL | re.MULTILINE)
        if found:
            ended.append(Ended(step, int(found[2]), int(found[3]), found[1]))
    return ended


def complaints(ended: Sequence[Ended], steps: Sequence[Step]) -> Sequence[str]:
    """Return what is wrong; a step that did not end is."""
    known = {each.step for each in ended}
    wrong = [
        f"{each.step.user}: {each.step.command}: {each.complaint}"
        for each in ended
        if each.complaint is not None
    ]
    return wrong + [f"{each.user}: {each.command}: no end" for each in steps if each not in known]
