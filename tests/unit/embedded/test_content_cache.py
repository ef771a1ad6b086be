from typing import cast

from contract.queue_harness import plain_mail
from crash.lossy import Disk
from crash.world import opened
from postroad.domain.mail.shapes import Shape
from postroad.embedded.log.envelopes import EnvelopeRecord
from postroad.embedded.log.segments import LiveEntry, Segment, State
from postroad.embedded.log.spool_files import SMALL
from postroad.embedded.store.engine import RECORD_TIMES, ContentCache

SHAPE = Shape(7)
RECORD = cast("EnvelopeRecord", object())


def an_entry(length: int = 0) -> LiveEntry:
    segment = cast("Segment", object())
    return LiveEntry(segment, 0, length, 0, bytes(16), 0, 0, "", 0.0, State.READY)


def test_the_first_mails_are_kept_and_those_that_do_not_fit_are_read() -> None:
    cache, first, second, third = ContentCache(10), an_entry(), an_entry(), an_entry()
    cache.keep(first, RECORD, (b"seven..", SHAPE))
    cache.keep(second, RECORD, (b"seven..", SHAPE))
    cache.keep(third, RECORD, (b"3..", SHAPE))

    assert cache.take(second) is None
    assert cache.take(first) == (RECORD, (b"seven..", SHAPE))
    assert cache.take(first) is None
    assert cache.take(third) == (RECORD, (b"3..", SHAPE))
    assert cache.room == 10


def test_a_large_mail_is_read_in_pieces() -> None:
    cache, entry = ContentCache(), an_entry()

    cache.keep(entry, RECORD, (bytes(SMALL + 1), SHAPE))

    assert cache.take(entry) is None


def test_a_record_without_its_content_takes_room_too() -> None:
    cache, first, second = ContentCache(10 * RECORD_TIMES), an_entry(9), an_entry(2)
    cache.keep(first, RECORD, None)
    cache.keep(second, RECORD, None)

    assert cache.take(second) is None
    assert cache.take(first) == (RECORD, None)
    assert cache.room == 10 * RECORD_TIMES


async def test_a_new_mail_is_handed_out_from_memory() -> None:
    async with opened(Disk()) as (files, queue):
        await queue.enqueue(plain_mail())
        item = await queue.consumer(1).next()
        calls = files.calls

        assert await item.content() == plain_mail().content
        assert files.calls == calls
