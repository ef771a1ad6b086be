"""One mail between DATA and its reply: its content comes in, and the queue takes it.

A mail is answered with 250 only after `enqueue` of the queue returned."""

from functools import partial

from postroad.domain.mail.mail import NO_ATTRIBUTES, TENANT, Mail, Origin
from postroad.domain.smtp.replies import Reply
from postroad.errors import PostroadError
from postroad.intake import reply_texts
from postroad.intake.context import IntakeContext
from postroad.intake.dialogue import Dialogue
from postroad.intake.message_buffer import MessageBuffer, trace_field
from postroad.intake.submitted_header import SubmittedHeader
from postroad.telemetry.logs import logger

_log = logger("intake")

MAX_DROPPED = 3
"""Times the largest mail: the session reads so much of a larger one before it closes, because many
clients read the reply only after the mail's end."""


class Reception:
    """The reception of one mail. The caller discards its buffer in the end."""

    def __init__(self, context: IntakeContext, dialogue: Dialogue, client: str | None) -> None:
        assert dialogue.transaction is not None
        self._context = context
        self._transaction = dialogue.transaction
        self._name = f"{context.randomness.bits(64):016x}"
        self._origin = Origin(dialogue.client_name, client, dialogue.protocol)
        self._max_size_bytes = dialogue.max_size_bytes
        self._submission = dialogue.rights.submission
        now, hostname = context.clock.now(), context.offer.hostname
        header = None
        if (its := self._submission) is not None:
            message_id = f"{self._name}@{hostname.strip('[]')}" if its.fixes_up else None
            header = SubmittedHeader(its.senders, message_id, now)
        self.buffer = MessageBuffer(
            self._max_size_bytes,
            trace_field(self._origin, hostname, self._name, now),
            context.queue.incoming,
            has_room=partial(context.queue.has_room, is_taken=True),
            normalises_line_ends=dialogue.rights.normalises_line_ends,
            takes_long_lines=context.takes_long_lines,
            header=header,
        )

    @property
    def is_far_too_large(self) -> bool:
        """True if the session closes instead of reading the mail to its end."""
        return self.buffer.size_bytes > MAX_DROPPED * self._max_size_bytes

    async def enqueue(self) -> Reply:
        """Enqueue the mail that was read, count it, and return the reply to it."""
        reply = await self._queue()
        self._count(reply)
        return reply

    async def _queue(self) -> Reply:
        buffer, queue = self.buffer, self._context.queue
        await buffer.complete()
        if (refusal := buffer.verdict()) is not None:
            return self._refused(refusal, buffer.problem)
        try:
            enqueue_id = str(await queue.enqueue(self._mail()))
        except PostroadError as error:
            return self._refused(reply_texts.reply_for(error), error)
        except Exception as error:  # also for a bug, 451: the client must keep the mail
            _log.exception("unexpected error in an enqueue", queue=queue.name)
            return reply_texts.reply_for(error)
        _log.info(
            "mail accepted",
            queue=queue.name,
            client=self._origin.address,
            enqueue_id=enqueue_id,
            mail_name=self._name,
            recipients=len(self._transaction.recipients),
            size_bytes=buffer.size_bytes,
        )
        return reply_texts.accepted(enqueue_id)

    def _mail(self) -> Mail:
        transaction, submission = self._transaction, self._submission
        tenant = None if submission is None else submission.tenant
        return Mail(
            transaction.mail_from.sender,
            transaction.recipients,
            self.buffer.content,
            name=self._name,
            attributes=NO_ATTRIBUTES if tenant is None else {TENANT: tenant},
            origin=self._origin,
            dsn=transaction.dsn,
        ).of_shape(self.buffer.shape)

    def _refused(self, reply: Reply, error: PostroadError | None = None) -> Reply:
        _log.info(
            "mail refused",
            queue=self._context.queue.name,
            client=self._origin.address,
            reply=str(reply),
            error=None if error is None else f"{type(error).__name__}: {error.explain()}",
        )
        return reply

    def _count(self, reply: Reply) -> None:
        if reply.is_positive:
            kind = "accepted"
        else:
            kind = "permanent" if reply.is_permanent else "transient"
        self._context.count(kind)
