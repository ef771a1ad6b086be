"""`MailQueue`: the one port that both engines serve and that everything above them uses.

An item is leased to one consumer until it ends. A consumer that dies gives its items back; they
come again (see `Item.attempt` and the delivery records, which survive it). Each operation of an
administrator is one row here, what it does to one mail in each engine, and a method; the socket and
the commands read the rows.
Source: 000 Context and Decision; ADR 0002; ADR 0039."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, Self
from uuid import UUID

from postroad.domain.delivery import retries
from postroad.domain.delivery.retries import RetryPlan
from postroad.domain.mail.envelope_documents import HandedMail
from postroad.domain.mail.mail import Envelope, Mail, Outcome, explanation
from postroad.domain.mail.shapes import Shape
from postroad.domain.queues.documents import MailView, Sizes
from postroad.domain.queues.selection import Selector
from postroad.errors import InvalidInput
from postroad.ports.delivery import SharedState, SuppressionList
from postroad.ports.events import EventSpool


class Operation(StrEnum):
    """An operation on selected mails. Its value is its name on the socket and as a command."""

    past: str
    """Operation on the mails that were counted."""

    text: str
    """Text that a command's help shows."""

    of_dead_letters: bool
    """True if dead letters are selected; else the mails that wait, delayed, held and leased ones
    included."""

    def __new__(
        cls, name: str, past: str = "", text: str = "", of_dead_letters: bool = False
    ) -> Operation:
        made = str.__new__(cls, name)
        made._value_ = name
        made.past, made.text, made.of_dead_letters = past, text, of_dead_letters
        return made

    REMOVE = (
        "remove",
        "removed",
        "Remove the selected mails for ever. Dead letters are not touched.",
    )
    FLUSH = "flush", "flushed", "Make the selected delayed mails due now."
    HOLD = "hold", "held", "Keep the selected mails back until they are released."
    RELEASE = "release", "released", "Let the selected held mails go on."
    REQUEUE = "requeue", "requeued", "Give the selected dead letters a new entry.", True
    EXPIRE = "expire", "expired", "Give the selected waiting mails up: they become dead letters."
    DISCARD = (
        "discard",
        "discarded",
        "End the selected dead letters for ever; their bytes are deleted.",
        True,
    )


EXPIRED = "expired by an administrator"
"""The reason of a dead letter that `expire` made."""


class Administration(Protocol):
    """The operations on selected mails, as methods: a queue inherits them and has `change`."""

    async def change(self, operation: Operation, selector: Selector) -> int:
        """Do an operation to the selected mails; return how many it changed. Durable when it
        returns. Raises: InvalidInput for an empty selector, ServerError, StoreFailed,
        StoreDamaged."""

    async def remove(self, selector: Selector) -> int:
        """Remove mails; they are never delivered again, their bytes are deleted. An item that a
        consumer holds right now may still be delivered."""
        return await self.change(Operation.REMOVE, selector)

    async def flush(self, selector: Selector) -> int:
        """Make delayed mails due now."""
        return await self.change(Operation.FLUSH, selector)

    async def hold(self, selector: Selector) -> int:
        """Keep mails back until they are released."""
        return await self.change(Operation.HOLD, selector)

    async def release(self, selector: Selector) -> int:
        """Let held mails go on; a delay that is not over yet stays."""
        return await self.change(Operation.RELEASE, selector)

    async def expire(self, selector: Selector) -> int:
        """Give waiting mails up: each becomes a dead letter with the reason `EXPIRED`, for the
        recipients who did not get it. Dead letters are not touched. A mail that a consumer holds
        right now may still be delivered: it is no dead letter then."""
        return await self.change(Operation.EXPIRE, selector)

    async def requeue(self, selector: Selector) -> int:
        """Give dead letters a new entry for their recipients, failed ones included; due at once,
        attempts kept."""
        return await self.change(Operation.REQUEUE, selector)

    async def discard(self, selector: Selector) -> int:
        """End dead letters for good: they are never delivered, their bytes are deleted."""
        return await self.change(Operation.DISCARD, selector)


NO_DELAY = timedelta(0)

HANDLER_TIMEOUT = timedelta(minutes=1)

