"""One client's session: hands lines to the dialogue and content to the reception, sends replies.

Commands and content are processed within the event loop's call that brings them (serving.py); the
session's task does what has to wait."""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from postroad.domain.mail.mail import REQUIRE_TLS, Origin
from postroad.domain.smtp.replies import Reply
from postroad.intake import reply_texts
from postroad.intake.clients import Rights
from postroad.intake.commands import MAX_LINE, MAX_RESPONSE, Refused, decode_response
from postroad.intake.context import Deadlines, IntakeContext
from postroad.intake.dialogue import (
    BYE,
    CHANGE_CLIENT,
    CLOSE,
    LOG_IN,
    LOOK_UP,
    NEXT_COMMAND,
    READ_CHUNK,
    READ_MAIL,
    START_TLS,
    Admission,
    Dialogue,
    NextStep,
)
from postroad.intake.logins import results
from postroad.intake.logins.results import LoginClient, LoginFailed
from postroad.intake.reception import OfferedMail, Reception
from postroad.ports.mail_queue import NO_DELAY
from postroad.smtp.server import AGAIN, DONE, WAIT, RoundResult, ServingWire
from postroad.smtp.wire import (
    ConnectionLost,
    HandshakeFailed,
    LineTooLong,
    TooSlow,
    WireError,
)
from postroad.telemetry.logs import logger

_log = logger("intake")

LINGER = timedelta(seconds=1)
"""For the client to read the last reply: `close` with unread input resets the connection, and the
client may lose replies that it has not read."""

_OF_A_MAIL = frozenset((b"MAIL", b"RCPT"))
_ANSWERED_LATER = (
    START_TLS,
    LOG_IN,
    LOOK_UP,
    READ_CHUNK,
    CHANGE_CLIENT,
)  # no set: the hash of a member costs more
_Result = TypeVar("_Result")

BURST = 20
"""Commands answered in one step. A client that sends more at once waits in the run queue behind
clients that send few, which would else wait for hundreds of such clients."""


class _Interrupted(Exception):
    """The intake closes, and no mail of this session is under way."""


