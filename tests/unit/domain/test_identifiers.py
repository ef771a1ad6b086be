from datetime import UTC, datetime, timedelta
from random import Random
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.values.identifiers import EPOCH, FIRST, Identifiers, id_at, moment_of

MOMENTS = st.integers(0, 2**32).map(
    lambda n: datetime(1970, 1, 1, tzinfo=UTC) + n * timedelta(seconds=1.5)
)


@given(MOMENTS, st.integers(0, 0xFFF), st.integers(0, (1 << 62) - 1))
def test_an_id_is_a_version_7_uuid_that_remembers_its_millisecond(
    moment: datetime, sequence: int, randomness: int
) -> None:
    identifier = id_at(moment, sequence, randomness)

    assert (identifier.version, identifier.variant) == (7, "specified in RFC 4122")
    assert timedelta(0) <= moment - moment_of(identifier) < timedelta(milliseconds=1)


def test_an_id_has_the_layout_of_rfc_9562() -> None:
    moment = EPOCH + timedelta(milliseconds=0x0123456789AB)

    assert str(id_at(moment, 0xFFF, 0)) == "01234567-89ab-7fff-8000-000000000000"
    assert str(id_at(moment, 0x1001, -1)) == "01234567-89ab-7001-bfff-ffffffffffff"


def test_an_id_after_another_is_later_however_far_that_is_ahead() -> None:
    now = EPOCH + timedelta(days=20000)
    ids = Identifiers(lambda: now, Random(1).getrandbits)
    ahead = id_at(now + timedelta(seconds=1), 0xFFF, 0)

    after = ids.new(ahead)

    assert moment_of(after) == now + timedelta(milliseconds=1001)
    assert after.int >> 64 & 0xFFF == 0
    assert moment_of(ids.new(FIRST)) == moment_of(after)


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=200))
def test_ids_of_one_process_grow_strictly_even_when_the_clock_steps_back(steps: list[int]) -> None:
    now = EPOCH + timedelta(days=20000)

    def clock() -> datetime:
        nonlocal now
        now += timedelta(milliseconds=steps.pop() if steps else 0)
        return now

    ids = Identifiers(clock, Random(1).getrandbits)
    made = [ids.new() for _ in range(len(steps))]

    assert made == sorted(set(made))


def test_more_ids_than_the_counter_holds_borrow_from_the_next_millisecond() -> None:
    now = EPOCH + timedelta(days=20000)
    ids = Identifiers(lambda: now, Random(1).getrandbits)

    made = [ids.new() for _ in range(5000)]

    assert made == sorted(set(made))
    assert moment_of(made[-1]) == now + timedelta(milliseconds=1)
    assert [each.int >> 64 & 0xFFF for each in made] == [*range(4096), *range(5000 - 4096)]


def test_ids_sort_by_bytes_as_cassandra_compares_them() -> None:
    early = id_at(EPOCH + timedelta(days=1), 0, (1 << 62) - 1)
    late = id_at(EPOCH + timedelta(days=2), 0, 0)

    assert early.bytes < late.bytes
    assert isinstance(early, UUID)
