"""Names of queues and of the objects behind them.

A queue's name is `<namespace>.<name>`: table key, URL host and part of every object's name, so it
is checked once, here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from uuid import UUID

from postroad.errors import InvalidQueueName

_DAY_AND_ID = re.compile(
    r"[0-9]{4}/[0-9]{2}/[0-9]{2}/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
)
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

LONGEST_BUCKET = 63
"""Characters of a bucket's name that every S3 store takes."""

BUCKET_CLAIM = "postroad.claim"
"""The key of the object that records the claim on a bucket. Keys of mail begin with a queue's name
and a slash."""


@dataclass(frozen=True, slots=True, order=True)
class QueueName:
    """The name of a queue. `str()` gives `<namespace>.<name>`.

    >>> QueueName.parse("mail.outgoing").exchange
    'postroad.mail.outgoing'
    """

    namespace: str
    name: str

    def __post_init__(self) -> None:
        for part in (self.namespace, self.name):
            if not _LABEL.fullmatch(part):
                raise InvalidQueueName(
                    f"{str(self)!r} is not a queue name: {part!r} is not a DNS label "
                    "(lower-case letters, digits and '-', at most 63)"
                )

    @classmethod
    def parse(cls, text: str) -> QueueName:
        """Read `<namespace>.<name>`. Raises: InvalidQueueName."""
        namespace, dot, name = text.partition(".")
        if not dot:
            raise InvalidQueueName(f"{text!r} is not a queue name: write <namespace>.<name>")
        return cls(namespace, name)

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def exchange(self) -> str:
        """The direct exchange of the queue's messages; the routing key chooses `work` or `dead`."""
        return f"postroad.{self}"

    @property
    def work_queue(self) -> str:
        """The quorum queue that consumers read."""
        return f"postroad.{self}.work"

    @property
    def dead_queue(self) -> str:
        """The quorum queue that the broker dead-letters to; maintenance consumes it."""
        return f"postroad.{self}.dead"

    @property
    def claim_exchange(self) -> str:
        """The exchange that records which QueueCluster declares the others; no message passes."""
        return f"postroad.{self}.claim"

    def bucket(self, prefix: str) -> str:
        """The S3 bucket of this queue's own: `<prefix><namespace>-<name>`.

        A name past S3's 63 characters is cut and ends in a hash of the whole. `a-b.c` and `a.b-c`
        share a bucket: keys begin with the queue's name, so they share nothing else.
        """
        bucket = f"{prefix}{self.namespace}-{self.name}"
        if len(bucket) <= LONGEST_BUCKET:
            return bucket
        digest = sha256(bucket.encode()).hexdigest()[:12]
        return f"{bucket[: LONGEST_BUCKET - len(digest) - 1]}-{digest}"


def key_of_bytes(queue: QueueName, accepted_at: datetime, mail_id: UUID) -> str:
    """Return the key of the one object that holds a mail's bytes. A queue's keys are in the order
    in which its mails were accepted: by day, then by the time in the mail id."""
    return f"{queue}/{accepted_at:%Y/%m/%d}/{mail_id}"


def key_of_owner(queue: QueueName) -> str:
    """Return the key of the owner object, which no mail has (`domain.ownership`)."""
    return f"{queue}/owner"


def mail_of_bytes(queue: QueueName, key: str) -> UUID | None:
    """Return the mail id of an object's key; None for a key that no mail of this queue has."""
    beginning, rest = f"{queue}/", key[len(f"{queue}/") :]
    found = _DAY_AND_ID.fullmatch(rest) if key.startswith(beginning) else None
    mail_id = None if found is None else UUID(found[1])
    return mail_id if mail_id is not None and mail_id.version == 7 else None