class IntakeSession:
    def __init__(
        self,
        wire: ServingWire,
        context: IntakeContext,
        rights: Rights,
        admission: Admission | None = None,
        rename: Callable[[str], Rights | Reply] | None = None,
    ) -> None:
        """`rename`: the client has another address, as a proxy says; returns its rights, or the
        reply that refuses it."""
        self._wire, self._rename = wire, rename
        self._context = context
        self._timeouts = context.timeouts
        self._deadlines = Deadlines(context.timeouts, wire.now())
        self._dialogue = Dialogue(context.offer, rights, admission)
        self._max_line = MAX_LINE if context.authenticator is None else MAX_RESPONSE
        self._response: bytes | None = None
        self._go_ahead = Reply(220)
        """The reply to STARTTLS. The task sends it just before it starts TLS: a client that had it
        earlier would begin its handshake while this side still reads commands."""

        self._incoming: Reception | None = None
        """The mail that is being received."""

        self._read: Callable[[IntakeSession], RoundResult] = IntakeSession._take_commands
        """Round for the octets that the client sends now: commands, a mail, or a chunk of one."""

        self._left = 0
        """Octets of a chunk that have not arrived yet."""

        self._next: Callable[[IntakeSession], Awaitable[None]] = IntakeSession._leave
        """Step of the task when it is woken. An unbound method, because a session that refers to
        itself is memory until the garbage collector runs."""

        self._is_over = self._has_quit = False
        self._refused_for: set[str] = set()

    async def run(self) -> None:
        """Serve until the client leaves, is too slow, or the intake closes."""
        if self._wire.is_secured:
            self._secured()
        try:
            await self._wire.write(self._dialogue.greeting().encode(), self._timeouts.command)
            while not self._is_over:
                await self._wire.serve(self._take, *self._time())
                await self._next(self)
        except _Interrupted:
            await self._farewell(reply_texts.CLOSING)
        except TooSlow:
            received = None if self._incoming is None else self._incoming.buffer.size_bytes
            await self._farewell(self._deadlines.reason(self._wire.now(), received=received))
        except WireError as error:
            _log.debug("session lost", error=str(error))
        finally:
            self._wire.abort()
            self._forget_mail()

    @property
    def is_stalled(self) -> bool:
        """True if the session waits for the client, and the client makes no progress."""
        received = None if self._incoming is None else self._incoming.buffer.size_bytes
        waits = self._wire.waits_for_peer or self._dialogue.login is not None
        return waits and self._deadlines.is_stalled(self._wire.now(), received=received)

    def make_room(self) -> None:
        """End a stalled session, with 421 if the client reads."""
        self._wire.give_up()

    def _time(self) -> tuple[timedelta, float]:
        """Return how long the client may be silent, and the deadline in any case."""
        if self._incoming is None:
            return self._timeouts.command, self._deadlines.session_ends
        return self._timeouts.data_block, self._deadlines.of_mail(self._incoming.buffer.size_bytes)

    # Within the event loop's call that brings octets.

    def _take(self) -> RoundResult:
        return self._read(self)

    def _take_commands(self) -> RoundResult:
        """Answer the commands that have arrived, many of them with one write."""
        wire = self._wire
        if wire.is_interrupted:
            raise _Interrupted
        replies: list[bytes] = []
        result = AGAIN
        for _ in range(BURST):
            try:
                line = wire.next_line(self._max_line)
                if line is None:
                    result = WAIT
                    break
                reply, step = self._dialogue.answer(line, is_followed=wire.has_unread)
                if self._incoming is not None and self._dialogue.transaction is None:
                    self._forget_mail()  # RSET or a hello between two chunks
                if (verb := line[:4].upper()) in _OF_A_MAIL and step is not LOOK_UP:
                    self._answered(verb, reply)
            except LineTooLong:
                reply, step = self._dialogue.refuse(reply_texts.LINE_TOO_LONG)
            if reply.code >= 400:
                self._note(reply)
            if step is NEXT_COMMAND:
                replies.append(reply.encode())
                continue
            result = self._begin(step, reply)  # end the loop: the next octets are no command
            if step is START_TLS:
                self._go_ahead = reply
            elif step not in _ANSWERED_LATER:
                replies.append(reply.encode())
            break
        if replies:
            wire.send(b"".join(replies))
            wire.expect(*self._time())
        return result

    def _answered(self, verb: bytes, reply: Reply) -> None:
        """Note the reply to a command of a mail."""
        if reply.is_positive:
            self._deadlines.progressed(self._wire.now())
        else:
            self._log_refusal(verb.decode(), reply)

    def _begin(self, step: NextStep, reply: Reply) -> RoundResult:
        if step is READ_MAIL:
            self._begin_mail()
            self._read = IntakeSession._take_content
            self._wire.expect_content()
            return AGAIN if self._wire.has_unread else WAIT
        if step is READ_CHUNK:
            return self._begin_chunk()
        self._next = _STEPS.get(step, IntakeSession._leave)
        self._has_quit = reply is BYE
        return DONE

    def _begin_mail(self) -> None:
        dialogue = self._dialogue
        assert dialogue.transaction is not None
        mail_from, recipients, _ = dialogue.transaction
        origin = Origin(dialogue.client_name, self._wire.peer_address, dialogue.protocol)
        offered = OfferedMail(
            mail_from.sender, recipients, dialogue.transaction.dsn, cipher=self._wire.cipher
        )
        if (hold := mail_from.hold) is not None:
            until = hold if isinstance(hold, timedelta) else hold - self._context.clock.now()
            offered = offered._replace(delay=max(until, NO_DELAY))
        if mail_from.requires_tls:
            offered = offered._replace(attributes={REQUIRE_TLS: "yes"})
        self._incoming = Reception(self._context, offered, origin, dialogue.rights)
        self._deadlines.begin_mail(self._wire.now())

    def _begin_chunk(self) -> RoundResult:
        chunk = self._dialogue.chunk
        assert chunk is not None
        if chunk.refusal is None and self._incoming is None:
            self._begin_mail()
        self._left, self._read = chunk.size_bytes, IntakeSession._take_chunk
        self._wire.expect_content()
        if not self._left:
            self._next = IntakeSession._finish_chunk
            return DONE
        return AGAIN if self._wire.has_unread else WAIT

    def _take_chunk(self) -> RoundResult:
        wire, incoming, chunk = self._wire, self._incoming, self._dialogue.chunk
        assert chunk is not None
        if not wire.has_unread:
            return WAIT
        octets = wire.next_chunk()
        if len(octets) > self._left:
            wire.put_back(octets[self._left :])
            octets = octets[: self._left]
        self._left -= len(octets)
        if chunk.refusal is None and incoming is not None:
            incoming.buffer.append(octets, is_end=chunk.is_last and not self._left)
            if incoming.is_far_too_large:
                self._next = IntakeSession._cut_off
                return DONE
        wire.expect(*self._time())
        if not self._left:
            self._next = IntakeSession._finish_chunk
            return DONE
        if incoming is not None and incoming.buffer.must_spill:
            self._next = IntakeSession._spill
            return DONE
        return AGAIN if wire.has_unread else WAIT

    def _take_content(self) -> RoundResult:
        wire, incoming = self._wire, self._incoming
        assert incoming is not None
        if not wire.has_unread:
            return WAIT
        rest = incoming.buffer.feed(wire.next_chunk())
        wire.expect(*self._time())
        if rest is not None:
            wire.put_back(rest)
            self._next = IntakeSession._finish_mail
        elif incoming.is_far_too_large:
            self._next = IntakeSession._cut_off
        elif incoming.buffer.must_spill:
            self._next = IntakeSession._spill
        else:
            return AGAIN if wire.has_unread else WAIT
        return DONE

    # In the session's task.

    async def _secure(self) -> None:
        assert self._context.tls is not None
        await self._wire.write(self._go_ahead.encode(), self._timeouts.command)
        try:
            await self._wire.start_tls(self._context.tls(), self._timeouts.tls)
        except HandshakeFailed as error:
            self._context.handshake_failed(error)
            raise
        self._forget_mail()  # of which chunks came in clear
        self._secured()

    def _secured(self) -> None:
        dialogue, certified = self._dialogue, self._context.certified
        dialogue.secured()
        if certified is not None and not dialogue.is_described:  # else it is the proxy's
            names = self._wire.names_in_certificate()
            dialogue.rights = certified.rights_of(names, dialogue.rights)

    async def _log_in(self) -> None:
        """Carry a login out, and reply to it."""
        dialogue, wire = self._dialogue, self._wire
        request = dialogue.login
        assert request is not None
        client = LoginClient(wire.peer_address or "", wire.channel_binding())
        try:
            rights = await self._unless_lost(
                self._context.log_in(request, self._ask, client, dialogue.rights)
            )
        except LoginFailed as error:
            reply, step = dialogue.login_failed(error.reply)
            self._note(reply)
            self._is_over = step is CLOSE
        else:
            reply = dialogue.logged_in(rights)
            self._deadlines.progressed(wire.now())
        await wire.write(reply.encode(), self._timeouts.command)
        if self._is_over:
            await self._leave()

    async def _look_up(self) -> None:
        """Find out about a recipient, and reply to its RCPT."""
        dialogue, rule = self._dialogue, self._dialogue.rights.recipients
        assert dialogue.unverified is not None
        assert rule is not None
        refusal = await self._unless_lost(rule.look_up(dialogue.unverified.recipient))
        reply, step = dialogue.looked_up(refusal)
        self._answered(b"RCPT", reply)
        if refusal is not None:
            self._note(reply)
        await self._wire.write(reply.encode(), self._timeouts.command)
        if step is CLOSE:
            await self._leave()

    async def _change_client(self) -> None:
        """Serve the client that a proxy has described.
        Source: Postfix documentation, XCLIENT_README."""
        dialogue, wire, said = self._dialogue, self._wire, self._dialogue.said_client
        assert said is not None
        assert self._rename is not None
        rights = self._rename(said.address or wire.peer_address or "")
        if isinstance(rights, Reply):
            await self._farewell(rights)
            raise ConnectionLost(str(rights))
        wire.client_address = said.address or wire.client_address
        try:
            if said.login is not None:
                client = LoginClient(wire.peer_address or "")
                rights = self._context.rights_of_user(said.login, client, rights)
            reply = dialogue.client_changed(rights)
        except LoginFailed as error:
            dialogue.client_changed(rights)
            reply = error.reply
        await wire.write(reply.encode(), self._timeouts.command)

    async def _unless_lost(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Wait for a login or a recipient, but not where its client has left: those who guess wait
        long, and would hold a session meanwhile. Raises: as the work; ConnectionLost."""
        running = asyncio.ensure_future(work)
        lost = asyncio.ensure_future(self._wire.closed())
        try:
            await asyncio.wait((running, lost), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise ConnectionLost
            return await running
        finally:
            running.cancel()
            lost.cancel()

    async def _ask(self, challenge: bytes) -> bytes:
        """Send a challenge; return the response. Raises: LoginFailed, WireError."""
        line = b"334 " + base64.b64encode(challenge) + b"\r\n"
        await self._wire.write(line, self._timeouts.command)
        try:
            await self._wire.serve(self._take_response, *self._time())
        except LineTooLong:
            raise LoginFailed(results.TOO_LONG) from None
        response, self._response = self._response, None
        if response == b"*":
            raise LoginFailed(results.CANCELLED)
        try:
            return decode_response(response or b"")
        except Refused as error:
            raise LoginFailed(error.reply) from None

    def _take_response(self) -> RoundResult:
        if self._wire.is_interrupted:
            raise _Interrupted
        self._response = self._wire.next_line(MAX_RESPONSE)
        return WAIT if self._response is None else DONE

    async def _leave(self) -> None:
        self._is_over = True
        await self._wire.flush(self._timeouts.command)
        if self._wire.has_unread or not self._has_quit:  # behind QUIT, nothing is on its way
            await self._wire.linger(LINGER)
        await self._wire.close(self._timeouts.goodbye)

    async def _farewell(self, reply: Reply) -> None:
        self._note(reply)
        try:
            await self._wire.write(reply.encode(), self._timeouts.goodbye)
            await self._wire.linger(LINGER)
            await self._wire.close(self._timeouts.goodbye)
        except WireError:
            pass  # the client left first, or does not read

    async def _cut_off(self) -> None:
        await self._farewell(reply_texts.TOO_LARGE)
        raise ConnectionLost("the client goes on sending a mail that is far too large")

    async def _spill(self) -> None:
        assert self._incoming is not None
        await self._incoming.buffer.spill()

    async def _finish_chunk(self) -> None:
        """Reply to a chunk that has been read; enqueue the mail with the last one."""
        chunk, self._read = self._dialogue.chunk, IntakeSession._take_commands
        assert chunk is not None
        if chunk.refusal is not None:
            reply, step = self._dialogue.chunk_refused(chunk.refusal)
            await self._wire.write(reply.encode(), self._timeouts.command)
            if step is CLOSE:
                await self._leave()
            return
        assert self._incoming is not None
        if chunk.is_last:
            if not chunk.size_bytes:
                self._incoming.buffer.append(b"", is_end=True)
            await self._finish_mail()
            return
        if self._incoming.buffer.must_spill:
            await self._spill()
        reply = Reply(250, (f"2.0.0 {chunk.size_bytes} octets received",))
        await self._wire.write(reply.encode(), self._timeouts.command)

    async def _finish_mail(self) -> None:
        """Enqueue the mail that was read, and reply to it."""
        assert self._incoming is not None
        try:
            reply = await self._incoming.enqueue()
        finally:
            self._forget_mail()
        if reply.is_positive:
            self._dialogue.accepted()
            self._deadlines.progressed(self._wire.now())
        await self._wire.write(reply.encode(), self._timeouts.command)
        if self._wire.now() >= self._deadlines.session_ends:
            self._is_over = True
            await self._farewell(reply_texts.TOO_LONG)

    def _forget_mail(self) -> None:
        if self._incoming is not None:
            self._incoming.buffer.discard()
            self._incoming = None
            self._read = IntakeSession._take_commands
            self._dialogue.finish()

    def _note(self, reply: Reply) -> None:
        """Count the client as refused, if this reply refuses it."""
        self._context.client_refused(reply, self._wire.peer_address, self._refused_for)

    def _log_refusal(self, verb: str, reply: Reply) -> None:
        _log.info(
            "command refused",
            queue=self._context.queue.name,
            client=self._wire.peer_address,
            command=verb,
            reply=str(reply),
        )


_STEPS = {
    START_TLS: IntakeSession._secure,
    LOG_IN: IntakeSession._log_in,
    LOOK_UP: IntakeSession._look_up,
    CHANGE_CLIENT: IntakeSession._change_client,
}
