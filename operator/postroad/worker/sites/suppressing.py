"""The suppression list of a queue, as a worker uses it: recipients on it are not mailed, and
refusals of configured classes put recipients on it.

Source: ADR 0068."""

from collections.abc import Mapping

from postroad.domain.delivery.suppressed import SuppressionRules, learnt, token_of
from postroad.domain.mail.mail import Envelope, Outcome, OutcomeKind
from postroad.domain.smtp.bounces import bounce_of
from postroad.errors import InvalidInput, PostroadError
from postroad.ports.clock import Clock
from postroad.ports.delivery import SuppressionList
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import SUPPRESSED, of_queue

_log = logger("worker")


class Suppressing:
    """One worker's use of the list. `rules`: None while not used; may be replaced at any time."""

    def __init__(
        self, queue: str, addresses: SuppressionList, clock: Clock, rules: SuppressionRules | None
    ) -> None:
        self._queue, self._list, self._clock = queue, addresses, clock
        self.rules = rules

    async def find(self, envelope: Envelope) -> dict[str, Outcome]:
        """Return the outcomes of those recipients that are not mailed. Errors as the port's."""
        tokens = _tokens(envelope.recipients)
        found = await self._list.find(envelope.tenant or "", {*tokens.values()})
        now = self._clock.now()
        outcomes = {
            recipient: found[token].outcome()
            for recipient, token in tokens.items()
            if token in found and found[token].holds(now)
        }
        if outcomes:
            SUPPRESSED.labels(*of_queue(self._queue)).inc(len(outcomes))
        return outcomes

    async def has(self, address: str, tenant: str | None) -> bool:
        """Return whether an address is not mailed, such as that of a report. While the list cannot
        be read it is mailed as far as this says: the attempt looks again."""
        if self.rules is None or not (tokens := _tokens((address,))):
            return False
        try:
            found = await self._list.find(tenant or "", {*tokens.values()})
            return any(each.holds(self._clock.now()) for each in found.values())
        except Exception as error:  # a driver's bug must not keep the mail from its end
            text = error.explain() if isinstance(error, PostroadError) else repr(error)
            _log.warning("a report's address is not compared with the list yet", error=text)
            return False

    async def learn(self, envelope: Envelope, outcomes: Mapping[str, Outcome]) -> None:
        """Count refusals of a class that puts a recipient on the list, if they are about that
        recipient. Mail with the null reverse-path teaches nothing: who forges a sender chooses
        where reports go. What cannot be written is learnt from the next refusal."""
        rules = self.rules
        if rules is None or not rules.bounces or envelope.sender is None:
            return
        now, refused = self._clock.now(), {}
        for recipient, token in _tokens(outcomes).items():
            outcome = outcomes[recipient]
            if _is_about(recipient, envelope.sender, outcome):
                bounce = bounce_of(outcome.text, (recipient,))
                if bounce.reason in rules.bounces:
                    refused[token] = recipient, bounce
        if not refused:
            return
        tenant = envelope.tenant or ""
        try:
            known = await self._list.find(tenant, refused)
            made = (learnt(known.get(each), *refused[each], rules, now) for each in refused)
            if entries := [each for each in made if each is not None]:
                await self._list.add(tenant, entries)
        except Exception as error:  # a driver's bug must not keep the mail from its end
            text = error.explain() if isinstance(error, PostroadError) else repr(error)
            _log.warning("refused recipients are not suppressed yet", error=text)


def _is_about(recipient: str, sender: str, outcome: Outcome) -> bool:
    """True if a reply refused this recipient for good: not the whole mail, nor its sender, whose
    address stands in the reply then."""
    if outcome.kind is not OutcomeKind.FAILED or outcome.responder is None:
        return False
    text = outcome.text.lower()
    is_of_sender = sender.lower() in text and recipient.lower() not in text
    return not (outcome.responder.is_of_mail or is_of_sender)


def _tokens(addresses: Mapping[str, Outcome] | tuple[str, ...]) -> dict[str, bytes]:
    """Return the tokens of addresses, but of those that cannot be on a list, as `postmaster`."""
    found = {}
    for address in addresses:
        try:
            found[address] = token_of(address)
        except InvalidInput:
            continue
    return found
