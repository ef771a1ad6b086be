"""The suppression list of a queue, as a worker uses it: recipients on it are not mailed, and
refusals of configured classes put recipients on it.

Source: ADR 0068.
"""

from __future__ import annotations

from collections.abc import Mapping

from postroad.domain.bounces import bounce_of
from postroad.domain.mail import Envelope, Outcome, OutcomeKind
from postroad.domain.reasons import reason_of
from postroad.domain.suppressed import (
    SuppressedBy,
    SuppressionRules,
    suppressed,
    token_of,
)
from postroad.errors import InvalidInput, PostroadError
from postroad.ports.clock import Clock
from postroad.ports.suppression_list import SuppressionList
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import SUPPRESSED

_log = logger("worker")


class Suppressing:
    """What one worker does with the list. `rules`: None while the list is not used; they may be
    replaced at any time."""

    def __init__(
        self, queue: str, addresses: SuppressionList, clock: Clock, rules: SuppressionRules | None
    ) -> None:
        self._queue, self._list, self._clock = queue, addresses, clock
        self.rules = rules

    async def find(self, envelope: Envelope) -> dict[str, Outcome]:
        """Return the outcomes of those recipients that are not mailed. Errors as the port's."""
        tokens = _tokens(envelope.recipients)
        found = await self._list.find(envelope.tenant or "", {*tokens.values()})
        outcomes = {
            recipient: found[token].outcome()
            for recipient, token in tokens.items()
            if token in found
        }
        if outcomes:
            SUPPRESSED.labels(self._queue).inc(len(outcomes))
        return outcomes

    async def has(self, address: str, tenant: str | None) -> bool:
        """Return whether an address is not mailed, such as that of a report. While the list cannot
        be read it is mailed as far as this says: the attempt looks again."""
        if self.rules is None or not (tokens := _tokens((address,))):
            return False
        try:
            return bool(await self._list.find(tenant or "", {*tokens.values()}))
        except Exception as error:  # a driver's bug must not keep the mail from its end
            text = error.explain() if isinstance(error, PostroadError) else repr(error)
            _log.warning("a report's address is not compared with the list yet", error=text)
            return False

    async def learn(self, envelope: Envelope, outcomes: Mapping[str, Outcome]) -> None:
        """Put recipients on the list whose servers refused them for a class that does. Mail with
        the null reverse-path teaches nothing: who forges a sender chooses where reports go. What
        cannot be written is learnt from the next refusal."""
        rules = self.rules
        if rules is None or not rules.bounces or envelope.sender is None:
            return
        now, entries = self._clock.now(), []
        for recipient in _tokens(outcomes):
            outcome = outcomes[recipient]
            if outcome.kind is not OutcomeKind.FAILED or outcome.responder is None:
                continue
            bounce = bounce_of(outcome.text, (recipient,))
            if bounce.reason in rules.bounces:
                why, by = reason_of(bounce), SuppressedBy.BOUNCE
                entries.append(suppressed(recipient, why, by, now, is_hashed=rules.is_hashed))
        if not entries:
            return
        try:
            await self._list.add(envelope.tenant or "", entries)
        except Exception as error:  # a driver's bug must not keep the mail from its end
            text = error.explain() if isinstance(error, PostroadError) else repr(error)
            _log.warning("refused recipients are not suppressed yet", error=text)


def _tokens(addresses: Mapping[str, Outcome] | tuple[str, ...]) -> dict[str, bytes]:
    """Return the tokens of addresses, but of those that cannot be on a list, as `postmaster`."""
    found = {}
    for address in addresses:
        try:
            found[address] = token_of(address)
        except InvalidInput:
            continue
    return found
