"""Which mails a selector reads: those that the index in memory does not exclude."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from contract.queue_harness import plain_mail
from crash.lossy import Disk
from crash.world import opened
from postroad.domain.queues.selection import Selector
from postroad.embedded.log.envelopes import MAX_DOMAINS, EnvelopeRecord
from postroad.embedded.log.segments import LiveEntry
from postroad.embedded.store import administration

MAILS = {
    "one": ("a@x.example",),
    "two": ("a@x.example", "b@Y.example"),
    "part": ("a@x.example.net",),
    "bare": ("postmaster",),
}


@pytest.mark.parametrize(
    ("selector", "found", "read"),
    [
        (Selector(recipient="b@Y.example"), {"two"}, {"two"}),
        (Selector(recipient="a@x.example"), {"one", "two"}, {"one", "two"}),
        (Selector(recipient="c@x.example"), set(), {"one", "two"}),
        (Selector(recipient="postmaster"), {"bare"}, MAILS.keys()),
        (Selector(domain="X.example"), {"one", "two"}, {"one", "two"}),
        (Selector(domain=""), {"bare"}, MAILS.keys()),
        (Selector(domains=frozenset(("y.example", "z.example"))), {"two"}, {"two"}),
        (Selector(domains=frozenset(("y.example", ""))), {"two", "bare"}, MAILS.keys()),
        (Selector(domains=frozenset()), set(), set()),
        (Selector(domain="x.example", recipient="b@Y.example"), {"two"}, {"two"}),
        (Selector(enqueue_id=UUID(int=1)), set(), set()),
        (Selector(older_than=timedelta(hours=1)), set(), set()),
        (Selector(sender="c@x.example"), set(), MAILS.keys()),
        (Selector.all(), MAILS.keys(), MAILS.keys()),
    ],
    ids=[
        "recipient", "recipient of several mails", "other recipient of a domain", "postmaster",
        "domain", "no domain", "domains", "domains and none", "of no domains", "both", "id", "age",
        "sender", "all",
    ],
)  # fmt: skip
async def test_mails_that_the_index_excludes_are_not_read(
    selector: Selector, found: set[str], read: set[str]
) -> None:
    async with opened(Disk()) as (_, queue):
        for name, recipients in MAILS.items():
            await queue.enqueue(plain_mail(name, recipients=recipients))
        reader, seen = queue.engine.reader, set[str | None]()
        honest = reader.read

        async def noted(entry: LiveEntry) -> EnvelopeRecord:
            record = await honest(entry)
            seen.add(record.envelope.name)
            return record

        reader.read = noted  # type: ignore[method-assign]

        assert {view.mail.name async for view in queue.browse(selector)} == found
        assert seen == read


async def test_a_mail_to_more_domains_than_the_index_has_is_found_by_each() -> None:
    long = ".".join(each * 60 for each in "bcd")
    domains = [f"{number:03}.{long}.example" for number in range(400)]
    recipients = tuple(f"a@{each}" for each in domains)
    async with opened(Disk()) as (_, queue):
        await queue.enqueue(plain_mail("long", recipients=recipients))
        (entry,) = queue.engine.index.walk(dead=False)
        assert len(" ".join(domains).encode()) > MAX_DOMAINS
        assert domains[-1] not in entry.domains

        for each in (domains[0], domains[-1]):
            assert len([view async for view in queue.browse(Selector(domain=each))]) == 1


async def test_a_listing_with_a_pulse_says_how_far_it_is_and_an_operation_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(administration, "YIELD_EVERY", 2)
    wanted = Selector(sender="other@x.example", pulse=timedelta(microseconds=-1))
    async with opened(Disk()) as (_, queue):
        for name in "abcdef":
            await queue.enqueue(plain_mail(name))

        assert [view.mail.name async for view in queue.browse(wanted)] == ["b", "d", "f"]
        assert await queue.expire(wanted) == 0
        assert await queue.expire(Selector.all()) == 6
        assert [view.mail.name async for view in queue.dead_letters(wanted)] == ["b", "d", "f"]
        assert await queue.discard(wanted) == 0
