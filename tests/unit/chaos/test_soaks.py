"""What a soak does with a failing run: it is made smaller and printed."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from chaos import __main__ as chaos
from chaos.checker import Kind, Violation
from chaos.history import Event
from chaos.nemesis import Fault

FAULTS = tuple(Fault(number, 10.0 * number, 5.0, "away", "broker") for number in range(8))
NEEDED = FAULTS[3]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Fault]]:
    """The schedules that were run; each that has `NEEDED` fails."""
    made: list[Sequence[Fault]] = []

    def run(backend: str, seed: int, schedule: Sequence[Fault], *_: object) -> list[Event]:
        made.append(tuple(schedule))
        folder = chaos.BUILD / f"{backend}-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        return [Event(each.at, "producer#1", "enqueue") for each in schedule]

    def check(events: Sequence[Event]) -> list[Violation]:
        fails = any(each.at == NEEDED.at for each in events)
        return [Violation(Kind.LOST, "m", 1.0, "never transmitted")] if fails else []

    monkeypatch.setattr(chaos, "run", run)
    monkeypatch.setattr(chaos, "draw", lambda *_: FAULTS)
    monkeypatch.setattr(chaos, "check", check)
    monkeypatch.setattr(logging, "disable", lambda _: None)
    return made


@pytest.fixture(autouse=True)
def build(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setattr(chaos, "BUILD", tmp_path_factory.mktemp("chaos"))


def test_a_failing_run_in_memory_is_made_smaller_and_printed(
    runs: list[Sequence[Fault]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert chaos.main(["run", "--seed", "7"]) == 1

    assert runs[0] == FAULTS
    assert runs[-1] == (NEEDED,)
    assert len(runs) <= 2 + chaos.SHRINK["memory"]
    printed = capsys.readouterr().out
    assert "1 of 8 faults are left" in printed
    assert str(NEEDED) in printed
    assert str(FAULTS[4]) not in printed
    assert (chaos.BUILD / "memory-7" / "failure.txt").read_text() in printed


@pytest.mark.parametrize(
    "options", [["--backend", "single"], ["--backend", "cluster"], ["--shrink", "0"]]
)
def test_a_failing_run_is_printed_as_it_was(
    runs: list[Sequence[Fault]], capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    """Over real servers, where the next run differs, and where it is not wanted."""
    assert chaos.main(["run", *options]) == 1

    assert runs == [FAULTS]
    printed = capsys.readouterr().out
    assert all(str(each) in printed for each in FAULTS)


def test_no_run_begins_after_the_time_to_make_a_failure_smaller(
    runs: list[Sequence[Fault]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos, "SHRINK_MINUTES", -1)

    assert chaos.main(["run"]) == 1

    assert runs == [FAULTS, FAULTS]
