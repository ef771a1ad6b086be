"""What Linux says of a thread, as a share of time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from postroad.adapters.machine.load import FRESH_SECONDS, MachineLoad


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only this list lets pass."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_running_and_waiting_for_a_processor_are_what_is_wanted(
    tmp_path: Path, passed: list[float]
) -> None:
    said = tmp_path / "schedstat"
    said.write_text("1000000000 500000000 7\n")
    machine = MachineLoad(said)
    assert machine.demand() == 0

    passed[0] += 2
    said.write_text("1800000000 900000000 9\n")

    assert machine.demand() == pytest.approx(0.6)


def test_a_figure_holds_for_a_moment(tmp_path: Path, passed: list[float]) -> None:
    said = tmp_path / "schedstat"
    said.write_text("0 0 0\n")
    machine = MachineLoad(said)
    machine.demand()
    said.write_text("1000000000 0 0\n")

    passed[0] += FRESH_SECONDS / 2
    assert machine.demand() == 0
    passed[0] += FRESH_SECONDS * 1.5
    assert machine.demand() == pytest.approx(0.5 / FRESH_SECONDS)


@pytest.mark.parametrize("text", [None, "", "kernel without it\n"])
def test_where_the_system_does_not_say_nobody_wants_anything(
    tmp_path: Path, passed: list[float], text: str | None
) -> None:
    said = tmp_path / "schedstat"
    if text is not None:
        said.write_text(text)
    machine = MachineLoad(said)

    for _ in range(3):
        assert machine.demand() == 0
        passed[0] += 1


def test_this_machine_says_it() -> None:
    machine = MachineLoad()
    machine.demand()
    end = time.monotonic() + 2 * FRESH_SECONDS
    while time.monotonic() < end:
        pass

    assert machine.demand() > 0.5
