from typing import cast

from postroad.domain.shapes import Shape
from postroad.embedded.content_cache import ContentCache
from postroad.embedded.index import Entry, State
from postroad.embedded.records import Waiting
from postroad.embedded.segments import Segment
from postroad.embedded.spool_files import SMALL

SHAPE = Shape(7)
WAITING = cast("Waiting", object())


def an_entry() -> Entry:
    segment = cast("Segment", object())
    return Entry(segment, 0, 0, 0, bytes(16), 0, 0, "", 0.0, State.READY)


def test_the_first_mails_are_kept_and_those_that_do_not_fit_are_read() -> None:
    fresh, first, second, third = ContentCache(10), an_entry(), an_entry(), an_entry()
    fresh.keep(first, WAITING, b"seven..", SHAPE)
    fresh.keep(second, WAITING, b"seven..", SHAPE)
    fresh.keep(third, WAITING, b"3..", SHAPE)

    assert fresh.take(second) is None
    assert fresh.take(first) == (WAITING, (b"seven..", SHAPE))
    assert fresh.take(first) is None
    assert fresh.take(third) == (WAITING, (b"3..", SHAPE))
    assert fresh.room == 10


def test_a_large_mail_is_read_in_pieces() -> None:
    fresh, entry = ContentCache(), an_entry()

    fresh.keep(entry, WAITING, bytes(SMALL + 1), SHAPE)

    assert fresh.take(entry) is None
