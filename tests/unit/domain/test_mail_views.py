"""What an item of a queue is, whatever its engine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.delivery.retries import DeferItem, Done, Reject, RetryItem
from postroad.domain.mail.mail import Envelope, Outcome
from support.leased_mails import NotedMail

MINUTE, TO = timedelta(minutes=1), ("b@example.net",)
HEARD = AttemptOutcomes.of({TO[0]: Outcome.deferred("450")}, 0.5)


def a_leased_mail() -> NotedMail:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return NotedMail(UUID(int=1), UUID(int=2), Envelope("a@x.example", TO), moment, moment, 0, 5)


def test_an_item_is_equal_to_itself_alone() -> None:
    """A mail that comes again is another item, and both may be in one set."""
    first, again = a_leased_mail(), a_leased_mail()

    assert first != again
    assert len({first, again, first}) == 2


async def test_each_method_ends_an_item_by_the_value_of_its_name() -> None:
    item = a_leased_mail()

    await item.done()
    await item.retry(MINUTE)
    await item.retry(MINUTE, TO, "450", HEARD)
    await item.defer(MINUTE, remaining=TO, reason="rests", outcomes=HEARD)
    await item.reject("550", HEARD)

    assert item.endings == (
        (Done(), None),
        (RetryItem(MINUTE, None, None), None),
        (RetryItem(MINUTE, TO, "450"), HEARD),
        (DeferItem(MINUTE, TO, "rests"), HEARD),
        (Reject("550"), HEARD),
    )
