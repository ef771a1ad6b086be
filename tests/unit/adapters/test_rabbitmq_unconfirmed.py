"""How many publishes may wait for their confirms, and what makes room for more."""

from __future__ import annotations

from uuid import UUID

import pytest

from postroad.adapters.rabbitmq import publisher
from postroad.adapters.rabbitmq.publisher import PublishedMessage, Unconfirmed
from postroad.errors import BrokerUnavailable


def message(number: int) -> PublishedMessage:
    return PublishedMessage("work", UUID(int=number), b"body")


async def test_each_confirm_makes_room_for_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "MAX_UNCONFIRMED", 3)
    waiting = Unconfirmed()
    for tag in range(3):
        waiting.check_room("work")
        waiting.add(tag, message(tag))
    with pytest.raises(BrokerUnavailable):
        waiting.check_room("work")
    waiting.check_room("dead")

    waiting.resolve(0, None, multiple=False)
    waiting.check_room("work")
    waiting.add(3, message(3))

    with pytest.raises(BrokerUnavailable):
        waiting.check_room("work")
    waiting.resolve(3, None, multiple=True)
    for tag in range(4, 7):
        waiting.check_room("work")
        waiting.add(tag, message(tag))
    with pytest.raises(BrokerUnavailable):
        waiting.check_room("work")