DRAIN_TIMEOUT = timedelta(seconds=25)
"""Time that mails in hand have to end once a consumer is to stop."""

Handled = None | Outcome | Mapping[str, Outcome]
MailHandler = Callable[[HandedMail], Handled | Awaitable[Handled]]
"""A function of a program that gets mails, `async` or not (docs/programs.md)."""

MAX_PREFETCH = 65535
"""Range that RabbitMQ can count; 0 means there that a consumer gets all messages (AMQP 0-9-1,
basic.qos)."""


def check_prefetch(prefetch: int) -> None:
    """Raise InvalidInput for what no consumer can have."""
    if type(prefetch) is not int or not 1 <= prefetch <= MAX_PREFETCH:
        raise InvalidInput(f"a prefetch or concurrency is 1 to {MAX_PREFETCH}, not {prefetch}")


def check_mail(mail: object) -> None:
    """Raise InvalidInput for what is no mail; before anything is written."""
    if not isinstance(mail, Mail):
        raise InvalidInput(
            f"a mail is a Mail, not {type(mail).__name__}",
            hint="write Mail(sender, [recipient], content)",
        )


def check_selector(selector: object, *, is_optional: bool = False) -> None:
    """Raise InvalidInput for what is no selector, such as an address."""
    if not isinstance(selector, Selector) and not (is_optional and selector is None):
        raise InvalidInput(
            f"mails are selected by a Selector, not {type(selector).__name__}",
            hint="write Selector(recipient=…), or Selector.all()",
        )


def check_delay(delay: timedelta) -> None:
    """Raise InvalidInput for what is no delay; before anything is written."""
    if not isinstance(delay, timedelta):
        raise InvalidInput(
            f"a delay is a timedelta, not {type(delay).__name__}",
            hint="write timedelta(seconds=5)",
        )


def checked_ending(ending: Any) -> retries.ItemEnding:
    """Return an ending with its reason as it is stored. Raises: InvalidInput, also for what is no
    ending and for what is no delay."""
    if isinstance(ending, retries.Done):
        return ending
    if isinstance(ending, retries.Reject):
        return retries.Reject(explanation(ending.reason))
    if not isinstance(ending, retries.RetryItem | retries.DeferItem):
        raise InvalidInput(
            f"an item ends by Done, RetryItem, DeferItem or Reject, not {type(ending).__name__}"
        )
    check_delay(ending.delay)
    return ending if ending.reason is None else replace(ending, reason=explanation(ending.reason))


