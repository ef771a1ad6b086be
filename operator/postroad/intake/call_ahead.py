"""Recipients of a domain as the server has them that keeps its mailboxes: it is asked by RCPT.

A client waits for the reply meanwhile, so replies are remembered, and few recipients are asked for
at a time: a client that guesses addresses costs that server no more than these.
Source: 004 (verification of recipients)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

from postroad.domain.smtp.next_hops import NextHop
from postroad.domain.smtp.replies import Reply
from postroad.intake.own_domains import UNKNOWN_RECIPIENT
from postroad.intake.reply_texts import UNVERIFIED
from postroad.smtp.client.authentication import authentication_at
from postroad.smtp.client.client import SessionRefused
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
"""Recipients that are asked for at a time."""

MAX_REMEMBERED = 100_000

AskForRecipient = Callable[[str], Awaitable[Reply]]
"""Returns the reply of a server to RCPT. Raises: WireError."""


class CallAhead:
    """The recipients of one domain. `is_backup`: mail is taken also where the server does not say
    who they are. `now`: seconds of a monotonic clock. Needs a running event loop."""

    def __init__(self, ask: AskForRecipient, now: Callable[[], float], *, is_backup: bool) -> None:
        self._ask, self._now, self._is_backup = ask, now, is_backup
        self._replies: OrderedDict[str, tuple[bool, float]] = OrderedDict()
        """Recipient → whether there is one, and since when that is known; the last at the end."""

        self._asking: dict[str, asyncio.Task[None]] = {}
        self._away_until = 0.0

    def refusal(self, recipient: str) -> Reply | None:
        """Return the reply that refuses a recipient, None, or UNVERIFIED: `look_up` finds out."""
        is_there, since = self._replies.get(recipient.lower(), (False, -KNOWN))
        if self._now() - since >= (KNOWN if is_there else UNKNOWN):
            return UNVERIFIED
        return None if is_there else UNKNOWN_RECIPIENT

    async def look_up(self, recipient: str) -> Reply | None:
        """Ask the server, where it may be asked; return the reply that refuses a recipient, or
        None."""
        key = recipient.lower()
        asked = self._asking.get(key)
        if asked is None and self._now() >= self._away_until and len(self._asking) < MAX_ASKED:
            asked = self._asking[key] = asyncio.create_task(self._learn(recipient))
            asked.add_done_callback(lambda _: self._asking.pop(key, None))
        if asked is not None:
            await asyncio.wait((asked,))  # a client that leaves breaks off no question of others
        refusal = self.refusal(recipient)
        if refusal is not UNVERIFIED:
            return refusal
        is_there, since = self._replies.get(key, (False, 0.0))
        is_still_known = is_there and self._now() - since < STILL_KNOWN
        return None if is_still_known or self._is_backup else UNVERIFIED

    async def _learn(self, recipient: str) -> None:
        try:
            async with asyncio.timeout(WITHIN_SECONDS):
                reply = await self._ask(recipient)
        except (WireError, TimeoutError) as error:
            self._away_until = self._now() + AWAY_SECONDS
            what = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
            _log.warning("recipients cannot be verified", error=what)
            return
        if reply.is_positive or reply.is_permanent:
            self._replies[recipient.lower()] = reply.is_positive, self._now()
            self._replies.move_to_end(recipient.lower())
            if len(self._replies) > MAX_REMEMBERED:
                self._replies.popitem(last=False)


TIMEOUTS = Timeouts(connect=timedelta(seconds=10))


def server_that_knows(hop: NextHop, ehlo_name: str, ca_file: Path | None) -> AskForRecipient:
    """Return what asks a server for recipients. Raises: InvalidSettings for files that it names.
    Needs a running event loop."""
    reached: Reached = (
        UnixSocket(hop.socket)
        if hop.socket is not None
        else Addresses(hop.host, hop.port, TIMEOUTS.look_up, hop.source)
    )
    context = context_for(hop.tls, hop.authorities or ca_file, hop.oldest_tls)
    name = ehlo_name_to(hop, ehlo_name)
    terms = SessionTerms(hop, name, context, TIMEOUTS, authentication_at(hop))
    return partial(_reply_to_rcpt, reached, terms)


async def _reply_to_rcpt(reached: Reached, terms: SessionTerms, recipient: str) -> Reply:
    """Return the reply of a server to RCPT of a mail without a sender, which is not sent. Raises:
    WireError."""
    session = await ClientSession.open(reached, terms)
    try:
        mail = "MAIL FROM:<>" if recipient.isascii() else "MAIL FROM:<> SMTPUTF8"
        reply = await session.exchange.ask(f"{mail}\r\n".encode(), terms.timeouts.command)
        if not reply.is_positive:
            raise SessionRefused(str(reply))
        command = f"RCPT TO:<{recipient}>\r\n".encode()
        return await session.exchange.ask(command, terms.timeouts.command)
    finally:
        await session.quit()
