"""The note of a worker about its sites, as workers and commands of this release and others read
it."""

from __future__ import annotations

import json

import pytest

from postroad.domain.delivery.sites import (
    MAX_SHOWN,
    SiteState,
    SiteView,
    has_no_rule,
    has_program,
    published_views,
    read_views,
)

NOTE_OF_THE_RELEASE_BEFORE = '{"sites": [{"site": "x.example", "state": "idle"}], "more": 0}'
UNREADABLE = ("", "?", "[]", "7", "null", '{"rules": 7}')


def test_numbers_that_a_note_leaves_out_are_none() -> None:
    idle = SiteView("x.example", SiteState.IDLE)
    busy = SiteView("y.example", SiteState.ACTIVE, connections=2, waiting=3, at_work=4)

    assert read_views(NOTE_OF_THE_RELEASE_BEFORE) == ([idle], 0)
    assert read_views(published_views([idle, busy])) == ([busy, idle], 0)
    assert (idle.connections, idle.waiting, idle.at_work) == (0, 0, 0)


@pytest.mark.parametrize("text", [NOTE_OF_THE_RELEASE_BEFORE, *UNREADABLE])
def test_a_note_that_does_not_show_it_shows_neither_a_program_nor_the_lack_of_a_rule(
    text: str,
) -> None:
    assert not has_program(text)
    assert not has_no_rule("slow", text)


@pytest.mark.parametrize("number", [0, MAX_SHOWN, MAX_SHOWN + 1])
def test_a_rule_is_known_to_be_missing_where_all_are_shown(number: int) -> None:
    text = published_views([], (f"rule {each}" for each in range(number)), has_program=True)

    assert has_no_rule("slow", text) is (number <= MAX_SHOWN)
    assert not (number and has_no_rule("rule 0", text))
    assert has_program(text)
    assert json.loads(text)["sites"] == []
