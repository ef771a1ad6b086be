"""Deadlines on a machine that is slower than usual."""

import pytest

from stack import patience
from stack.errors import StackError


def test_without_the_variable_waits_are_as_long_as_they_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(patience.VARIABLE, raising=False)

    assert patience.stretched(120) == 120


def test_the_variable_makes_them_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(patience.VARIABLE, "2.5")

    assert patience.stretched(120) == 300


@pytest.mark.parametrize("value", ["a lot", "0.5", "0", "-3", "nan", "inf"])
def test_another_value_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(patience.VARIABLE, value)

    with pytest.raises(StackError, match=f"{patience.VARIABLE} is '{value}'"):
        patience.stretched(1)
