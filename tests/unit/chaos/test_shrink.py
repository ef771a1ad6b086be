"""Failing schedules are made smaller."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from chaos.shrink import shrink


@pytest.mark.parametrize("needed", [{3}, {0, 19}, {4, 5, 6}, {1, 7, 13, 18}, set(range(20))])
def test_only_what_a_failure_needs_is_left(needed: set[int]) -> None:
    def fails(items: Sequence[int]) -> bool:
        return needed.issubset(items)

    assert set(shrink(list(range(20)), fails, attempts=1000)) == needed


def test_a_failure_that_needs_no_fault_is_left_without_any() -> None:
    assert list(shrink(list(range(20)), lambda items: True, attempts=1000)) == []


def test_the_number_of_tries_is_bounded() -> None:
    tried: list[Sequence[int]] = []

    def fails(items: Sequence[int]) -> bool:
        tried.append(items)
        return {3, 12}.issubset(items)

    found = shrink(list(range(20)), fails, attempts=5)

    assert len(tried) == 5
    assert {3, 12}.issubset(found)