class Item(retries.Endings, Protocol):
    """One leased entry of a mail. Exactly one of `done`, `retry`, `defer`, `reject` ends it, or
    `end` with the value of one.

    A second ending raises EntryEnded. When the entry was ended otherwise meanwhile (an
    administrator removed it), the ending changes nothing and returns normally: the mail is gone.
    EntryLost: whether the entry was ended is unknown; if it was not, the mail comes again.

    An ending keeps the outcomes of the attempt that it is handed (ADR 0033), in the write that it
    makes anyway. Outcomes decide nothing. Where the entry was ended otherwise meanwhile they may be
    gone; in the embedded engine a crash within a second may lose them.

    `async with item:` ends the lease of an item that its block does not end: after an error of the
    handler by `retry` within a second, with the error's class as the last error, otherwise by
    `give_back`. An ending that is cancelled is made, or the item goes back: the lease ends in any
    case. A `record` that is cancelled may be made; the item is as before."""

    @property
    def enqueue_id(self) -> UUID: ...

    @property
    def mail_id(self) -> UUID: ...

    @property
    def mail(self) -> Envelope:
        """The envelope with the recipients left for this entry, less those already recorded."""

    @property
    def accepted_at(self) -> datetime: ...

    @property
    def enqueued_at(self) -> datetime: ...

    @property
    def attempt(self) -> int:
        """Number of attempts before this one."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def lease_until(self) -> timedelta:
        """Until when the item may be in flight, by `Clock.elapsed`. Later, the queue may hand the
        mail out again while it is transmitted. `defer` is for those who are left by then."""

    @property
    def failures(self) -> Mapping[str, str]:
        """The recipients recorded as failed, in this entry or an earlier one, with the outcomes'
        texts. A mail that has some when its last recipient is finished ends by `reject`, not by
        `done`, so that each failure is seen. `requeue` forgets them."""

    async def content(self) -> bytes:
        """Return the exact bytes that were enqueued. Fetched at the first call, and kept until the
        item ends. Raises: BlobMissing (the item then ends as a dead letter), BlobsUnavailable."""

    def stream(self) -> AsyncIterator[bytes]:
        """Yield the content in chunks of at most 1 MiB, so that a large mail needs little memory.
        May be called again, also at the same time: up to 1 MiB is fetched once and kept, as by
        `content`; a larger one is fetched for each call."""

    def at_hand(self) -> tuple[bytes, Shape | None] | None:
        """Return content and shape where that waits for no server and no disk, and keep them as
        `content` does; else None, as for an item that has ended. Raises nothing."""

    def forget_content(self) -> None:
        """Keep the content no longer, while the item waits and no caller reads it; the next reading
        fetches it again."""

    async def shape(self) -> Shape | None:
        """Return what acceptance found out about the content; None where a release that did not
        look has stored it. Raises: as `content`."""

    async def record(self, outcomes: Mapping[str, Outcome]) -> None:
        """Record what became of these recipients, each with its own text, together: one wait for a
        sync, one request. Durable when it returns; idempotent. After an error, some of them may be
        recorded. Delivered and failed recipients are never handed out again, whatever crashes next,
        and whatever is deferred later. Raises: InvalidInput when one is not among
        `mail.recipients`; none is recorded then."""

    async def give_back(self) -> None:
        """End the lease of an item that is not ended: the entry comes again for those not recorded,
        at once or after the distributed engine's redelivery delay, and no attempt is counted.
        Raises nothing, also for an item that has ended."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None: ...


class IntakeQueue(Protocol):
    """The part of a queue that takes mail."""

    @property
    def name(self) -> str:
        """The queue's name as in its URL."""

    async def enqueue(
        self, mail: Mail, delay: timedelta = NO_DELAY, *, key: str | None = None
    ) -> UUID:
        """Queue a mail and return its enqueue id. Durable when it returns.

        A negative delay is none. A mail with the attribute QUARANTINE is held from the beginning.
        Without a key each call is a mail of its own, and on an error nothing was queued, but see
        invariant 1 of the distributed engine (docs/invariants.md) for the one exception.

        With a key (1 to 512 characters, the content as bytes) the calls of 24 hours are one mail:
        the first queues it, the others return its enqueue id, also when they come at the same time
        from several processes, or the mail has ended meanwhile. After an error the mail may be
        queued: repeat the call with its key. What a process left half done another one settles
        within a minute. Two mails for one key are possible only where ADR 0045 names it.

        After a cancellation the mail is queued whole, or will be, or is not: with a key, repeat the
        call to know. Of a directory whose owner closes, the calls go on with the next owner;
        EnqueueUnknown where the owner was killed before it answered.

        Raises: InvalidInput and KeyReused, for a key; InvalidMail, MailTooLarge, StoreFull,
        DeadlineExceeded, EnqueueUnknown, ServerError, QueueClosed."""

    @property
    def incoming(self) -> Path | None:
        """The directory for the content of large mails before they are queued; None: that of the
        system for temporary files. Its space is what `has_room` counts."""

    def has_room(self, size_bytes: int, *, is_taken: bool = False) -> bool:
        """Return False when a mail of that size would meet StoreFull now. Nothing is set aside for
        it, unless it `is_taken`: the caller writes it to `incoming`. True where that is not known:
        in the distributed engine, and to a process that leaves the storing to the owner of a
        directory. Quick: it asks no server. Never raises."""


