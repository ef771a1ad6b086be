"""One mail between DATA and its reply: its content comes in, and the queue takes it.

A mail is answered with 250 only after `enqueue` of the queue returned."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from postroad.contents import chunks_of
from postroad.domain.mail.mail import (
    CONTENT_DIGEST,
    EVENT_KEY,
    NO_ATTRIBUTES,
    QUARANTINE,
    TENANT,
    TRACEPARENT,
    DsnOptions,
    Mail,
    Origin,
    RecipientDsn,
)
from postroad.domain.queues.references import token_of
from postroad.domain.smtp.replies import Reply
from postroad.errors import PostroadError
from postroad.intake import reply_texts
from postroad.intake.accepted_events import publish_accepted, start_of
from postroad.intake.clients import Rights
from postroad.intake.context import IntakeContext
from postroad.intake.filters.chain import NOT_CHECKED, FilterChain, Filtered
from postroad.intake.filters.decisions import FilteredMail
from postroad.intake.message_buffer import MEMORY_BYTES, MessageBuffer, trace_field
from postroad.intake.submitted_header import SubmittedHeader
from postroad.ports.mail_queue import NO_DELAY
from postroad.telemetry.logs import logger
from postroad.telemetry.tracing import MailSpan, mail_attributes

if TYPE_CHECKING:  # its library is one of the extra `intake`
    from postroad.intake.returns.handling import ReturnedMails

_log = logger("intake")

MAX_DROPPED = 3
"""Times the largest mail: the session reads so much of a larger one before it closes, because many
clients read the reply only after the mail's end."""

_UNREPORTED = RecipientDsn(("NEVER",))


class OfferedMail(NamedTuple):
    """All of a mail but its content, as a client offers it. `key`: an enqueue key; `name`: of the
    mail, None: any."""

    sender: str | None
    recipients: tuple[str, ...]
    dsn: DsnOptions | None = None
    attributes: Mapping[str, str] = NO_ATTRIBUTES
    priority: int = 0
    delay: timedelta = NO_DELAY
    key: str | None = None
    name: str | None = None
    is_incomplete: bool = False
    """True if what its header lacks is added, whatever the rule of its user says."""
    cipher: tuple[str, str] | None = None
    """The version of TLS and the cipher over which it comes."""


