"""Users at the broker that the programs of one mail queue have, and the next step of their
rotation.

A broker has its users for all vhosts together, so a name carries the token of the QueueCluster
(`Claimant`), which no other QueueCluster has. A queue has two users, of which the Secret has one,
the current. The Secret is written last, so that a step which was broken off is repeated, and no
process has had the password that it made. Source: ADR 0042."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from postroad.domain.queues.names import QueueName

_NAME = re.compile(r"postroad\.([-a-z0-9]+)\.([-a-z0-9]+)\.([0-9a-f]{12})\.([ab])")


@dataclass(frozen=True, slots=True, order=True)
class QueueUser:
    """One of the two users of a mail queue, `a` or `b`. `token`: of the QueueCluster.

    >>> str(QueueUser(QueueName("mail", "outgoing"), "4d0964520104"))
    'postroad.mail.outgoing.4d0964520104.a'
    """

    queue: QueueName
    token: str
    suffix: str = "a"

    def __str__(self) -> str:
        return f"postroad.{self.queue}.{self.token}.{self.suffix}"

    @property
    def other(self) -> QueueUser:
        return replace(self, suffix="b" if self.suffix == "a" else "a")

    @classmethod
    def parse(cls, text: str) -> QueueUser | None:
        """Read a user's name; None for a user that is no queue's.

        >>> QueueUser.parse("guest") is None
        True
        """
        found = _NAME.fullmatch(text)
        if found is None:
            return None
        return cls(QueueName(found[1], found[2]), found[3], found[4])


class UserStep(Enum):
    BEGIN = "give it a new password, and write the Secret"
    SWITCH = "the same, while programs still use the other one"
    RESTORE = "give it the Secret's password again"
    REVOKE = "delete it"


@dataclass(frozen=True, slots=True)
class CurrentUser:
    """Facts that the Secret tells of the user in it: since when it is there, and for which value of
    the annotation; empty: for none."""

    user: QueueUser
    since: datetime
    rotated: str = ""


@dataclass(frozen=True, slots=True)
class UserFacts:
    """`first`: the queue's user `a`. `rights`: the users that exist, and whether each has what it
    should have. `asked`: the annotation of the MailQueue."""

    first: QueueUser
    current: CurrentUser | None
    rights: Mapping[QueueUser, bool]
    asked: str = ""


@dataclass(frozen=True, slots=True)
class RotationPace:
    """`overlap`: for how long both users are valid. `period`: between two switches."""

    overlap: timedelta
    period: timedelta


def next_user_step(
    facts: UserFacts, pace: RotationPace, now: datetime
) -> tuple[UserStep, QueueUser] | None:
    """Return the step to carry out, and the user that it is about; None: all is as it should be."""
    current = facts.current
    if current is None:
        return UserStep.BEGIN, facts.first
    if not facts.rights.get(current.user, False):
        return UserStep.RESTORE, current.user
    other, age = current.user.other, now - current.since
    if other in facts.rights:
        return (UserStep.REVOKE, other) if age >= pace.overlap else None
    is_asked = facts.asked not in ("", current.rotated)
    return (UserStep.SWITCH, other) if age >= pace.period or is_asked else None
