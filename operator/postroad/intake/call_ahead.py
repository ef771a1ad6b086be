"""Recipients of a domain as the server has them that keeps its mailboxes: it is asked by RCPT.

A client waits for the reply meanwhile, so replies are remembered, and few recipients are asked for
at a time: a client that guesses addresses costs that server no more than these.
Source: 004 (verification of recipients)."""

from __future__ import annotations

import asyncio
import math
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

from postroad.domain.smtp.next_hops import NextHop
from postroad.domain.smtp.replies import Reply
from postroad.domain.values.text import ascii_lower
from postroad.errors import InvalidSettings
from postroad.intake.own_domains import UNKNOWN_RECIPIENT
from postroad.intake.reply_texts import UNVERIFIED
from postroad.smtp.client.authentication import authentication_at
from postroad.smtp.client.connecting import Addresses, Reached, Timeouts, UnixSocket
from postroad.smtp.client.opening import SessionTerms, context_for, ehlo_name_to
from postroad.smtp.client.sessions import ClientSession
from postroad.smtp.wire import WireError
from postroad.telemetry.logs import logger

_log = logger("intake")

KNOWN, UNKNOWN = timedelta(hours=4).total_seconds(), timedelta(minutes=10).total_seconds()
"""Seconds for which a reply holds: a new mailbox gets its mail soon."""

STILL_KNOWN = timedelta(days=7).total_seconds()
"""Seconds for which a recipient that there was is taken while its server is away."""

AWAY_SECONDS = 30.0
"""For which a server that did not answer is not asked."""

WITHIN_SECONDS = 20.0
"""For one question. A client waits for 5 minutes (RFC 5321 4.5.3.2.3)."""

MAX_ASKED = 10
"""Recipients that are asked for at a time; others wait for their turn, for as long."""

MAX_WAITING = 1000
"""Recipients that are asked for, or wait: clients that leave do not end a question."""

MAX_REMEMBERED = 100_000
"""Recipients that there are, and as many that there are not."""

AskForRecipient = Callable[[str], Awaitable[Reply]]
"""Returns the reply of a server to RCPT. Raises: WireError; InvalidSettings for authorities that
cannot be read."""


class CallAhead:
    """The recipients of one domain. `is_backup`: mail is taken also while the server is away.
    `now`: seconds of a monotonic clock. Needs a running event loop."""

    def __init__(self, ask: AskForRecipient, now: Callable[[], float], *, is_backup: bool) -> None:
        self._ask, self._now, self._is_backup = ask, now, is_backup
        self._known, self._unknown = _Replies(), _Replies()
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(MAX_ASKED)
        self._away_until = 0.0

    def refusal(self, recipient: str) -> Reply | None:
        """Return the reply that refuses a recipient, None, or UNVERIFIED: `look_up` finds out."""
        key, now = _key(recipient), self._now()
        if self._known.has(key, now - KNOWN):
            return None
        return UNKNOWN_RECIPIENT if self._unknown.has(key, now - UNKNOWN) else UNVERIFIED

    async def look_up(self, recipient: str) -> Reply | None:
        """Ask the server, where it is not away; return the reply that refuses a recipient, or
        None."""
        key = _key(recipient)
        may_ask = not self._is_away and len(self._asking) < MAX_WAITING
        if may_ask and key not in self._asking:
            asked = self._asking[key] = asyncio.create_task(self._learn(recipient))
            asked.add_done_callback(lambda _: self._asking.pop(key, None))
        if key in self._asking:  # a client that leaves breaks off no question of others
            await asyncio.wait((self._asking[key],))
        refusal = self.refusal(recipient)
        if refusal is not UNVERIFIED:
            return refusal
        is_still_known = self._known.has(key, self._now() - STILL_KNOWN)
        return None if is_still_known or (self._is_backup and self._is_away) else UNVERIFIED

    @property
    def _is_away(self) -> bool:
        return self._now() < self._away_until

    async def _learn(self, recipient: str) -> None:
        try:
            async with asyncio.timeout(WITHIN_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            return
        try:
            if self._is_away:  # as others have found meanwhile
                return
            async with asyncio.timeout(WITHIN_SECONDS):
                reply = await self._ask(recipient)
        except (WireError, TimeoutError, InvalidSettings) as error:
            self._note_away(type(error).__name__)
            return
        finally:
            self._turns.release()
        key = _key(recipient)
        if reply.is_positive:
            self._known.add(key, self._now())
            self._unknown.drop(key)
        elif _NO_MAILBOX.match(f"{reply.code} {reply.lines[0]}"):
            self._unknown.add(key, self._now())
            self._known.drop(key)

    def _note_away(self, why: str) -> None:
        self._away_until = self._now() + AWAY_SECONDS
        _log.warning("recipients cannot be verified", error=why)


_NO_MAILBOX = re.compile(r"5[0-9][0-9] 5\.1\.[0-9]|55[013] (?!5\.[0-9])")
"""Replies about the address: a mailbox that is full, or a client that is not wanted, says nothing
about whether there is one."""


def _key(recipient: str) -> str:
    """Return what a reply is remembered by. Only letters of ASCII are alike in both cases: a server
    that knows no ann with another letter still knows ann."""
    return ascii_lower(recipient)


class _Replies:
    """Recipients, and since when a server has replied so about them; the last at the end."""

    def __init__(self) -> None:
        self._since: OrderedDict[str, float] = OrderedDict()

    def has(self, recipient: str, since: float) -> bool:
        """True for a recipient that was learned of after this instant."""
        return self._since.get(recipient, -math.inf) > since

    def add(self, recipient: str, now: float) -> None:
        self._since[recipient] = now
        self._since.move_to_end(recipient)
        if len(self._since) > MAX_REMEMBERED:
            self._since.popitem(last=False)

    def drop(self, recipient: str) -> None:
        self._since.pop(recipient, None)


TIMEOUTS = Timeouts(connect=timedelta(seconds=10))


def server_that_knows(hop: NextHop, ehlo_name: str, ca_file: Path | None) -> AskForRecipient:
    """Return what asks a server for recipients. Raises: InvalidSettings for files that it names.
    Needs a running event loop."""
    reached: Reached = (
        UnixSocket(hop.socket)
        if hop.socket is not None
        else Addresses(hop.host, hop.port, TIMEOUTS.look_up, hop.source)
    )

    def terms() -> SessionTerms:
        context = context_for(hop.tls, hop.authorities or ca_file, hop.oldest_tls)
        name = ehlo_name_to(hop, ehlo_name)
        return SessionTerms(hop, name, context, TIMEOUTS, authentication_at(hop))

    terms()  # a file that is wrong from the start is refused
    return lambda recipient: _reply_to_rcpt(reached, terms(), recipient)


async def _reply_to_rcpt(reached: Reached, terms: SessionTerms, recipient: str) -> Reply:
    """Return the reply of a server to RCPT of a mail without a sender, which is not sent. Raises:
    WireError."""
    session = await ClientSession.open(reached, terms)
    try:
        mail = b"MAIL FROM:<>\r\n"
        if not recipient.isascii():
            if not session.takes_utf8:
                return Reply(553, ("5.1.3 the server takes no address that is not ASCII",))
            mail = b"MAIL FROM:<> SMTPUTF8\r\n"
        reply = await session.exchange.ask(mail, terms.timeouts.command)
        if not reply.is_positive:
            return Reply(450, ("4.1.1 the server refuses MAIL",))
        command = f"RCPT TO:<{recipient}>\r\n".encode()
        return await session.exchange.ask(command, terms.timeouts.command)
    finally:
        await session.quit()
