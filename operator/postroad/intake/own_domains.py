"""Domains whose mail the intake takes from all clients, and their recipients; flushes of domains.

The local part is compared without case, as all mailboxes do that are in use, although a server may
tell cases apart (RFC 5321 2.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from postroad.domain.mail.mail import domain_of
from postroad.domain.mail.seven_bits import ascii_domain
from postroad.domain.queues.selection import Selector
from postroad.domain.smtp.replies import Reply
from postroad.errors import InvalidInput, PostroadError
from postroad.intake.clients import RecipientRule
from postroad.intake.reply_texts import NO_RELAYING
from postroad.ports.mail_queue import MailQueue
from postroad.telemetry.logs import logger

_log = logger("intake")

MAX_FLUSHES, FLUSH_SECONDS = 10, 60.0
UNABLE_TO_FLUSH = Reply(458, ("4.3.2 too many queues are sent at the moment, come again",))

UNKNOWN_RECIPIENT = Reply(550, ("5.1.1 no such recipient here",))

_ALWAYS = "postmaster"
"""Each domain that takes mail has it. Source: RFC 5321 4.5.1."""


Recipients = frozenset[str] | RecipientRule | None
"""Those of a domain: local parts in lower case, those that a rule lets pass, or every one."""


class OwnDomains:
    """Recipients of the intake's own domains, by domain."""

    def __init__(self, recipients: Mapping[str, Recipients]) -> None:
        self._recipients = recipients

    def refusal(self, recipient: str) -> Reply | None:
        """Return the reply that refuses a recipient, or None."""
        local, _, _ = recipient.rpartition("@")
        try:
            domain = ascii_domain(domain_of(recipient))
        except InvalidInput:
            return NO_RELAYING
        if domain not in self._recipients:
            return NO_RELAYING
        known = self._recipients[domain]
        name = local.lower()
        if known is None or name == _ALWAYS:
            return None
        if not isinstance(known, frozenset):
            return known.refusal(recipient)
        return None if name in known else UNKNOWN_RECIPIENT

    async def look_up(self, recipient: str) -> Reply | None:
        """Find out about a recipient that is UNVERIFIED (see `RecipientRule`)."""
        rule = self._recipients[ascii_domain(domain_of(recipient))]
        assert rule is not None
        assert not isinstance(rule, frozenset)
        return await rule.look_up(recipient)


class DomainFlushes:
    """Flushes of domains that clients ask for: ten at a time, and each domain once a minute, since
    a flush looks at all mail that waits. Needs a running event loop."""

    def __init__(self, queue: MailQueue, now: Callable[[], float]) -> None:
        self._queue, self._now = queue, now
        self._running: dict[str, asyncio.Task[None]] = {}
        self._since: dict[str, float] = {}

    def begin(self, domain: str) -> Reply:
        """Let the mail that waits for a domain be due. Return the reply to ETRN."""
        now = self._now()
        self._since = {each: at for each, at in self._since.items() if at > now - FLUSH_SECONDS}
        if domain not in self._since:
            if len(self._running) >= MAX_FLUSHES:
                return UNABLE_TO_FLUSH
            self._since[domain] = now
            running = self._running[domain] = asyncio.create_task(self._flush(domain))
            running.add_done_callback(lambda _: self._running.pop(domain, None))
        return Reply(250, (f"2.0.0 the mail for {domain} is sent",))

    async def _flush(self, domain: str) -> None:
        try:
            count = await self._queue.flush(Selector(domain=domain))
        except PostroadError as error:
            _log.error("mail cannot be flushed", queue=self._queue.name, error=str(error))
        else:
            _log.info("mail flushed", queue=self._queue.name, count=count)
