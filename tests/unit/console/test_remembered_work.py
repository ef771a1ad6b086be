"""What a console remembers: the last of each namespace, and all that have not ended."""

from __future__ import annotations

from uuid import UUID

import pytest

from postroad.console import remembered_work
from postroad.console.remembered_work import RememberedWork
from postroad.problems import Problem


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> RememberedWork[bool]:
    monkeypatch.setattr(remembered_work, "MAX_KEPT", 3)
    return RememberedWork[bool](lambda has_ended: has_ended)


def add(remembered: RememberedWork[bool], namespace: str, number: int, *, ended: bool) -> None:
    remembered.make_room(namespace)
    remembered.add(namespace, UUID(int=number), ended)


def ids(remembered: RememberedWork[bool], namespace: str, most: int = 9) -> list[int]:
    every = (UUID(int=each) for each in range(most))
    return [each.int for each in every if remembered.find(namespace, each) is not None]


def test_the_oldest_that_ended_is_forgotten_first(remembered: RememberedWork[bool]) -> None:
    for number, ended in enumerate((False, True, True, False)):
        add(remembered, "a", number, ended=ended)

    assert ids(remembered, "a") == [0, 2, 3]
    assert list(remembered.of("a")) == [False, True, False], "the last ones first"


def test_where_none_has_ended_one_more_is_refused(remembered: RememberedWork[bool]) -> None:
    for number in range(3):
        add(remembered, "a", number, ended=False)

    with pytest.raises(Problem) as refused:
        add(remembered, "a", 3, ended=True)
    assert refused.value.status == 429
    assert ids(remembered, "a") == [0, 1, 2]


def test_one_namespace_takes_no_room_from_another(remembered: RememberedWork[bool]) -> None:
    add(remembered, "b", 0, ended=True)
    for number in range(8):
        add(remembered, "a", number, ended=True)

    assert (ids(remembered, "a"), ids(remembered, "b")) == ([5, 6, 7], [0])
    assert list(remembered.of("elsewhere")) == []