class MailQueue(IntakeQueue, Administration, Protocol):
    """A durable queue of mails. All methods are safe to call concurrently on one handle."""

    @property
    def shared_state(self) -> SharedState | None:
        """The shared state of the processes of this queue; None: this handle has none."""

    @property
    def suppression_list(self) -> SuppressionList | None:
        """The addresses that this queue does not mail; None: this handle has none."""

    @property
    def event_spool(self) -> EventSpool | None:
        """Events of this queue that wait to be sent; None: this handle has none."""

    def check_open(self) -> None:
        """Raise the error that every operation meets until this handle is opened again: it was
        closed, or its store has stopped. A server that is away is none: enqueue raises that error,
        and waiting mail waits on. Quick: it asks no server. Raises: QueueClosed, StoreFailed,
        StoreFull, StoreDamaged."""

    def dequeue(self, prefetch: int = 10) -> AsyncIterator[Item]:
        """Yield items as they become due, for ever; roughly in order of their entries.

        At most `prefetch` items, 1 to 65535, are leased and not ended at a time. Leaving the loop
        (or `aclose`) stops new leases; items handed out stay leased until they end, are given back
        or the queue is closed. A cancelled wait leaves no item behind.
        Waits out an unavailable server with backoff and goes on by itself.
        Raises: InvalidInput, QueueClosed, ConfigurationError (permanent ones only)."""

    async def enqueue_all(
        self,
        mails: Iterable[Mail],
        *,
        key: Callable[[Mail], str] | None = None,
        concurrency: int = 200,
    ) -> list[UUID]:
        """Queue mails, so many at a time, each as `enqueue` does; return their enqueue ids in their
        order. No further one is begun after an error. `key`: the key of a mail, so that a second
        call queues only what is missing. Raises: InvalidInput for a concurrency that is none; the
        first error, whose note has how many were queued."""

    async def consume(
        self,
        handler: MailHandler,
        *,
        concurrency: int = 10,
        retry: RetryPlan | None = None,
        timeout: timedelta = HANDLER_TIMEOUT,
        drain: timedelta = DRAIN_TIMEOUT,
        wait: bool = True,
    ) -> None:
        """Hand each due mail to a function, and end it by the result, for ever, as the function
        handler of a worker does (docs/programs.md): what it returns or raises is the outcome,
        deferred mail comes again by `retry`, and what is given up becomes a dead letter. The
        outcomes of each attempt are kept. No report is sent.

        After a cancellation, or SIGTERM where the program does not handle it, no mail is begun:
        those that the handlers have may take `drain`, then they are given back. Returns after
        SIGTERM alone; without `wait`, once nothing is due. Raises: InvalidInput, QueueClosed,
        ConfigurationError."""

    def browse(self, selector: Selector | None = None) -> AsyncIterator[MailView]:
        """Yield waiting mails, oldest entry first; delayed, held and leased ones included. Changes
        meanwhile may or may not be seen; a mail that stays is seen. Bounded memory."""

    def content(self, enqueue_id: UUID) -> AsyncIterator[bytes]:
        """Yield the content of a mail that waits, or of a dead letter, in chunks of at most 1 MiB.
        Nothing of the queue changes. Raises: MailNotFound, BlobMissing, ServerError, StoreDamaged.
        """

    async def size(self) -> Sizes:
        """Return how many mails wait; the operator asks every half minute. A mail that waits during
        the whole call is counted once; one that comes, ends or changes its entry meanwhile may be
        missed or counted twice. A bounded number of mails is read, however many wait; `at_least`
        where a right count would need more."""

    async def ages(self) -> Mapping[str, Mapping[timedelta, int]]:
        """Return live mails by destination domain and age: for each domain, how many are younger
        than each limit (5 min, 10 min, … as Postfix' qshape) and older than the one before.
        At most 60 s old."""

    async def purge(self) -> int:
        """Remove every mail that waits now, as `remove` does. Mails that are older than a minute go
        together, however many they are."""

    def dead_letters(self, selector: Selector | None = None) -> AsyncIterator[MailView]:
        """Yield dead letters with their reasons, in the order of their enqueue ids."""

    async def republish(self, older_than: timedelta) -> int:
        """Give back to the broker what the view holds and the broker may have lost: due mails
        whose entry began longer ago than `older_than`. Harmless for mails that are still there."""

    async def maintain(self) -> None:
        """Do one round of maintenance: limits, cleanup, roll-forward, dead letters. Idempotent."""

    async def close(self) -> None:
        """Stop consuming, give back what is leased, release connections. Idempotent."""

    async def __aenter__(self) -> MailQueue: ...

    async def __aexit__(self, *exc: object) -> None: ...
