"""What a connection gets of a job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from postroad.domain.mail.mail import Envelope
from postroad.domain.smtp.next_hops import NextHop
from postroad.worker.jobs.job_table import LeaseOver, OpenJob
from postroad.worker.route_finder import RelayRoutes

KEPT = (b"content", None)


async def test_of_an_item_whose_lease_is_over_nothing_is_sent() -> None:
    envelope = Envelope("a@origin.example", ("b@dest.example",))
    item = SimpleNamespace(
        mail=envelope, mail_id=UUID(int=1), size_bytes=7, shape=None, at_hand=lambda: KEPT
    )
    routes = RelayRoutes(NextHop("relay.example", 25))
    job = OpenJob(
        1,
        "1",
        cast("Any", SimpleNamespace(item=item, span=None, saw_content=lambda _: None)),
        routes._route,
        ("b@dest.example",),
    )
    transmission = job.transmission()
    assert transmission.at_hand() == KEPT

    job.is_late = True

    assert transmission.at_hand() is None
    with pytest.raises(LeaseOver):
        await anext(transmission.content())
