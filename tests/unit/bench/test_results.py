"""Ratios of measurements: larger is always better."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.results import Result, compared, percentile, show, write


def test_rates_are_compared_by_their_medians() -> None:
    found = compared("enqueue", "small", "mails/s", [100, 900, 200], "a peer", [400, 1, 500])

    assert found == Result("enqueue", "small", "mails/s", 200, "a peer", 400, 0.5)


def test_a_smaller_cost_is_a_larger_ratio() -> None:
    found = compared("CPU", "small", "ms", [2], "a peer", [3], less_is_better=True)

    assert found.ratio == 1.5


@pytest.mark.parametrize(("mine", "theirs", "ratio"), [(0, 0, 1), (0, 30, 30), (5, 0, 0)])
def test_nothing_is_never_divided_by(mine: float, theirs: float, ratio: float) -> None:
    found = compared("left", "end", "objects", [mine], "a peer", [theirs], less_is_better=True)

    assert found.ratio == ratio


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(each) for each in range(200, 0, -1)]

    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [100, 198, 200]
    assert percentile([7.0], 0.5) == 7


def test_results_are_written_for_machines_and_shown_to_people(tmp_path: Path) -> None:
    result = compared("enqueue", "small", "mails/s", [100], "a peer", [200])

    path = write("queue", [result], tmp_path / "bench")

    assert json.loads(path.read_text()) == [
        {
            "measure": "enqueue",
            "case": "small",
            "unit": "mails/s",
            "ours": 100,
            "peer": "a peer",
            "theirs": 200,
            "ratio": 0.5,
        }
    ]
    assert "0.50" in show([result])
