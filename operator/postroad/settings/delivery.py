"""The settings of delivery: when it is tried, to which next hop or program, what senders hear."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr

from postroad.domain.delivery.retries import DEFAULT_LANES, DEFAULT_MAX_AGE
from postroad.domain.mail.envelope_documents import MAX_HANDED, MAX_HANDING
from postroad.domain.queues.lifetimes import DEAD_LETTER_LIFETIME
from postroad.domain.reports.deciding import (
    DELAY_REPORTED_AFTER,
    MAX_RETURNED_BYTES,
    REPORTS_PER_MINUTE,
)
from postroad.settings.documents import Duration, Mailbox, Section, split


class Retry(Section):
    """When the worker tries again."""

    lanes: Annotated[tuple[Duration, ...], BeforeValidator(split), Field(min_length=1)] = (
        DEFAULT_LANES
    )
    """Delays by attempt, comma separated; the last one repeats."""

    max_age: Duration = DEFAULT_MAX_AGE
    """Since acceptance; a mail that is older is given up at its next deferral."""

    soft_bounce: bool = False
    """True if a permanent refusal defers a mail, which is given up at its max age only."""

    dead_letter_lifetime: Duration = DEAD_LETTER_LIFETIME
    """From the death of a mail until it is discarded, with its bytes."""


class Worker(Section):
    """The worker."""

    delivery_file: Path | None = None
    """YAML file of what an administrator decides about delivery (`delivery_settings`)."""

    attempt_log: Path | None = None
    """Folder of the attempt log, in which `postroad trace` searches. None: none is written."""

    attempt_log_addresses: bool = False
    """True if it, and outcomes that a console follows, have addresses and replies as they are;
    otherwise domains, and replies without what names a person, a host or a mail."""

    attempt_log_lifetime: Duration = timedelta(days=14)
    """Time that a line is kept, to the hour."""

    attempt_log_bytes: Annotated[int, Field(ge=32 * 2**20)] = 2**30
    """Of all files; beyond it the oldest are deleted, but none of the last two hours."""

    suspend_by_replies: bool = True
    """True if replies such as `421 4.7.0` suspend a site for a time, where mail goes by routes."""

    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 200
    """Connections to next hops at most; with a relay, mails in flight too. Where mail goes by
    routes, those that wait for a next hop do not count, as long as they are no more than half as
    many."""

    window: Annotated[int, Field(ge=1, le=20_000)] = 900
    """Mails in flight at most where mail goes by routes: those of sites that are slow or back off
    must leave room for others. Each that waits costs a distributed queue a claim every 40 s; an
    embedded one nothing."""


class Reports(Section):
    """Reports to the senders of mail that is not delivered, or whose delivery they ask about."""

    enabled: bool = True
    """false: none are made, and the intake does not offer DSN."""

    delay_after: Duration = DELAY_REPORTED_AFTER
    """The age at which a mail that waits is reported as delayed, once; more than the retry's max
    age: never."""

    author: Mailbox | None = None
    """The address in the field From; None: MAILER-DAEMON at the name of this process in SMTP."""

    administrator: Mailbox | None = None
    """The address that gets reports about mail with the null reverse-path, such as reports; None:
    none are made."""

    largest_returned_bytes: Annotated[int, Field(ge=0, le=2**20)] = MAX_RETURNED_BYTES
    """A mail of up to this size goes back whole with the report of its failure, of a larger one the
    header alone."""

    per_minute: Annotated[int, Field(ge=1, le=1_000_000)] = REPORTS_PER_MINUTE
    """Reports of one process to one address. Further ones wait for up to an hour; beyond that, none
    are made."""


TimeoutSetting = Annotated[Duration, Field(ge=timedelta(seconds=1), le=MAX_HANDING)]
HandedBytes = Annotated[int, Field(ge=65536, le=MAX_HANDED)]


class WorkerWebhook(Section):
    """The webhook that gets a worker's mail."""

    url: SecretStr | None = None
    """None: mail goes elsewhere."""

    login_folder: Path | None = None
    """Folder with the file `secret`, read again for each mail: the secrets that sign requests, one
    a line."""

    ca_file: Path | None = None
    """Certificate authorities of the webhook, instead of those for every server."""

    timeout: TimeoutSetting = timedelta(seconds=60)
    """For one mail, from the connection to the answer."""

    largest_bytes: HandedBytes = MAX_HANDED
    """A longer mail is refused for good."""


class WorkerFunction(Section):
    """The function in Python that gets a worker's mail."""

    name: str | None = None
    """`module:function`. None: mail goes elsewhere."""

    timeout: TimeoutSetting = timedelta(seconds=60)
    """For one mail."""

    largest_bytes: HandedBytes = MAX_HANDED
    """A longer mail is refused for good."""
