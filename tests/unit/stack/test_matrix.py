"""The table of the legs has those that ran, whatever becomes of another one."""

from __future__ import annotations

from pathlib import Path
from subprocess import CalledProcessError

import pytest

import matrix.__main__ as matrix
from stack.errors import StackError


@pytest.mark.parametrize(
    "error", [StackError("no answer"), CalledProcessError(1, "python", stderr="no answer")]
)
def test_a_leg_whose_servers_do_not_answer_costs_no_other_one_its_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(leg: matrix.Leg, folder: Path) -> str:
        if leg.name == "rabbitmq4.3":
            raise error
        return f"| {leg.name} | all | 7 passed, 0 failed, 0 skipped |"

    monkeypatch.setattr(matrix, "run", run)

    assert matrix.main(["default", "rabbitmq4.3", "tls"]) == 1
    printed = capsys.readouterr()
    assert printed.err == "matrix: rabbitmq4.3: no answer\n"
    assert printed.out.splitlines()[2:] == [
        "| default | all | 7 passed, 0 failed, 0 skipped |",
        "| rabbitmq4.3 | not known | did not run |",
        "| tls | all | 7 passed, 0 failed, 0 skipped |",
    ]
