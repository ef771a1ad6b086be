"""Treatment of mail to signed reverse-paths and to addresses for complaints, at a listener of role
mx: a report is read, suppresses its recipient as declared, and becomes an event, all of it durable
before its reply; none of it is queued.

Source: ADR 0091."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from postroad.domain.delivery.events import EventKind, ReturnedReport
from postroad.domain.delivery.suppressed import (
    SuppressedAddress,
    SuppressedBy,
    SuppressionRules,
    compared,
    learnt,
    suppressed,
)
from postroad.domain.mail.return_paths import NamedReturn, ReturnPaths, is_signed
from postroad.domain.smtp.bounces import Bounce, BounceClass
from postroad.domain.smtp.replies import Reply
from postroad.errors import InvalidInput, PostroadError
from postroad.intake.clients import RecipientRule
from postroad.intake.own_domains import UNKNOWN_RECIPIENT
from postroad.intake.reply_texts import UNVERIFIED
from postroad.intake.returns.reading import (
    ReturnedMail,
    ReturnKind,
    read_returned,
)
from postroad.ports.clock import Clock
from postroad.ports.delivery import SuppressionList
from postroad.ports.events import EventLog
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import RETURNED, of_queue

_log = logger("intake")

TAKEN = Reply(250, ("2.0.0 report taken",))
NO_REPORT = Reply(550, ("5.7.1 this address takes reports about mail alone",))
NOT_KEPT = Reply(451, ("4.3.0 the report cannot be kept now, come again",))

_WISHES = frozenset(("abuse", "opt-out"))
"""Types of complaints by which a recipient asks for no more mail; `opt-out` is of drafts of the
RFC, and in use. Source: RFC 5965 7.3."""

_WARNINGS = frozenset(("fraud", "virus", "other", ""))
"""Types that say nothing about more mail. All others are no complaints, as `not-spam`."""


_Result = tuple[str, str]
"""Name under which a report is counted, and its reason."""


@dataclass(frozen=True, slots=True)
class ReturnRules:
    """Treatment of reports. `complaints`: addresses that take them, as they are compared."""

    paths: ReturnPaths
    suppressing: frozenset[BounceClass] = frozenset()
    suppresses_complaints: bool = False
    complaints: frozenset[str] = frozenset()


class ReturnedMails:
    """The recipients of listeners of role mx: those of `own`, and addresses for reports.
    `suppression`: returns the rules of the list; None: workers do not look at it."""

    def __init__(
        self,
        queue: str,
        rules: ReturnRules,
        own: RecipientRule,
        addresses: SuppressionList,
        suppression: Callable[[], SuppressionRules | None],
        clock: Clock,
        events: EventLog | None = None,
    ) -> None:
        self._queue, self._rules, self._own = queue, rules, own
        self._list, self._suppression, self._clock = addresses, suppression, clock
        self._events = events

    def refusal(self, recipient: str) -> Reply | None:
        if self.takes(recipient):
            return None
        refusal = self._own.refusal(recipient)
        # Forged, or too old: a domain that takes every recipient does not take these.
        return UNKNOWN_RECIPIENT if refusal is None and is_signed(recipient) else refusal

    async def look_up(self, recipient: str) -> Reply | None:
        return await self._own.look_up(recipient)

    def takes(self, recipient: str) -> bool:
        """Return whether a recipient is an address for reports."""
        return self._is_for_complaints(recipient) or self._named(recipient) is not None

    def _named(self, path: str) -> NamedReturn | None:
        return self._rules.paths.open(path, self._clock.now().date())

    def _is_for_complaints(self, recipient: str) -> bool:
        try:
            return bool(self._rules.complaints) and compared(recipient) in self._rules.complaints
        except InvalidInput:
            return False

    async def take(
        self, octets: bytes, sender: str | None, recipients: Sequence[str]
    ) -> tuple[Reply, list[str]]:
        """Take a mail to addresses for reports. Return the reply, and those of the addresses that
        are mailboxes, too, and which it is to be queued for."""
        mail = await asyncio.to_thread(read_returned, octets)
        kept, known, taken = list[str](), dict[str, NamedReturn](), list[_Result]()
        complained = self._complained_about(mail)  # once, not for each spelling of one address
        for each in recipients:
            named = self._named(each) or complained
            if named is not None:
                if mail.kind is ReturnKind.OTHER and sender is not None:
                    return NO_REPORT, []
                known[named.token] = named
            elif self._own.refusal(each) in (None, UNVERIFIED):
                kept.append(each)
            elif mail.kind is not ReturnKind.COMPLAINT:
                return NO_REPORT, []
            else:
                taken.append(("unmatched", ""))
        try:
            taken += [await self._keep(mail, named) for named in known.values()]
            if known and self._events is not None:
                await self._events.flush()
        except PostroadError as error:
            _log.warning("a report is not kept yet", queue=self._queue, error=error.explain())
            return NOT_KEPT, []
        for result, reason in taken:
            RETURNED.labels(*of_queue(self._queue), result, reason).inc()
            _log.info("report taken", queue=self._queue, result=result, reason=reason or None)
        return TAKEN, kept

    def _complained_about(self, mail: ReturnedMail) -> NamedReturn | None:
        if mail.kind is not ReturnKind.COMPLAINT:
            return None
        opened = (self._named(each) for each in mail.paths)
        return next((each for each in opened if each is not None), None)

    async def _keep(self, mail: ReturnedMail, named: NamedReturn) -> _Result:
        """Do what follows from a report about one mail. Raises: as the list."""
        recipient = named.about(mail.names)
        if mail.kind is ReturnKind.COMPLAINT:
            return await self._complained(mail, named, recipient)
        if recipient is None:
            return "unmatched" if mail.recipients else mail.kind.value, ""
        reported, is_named = mail.about(recipient)
        if reported.kind is not ReturnKind.BOUNCE:
            return reported.kind.value, ""
        bounce, text = mail.bounce(reported, recipient)
        if is_named and _is_permanent(bounce, text) and bounce.reason in self._rules.suppressing:
            await self._suppress(named, recipient, bounce)
        self._note(EventKind.BOUNCED, mail, named, recipient, bounce, text)
        return "bounce", bounce.reason.value

    async def _complained(
        self, mail: ReturnedMail, named: NamedReturn, recipient: str | None
    ) -> _Result:
        is_wish = mail.feedback in _WISHES
        if not is_wish and mail.feedback not in _WARNINGS:
            return "other", ""
        if recipient is None:
            return "unmatched", ""
        if is_wish and self._rules.suppresses_complaints:
            await self._suppress(named, recipient, None)
        self._note(EventKind.COMPLAINED, mail, named, recipient)
        return "complaint", mail.feedback if is_wish else "other"

    async def _suppress(self, named: NamedReturn, recipient: str, bounce: Bounce | None) -> None:
        """Put a recipient on the list, or count its bounce (None: a complaint). Raises: as the
        list."""
        rules = self._suppression()
        if rules is None:
            return
        tenant, now = named.tenant or "", self._clock.now()
        entry: SuppressedAddress | None = suppressed(
            recipient, "complaint", SuppressedBy.COMPLAINT, now, is_hashed=rules.is_hashed
        )
        if bounce is not None and entry is not None:
            known = await self._list.find(tenant, {entry.token})
            entry = learnt(known.get(entry.token), recipient, bounce, rules, now)
        if entry is not None:
            await self._list.add(tenant, [entry])

    def _note(
        self,
        kind: EventKind,
        mail: ReturnedMail,
        named: NamedReturn,
        recipient: str,
        bounce: Bounce | None = None,
        text: str = "",
    ) -> None:
        if self._events is None or not self._events.is_on:
            return
        now, feedback = self._clock.now(), mail.feedback
        self._events.note_returned(
            ReturnedReport(
                self._queue,
                kind,
                named.token,
                named.sender,
                recipient,
                named.tenant,
                now,
                bounce,
                text,
                feedback if feedback in _WISHES else None,
                mail.message_id,
            )
        )


def _is_permanent(bounce: Bounce, text: str) -> bool:
    """Return whether a server refused for good, and not until the time was over."""
    return not (400 <= bounce.code < 500 or (not bounce.code and text.startswith("4.")))
