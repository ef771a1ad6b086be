"""What an item of a queue is, whatever its engine."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from postroad.domain.mail.mail import Envelope
from postroad.domain.queues.mail_views import LeasedMail


def test_an_item_is_equal_to_itself_alone() -> None:
    """A mail that comes again is another item, and both may be in one set."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    envelope = Envelope("a@example.org", ("b@example.net",))
    first, again = (
        LeasedMail(UUID(int=1), UUID(int=2), envelope, moment, moment, 0, 5) for _ in range(2)
    )

    assert first != again
    assert len({first, again, first}) == 2
