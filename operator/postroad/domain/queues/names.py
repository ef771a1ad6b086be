"""Names of queues and of the objects behind them.

A queue's name is `<namespace>.<name>`: table key, URL host and part of every object's name, so it
is checked once, here.

Delay queues: which of them a mail that has to wait goes through next.

A delay is served by the longest delay queue that fits, again and again until the mail is due."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from uuid import UUID

from postroad.errors import InvalidQueueName

_DAY_AND_ID = re.compile(
    r"[0-9]{4}/[0-9]{2}/[0-9]{2}/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
)
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

MAX_BUCKET = 63
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
        """The S3 bucket of this queue's own: `<prefix><namespace>-<name>`. A name past S3's 63
        characters is cut and ends in a hash of the whole. `a-b.c` and `a.b-c` share a bucket: keys
        begin with the queue's name, so they share nothing else."""
        bucket = f"{prefix}{self.namespace}-{self.name}"
        if len(bucket) <= MAX_BUCKET:
            return bucket
        digest = sha256(bucket.encode()).hexdigest()[:12]
        return f"{bucket[: MAX_BUCKET - len(digest) - 1]}-{digest}"


def key_of_bytes(queue: QueueName, accepted_at: datetime, mail_id: UUID) -> str:
    """Return the key of the one object that holds a mail's bytes. A queue's keys are in the order
    in which its mails were accepted: by day, then by the time in the mail id."""
    return f"{queue}/{accepted_at:%Y/%m/%d}/{mail_id}"


def key_of_owner(queue: QueueName) -> str:
    """Return the key of the owner object, which no mail has (`domain.queues.ownership`)."""
    return f"{queue}/owner"


def mail_of_bytes(queue: QueueName, key: str) -> UUID | None:
    """Return the mail id of an object's key; None for a key that no mail of this queue has."""
    beginning, rest = f"{queue}/", key[len(f"{queue}/") :]
    found = _DAY_AND_ID.fullmatch(rest) if key.startswith(beginning) else None
    mail_id = None if found is None else UUID(found[1])
    return mail_id if mail_id is not None and mail_id.version == 7 else None


DELAY_SECONDS: tuple[int, ...] = tuple(1 << step for step in range(15))
"""The steps: powers of two from 1 s to 16384 s (about 4.5 h)."""

MAX_DOUBLING = 6
"""A redelivery delay after crashes is at most 2 ** 6 times the first one."""


def next_delay(due_at: datetime | None, now: datetime) -> int:
    """Return the longest step that does not pass `due_at`, in seconds; 0 when the mail is due. The
    last fraction of a second takes a step of one second, so no mail is early."""
    if due_at is None or due_at <= now:
        return 0
    left = (due_at - now).total_seconds()
    return max((step for step in DELAY_SECONDS if step <= left), default=DELAY_SECONDS[0])


def beside(step: int) -> int:
    """Return another step of about the same length, for a message that the queue of this one
    refuses. From a redelivery delay on it is no shorter than a redelivery delay.

    >>> beside(1), beside(8), beside(16), beside(32)
    (2, 16, 32, 16)
    """
    return step // 2 if step > 16 else step * 2


def redelivery_delay_after(crashes: int, redelivery_delay: timedelta, draw: float) -> int:
    """Return the step that a reference waits after a redelivery, in seconds. The more crashes, the
    wider the steps are drawn, so that a mail that crashes consumers is soon alone, and mails that
    were only in flight at the same time get through."""
    doubling = int(draw * (min(crashes, MAX_DOUBLING) + 1))
    wanted = redelivery_delay.total_seconds() * (1 << doubling)
    return max((step for step in DELAY_SECONDS if step <= wanted), default=DELAY_SECONDS[0])
