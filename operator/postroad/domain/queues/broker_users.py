"""Users at the broker that the programs of one mail queue have.

A broker has its users for all vhosts together, so a name carries the token of the QueueCluster
(`Claimant`), which no other QueueCluster has. Source: ADR 0042.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

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
