"""How long an enqueue key stands for its mail, and which keys recovery takes for accepted."""

from __future__ import annotations

import pytest

from postroad.domain.queues.references import KEY_LIFETIME
from postroad.embedded.log.index import KeyIndex
from postroad.embedded.log.records import KeyRecord

DAY = round(KEY_LIFETIME.total_seconds() * 1e6)
NOW = 10 * DAY


def key(name: str, at: int = NOW, *, is_accepted: bool = True) -> KeyRecord:
    id_, token = name.encode() * 16, name.encode() * 32
    return KeyRecord(id_, 1, id_, token, bytes(32), at, is_accepted)


def index_of(*records: tuple[int, KeyRecord], now_us: int = NOW) -> KeyIndex:
    """Return an index that has read these records, with the numbers of their segments."""
    index = KeyIndex()
    for sequence, record in records:
        index.read(sequence, record, now_us)
    return index


def test_an_accepted_key_stands_for_a_day() -> None:
    old, young = key("a", NOW), key("b", NOW + 1)
    index = index_of((1, old), (1, young))

    assert index.standing(old.token, NOW + DAY - 1) == old
    assert index.standing(old.token, NOW + DAY) is None
    assert index.standing(young.token, NOW + DAY) == young
    assert index.standing(old.token, NOW) is None, "it was dropped"


def test_a_key_whose_mail_is_not_accepted_stands_for_none() -> None:
    begun = key("a", is_accepted=False)
    index = index_of((1, begun))

    assert index.standing(begun.token, NOW) is None
    index.read(1, key("a"), NOW)
    assert index.standing(begun.token, NOW) == key("a")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_segment_is_needed_for_a_day_after_its_latest_key(order: tuple[int, int]) -> None:
    records = (3, key("a", NOW - DAY)), (3, key("b", NOW - DAY + 1, is_accepted=False))
    index = index_of(*(records[each] for each in order), (5, key("c")))

    assert index.first_needed([2, 3, 4, 5], NOW) == 3
    assert index.first_needed([2, 3, 4, 5], NOW + 1) == 5
    assert index.first_needed([2, 3, 4], NOW + 1) is None
    assert index.first_needed([], NOW) is None


def test_recovery_accepts_a_key_whose_mail_it_finds() -> None:
    begun, lost, over = [key(name, is_accepted=False) for name in "abc"]
    over = over._replace(accepted_us=NOW - DAY)
    index = index_of((1, begun), (1, lost), (1, over), (1, key("d", is_accepted=False)))
    index.read(2, key("d"), NOW)
    for each in (begun, over, key("d"), key("e")):
        index.see(each.mail_id)

    assert index.settle() == [key("a")]

    index.see(lost.mail_id)
    assert index.settle() == []