class Reception:
    """The reception of one mail. The caller discards its buffer in the end."""

    def __init__(
        self, context: IntakeContext, offered: OfferedMail, origin: Origin, rights: Rights
    ) -> None:
        self._context, self._offered, self._origin = context, offered, origin
        self.name = offered.name or f"{context.randomness.bits(64):016x}"
        self.enqueue_id: UUID | None = None
        """Of the mail, once it is queued."""

        self.error: PostroadError | None = None
        """Error for which it was refused, if one was raised."""

        self.digest: str | None = None
        """Digest of what the client asked for, envelope and content, of a mail with a key."""

        self._max_size_bytes = rights.largest_mail(context.offer.max_size_bytes)
        self._submission = rights.submission
        self._span: MailSpan | None = None
        self._enqueueing: MailSpan | None = None
        now, hostname = context.clock.now(), context.offer.hostname
        self._began_at = now
        header = None
        if (its := self._submission) is not None:
            completes = its.fixes_up or offered.is_incomplete
            message_id = f"{self.name}@{hostname.strip('[]')}" if completes else None
            header = SubmittedHeader(its.senders, message_id, now)
        self._trace = trace_field(origin, hostname, self.name, now, offered.cipher)
        self.buffer = self._new_buffer(self._max_size_bytes, rights.normalises_line_ends, header)

    def _new_buffer(
        self,
        limit_bytes: int,
        normalises_line_ends: bool = False,
        header: SubmittedHeader | None = None,
    ) -> MessageBuffer:
        context = self._context
        return MessageBuffer(
            limit_bytes,
            self._trace,
            context.queue.incoming,
            has_room=partial(context.queue.has_room, is_taken=True),
            normalises_line_ends=normalises_line_ends,
            takes_long_lines=context.takes_long_lines,
            header=header,
        )

    @property
    def is_far_too_large(self) -> bool:
        """True if the session closes instead of reading the mail to its end."""
        return self.buffer.size_bytes > MAX_DROPPED * self._max_size_bytes

    async def enqueue(self) -> Reply:
        """Enqueue the mail that was read, count it, and return the reply to it."""
        if self._context.tracer is not None:
            parent = self._offered.attributes.get(TRACEPARENT)
            self._span = self._context.tracer.begin("accept", parent, {}, self._began_at)
        reply = await self._queue()
        if self._span is not None:
            self._end_spans(self._span, reply)
        self._count(reply)
        return reply

    def _end_spans(self, span: MailSpan, reply: Reply) -> None:
        recipients = len(self._offered.recipients)
        queue, size_bytes = self._context.queue.name, self.buffer.size_bytes
        attributes = mail_attributes(queue, size_bytes, recipients)
        attributes["network.protocol.name"] = (self._origin.protocol or "").lower()
        attributes["postroad.reply"] = _codes(reply)
        if self._enqueueing is not None:
            self._enqueueing.end({}, is_error=not reply.is_positive)
        span.end(attributes, is_error=not reply.is_positive)

    async def _queue(self) -> Reply:
        queue = self._context.queue
        await self.buffer.complete()
        if (refusal := self.buffer.verdict()) is not None:
            return self._refused(refusal, self.buffer.problem)
        try:
            if self._context.returned is not None:
                reply = await self._take_back(self._context.returned)
                if reply is not None:
                    return reply
            if self._context.filters is not None:
                reply = await self._filter(self._context.filters)
                if reply is not None:
                    return reply
            mail = self._mail()
            enqueue_id = self.enqueue_id = await queue.enqueue(
                mail, self._offered.delay, key=self._offered.key
            )
        except PostroadError as error:
            return self._refused(reply_texts.reply_for(error), error)
        except Exception as error:  # also for a bug, 451: the client must keep the mail
            _log.exception("unexpected error in an enqueue", queue=queue.name)
            return reply_texts.reply_for(error)
        if self._enqueueing is not None:
            self._enqueueing.end({"messaging.message.id": str(enqueue_id)})
        await publish_accepted(
            self._context.events,
            queue.name,
            enqueue_id,
            mail.envelope,
            mail.content,
            self.buffer.size_bytes,
            self._context.clock.now(),
        )
        _log.info(
            "mail accepted",
            queue=queue.name,
            client=self._origin.address,
            enqueue_id=str(enqueue_id),
            mail_name=self.name,
            recipients=len(self._offered.recipients),
            size_bytes=self.buffer.size_bytes,
        )
        return reply_texts.accepted(enqueue_id)

    async def _take_back(self, returned: "ReturnedMails") -> Reply | None:
        """Let reports that come back be taken. Return the reply where no recipient is left."""
        offered = self._offered
        own = [each for each in offered.recipients if returned.takes(each)]
        if not own:
            return None
        reply, kept = await returned.take(await start_of(self.buffer.content), offered.sender, own)
        left = tuple(each for each in offered.recipients if each in kept or each not in own)
        if not reply.is_positive:
            return self._refused(reply)
        if left:
            dsn = _redirected(offered.dsn, offered.recipients, left)
            self._offered = offered._replace(recipients=left, dsn=dsn)
        return None if left else reply

    async def _filter(self, filters: FilterChain) -> Reply | None:
        """Let filters look at the mail, and change it. Return the reply where it is over."""
        async with filters.room(self.buffer.size_bytes):
            before = await self._filtered_mail()
            found = await filters.run(before, self._max_size_bytes)
            if found.reply is not None:
                return self._refused(found.reply, logs_text=False)
            if found.is_discarded:
                self.enqueue_id = self._id_without_a_mail()
                _log.info("mail discarded", queue=self._context.queue.name, mail_name=self.name)
                return reply_texts.accepted(self.enqueue_id)
            self._readdress(found)
            if found.mail.content is before.content:
                return None
            await self._replace(found.mail.content)
        if (refusal := self.buffer.verdict()) is None:
            return None
        # Never for good: what the client sent has passed.
        refusal = NOT_CHECKED if refusal.is_permanent else refusal
        return self._refused(refusal, self.buffer.problem)

    def _id_without_a_mail(self) -> UUID:
        """Return the id of a mail that no one gets: the same for each request with one key."""
        if (key := self._offered.key) is not None:
            return UUID(bytes=token_of(key)[:16])
        return UUID(int=self._context.randomness.bits(128))

    def _readdress(self, found: Filtered) -> None:
        offered, mail, dsn = self._offered, found.mail, self._offered.dsn
        if mail.recipients is not offered.recipients:
            dsn = _redirected(dsn, offered.recipients, mail.recipients)
        attributes = offered.attributes
        if found.hold is not None:
            attributes = {**attributes, QUARANTINE: found.hold}
        self._offered = offered._replace(
            sender=mail.sender, recipients=mail.recipients, dsn=dsn, attributes=attributes
        )

    async def _replace(self, content: bytes) -> None:
        self.buffer.discard()
        self.buffer = self._new_buffer(len(content))
        for at in range(0, len(content), MEMORY_BYTES):
            self.buffer.append(content[at : at + MEMORY_BYTES], is_end=False)
            if self.buffer.must_spill:
                await self.buffer.spill()
        await self.buffer.complete()

    async def _filtered_mail(self) -> FilteredMail:
        whole = b"".join([each async for each in chunks_of(self.buffer.content, MEMORY_BYTES)])
        its = self._submission
        return FilteredMail(
            self.name,
            self._context.offer.hostname,
            self._offered.sender,
            self._offered.recipients,
            whole[len(self._trace) :],
            self._origin,
            None if its is None else its.user,
            self._offered.attributes.get(TENANT) if its is None else its.tenant,
            self._offered.cipher,
        )

    def _mail(self) -> Mail:
        offered, submission, attributes = self._offered, self._submission, self._offered.attributes
        if submission is not None and submission.tenant is not None:
            attributes = {**attributes, TENANT: submission.tenant}
        if self.digest is not None:
            attributes = {**attributes, CONTENT_DIGEST: self.digest}
        if (events := self._context.events) is not None and events.is_on:
            attributes = {**attributes, EVENT_KEY: f"{self._context.randomness.bits(128):032x}"}
        if self._span is not None:
            self._enqueueing = self._span.child("enqueue", {})
            attributes = {**attributes, TRACEPARENT: self._enqueueing.traceparent}
        return Mail(
            offered.sender,
            offered.recipients,
            self.buffer.content,
            name=self.name,
            attributes=attributes,
            origin=self._origin,
            dsn=offered.dsn,
            priority=offered.priority,
        ).of_shape(self.buffer.shape)

    def _refused(
        self, reply: Reply, error: PostroadError | None = None, *, logs_text: bool = True
    ) -> Reply:
        """Log the reply that refuses the mail; of a filter, whose text may hold addresses, the
        codes alone."""
        self.error = error
        _log.info(
            "mail refused",
            queue=self._context.queue.name,
            client=self._origin.address,
            reply=str(reply) if logs_text else _codes(reply),
            error=None if error is None else f"{type(error).__name__}: {error.explain()}",
        )
        return reply

    def _count(self, reply: Reply) -> None:
        if reply.is_positive:
            kind = "accepted"
        else:
            kind = "permanent" if reply.is_permanent else "transient"
        self._context.count(kind)


def _codes(reply: Reply) -> str:
    return " ".join(map(str, filter(None, (reply.code, reply.enhanced))))


def _redirected(
    dsn: DsnOptions | None, offered: Sequence[str], recipients: Sequence[str]
) -> DsnOptions | None:
    """Return the parameters for the recipients that filters leave. No report names one that a
    filter has added, whom the sender does not know."""
    before, now = frozenset(offered), frozenset(recipients)
    added = {to: _UNREPORTED for to in recipients if to not in before}
    if dsn is None and not added:
        return None
    dsn = dsn or DsnOptions()
    kept = {to: its for to, its in dsn.recipients.items() if to in now}
    return replace(dsn, recipients=kept | added)
