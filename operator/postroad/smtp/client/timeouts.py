"""How long a next hop may take."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long the next hop may take. Source: RFC 5321 4.5.3.2, but for `look_up`, `envelope` and
    `all_ends`."""

    connect: timedelta = timedelta(seconds=30)
    greeting: timedelta = timedelta(minutes=5)
    command: timedelta = timedelta(minutes=5)
    data_start: timedelta = timedelta(minutes=2)
    data_block: timedelta = timedelta(minutes=3)
    data_end: timedelta = timedelta(minutes=10)
    envelope: timedelta = timedelta(minutes=10)
    """For all of MAIL and RCPT: a next hop that takes seconds for each recipient gets the rest of
    them in another transaction, so that a delivery ends before its lease does."""

    goodbye: timedelta = timedelta(seconds=2)
    all_ends: timedelta = timedelta(minutes=12)
    """For the replies of LMTP to the end of a mail, one for each recipient: a delivery that its
    lease cuts off would lose those that had come, and their recipients would get the mail again."""

    look_up: timedelta = timedelta(seconds=30)
    """For its name, where routing has not found its addresses. A next hop with little time to
    accept a connection has as much of this: it is the name server that is slow."""
