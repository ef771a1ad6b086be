"""One search for a route: what it asks, what explains it, and how it ends without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from postroad.domain.mail.mail import Outcome
from postroad.routing.answers import Answer, Asking, Question
from postroad.routing.plans import AddressFamily, Pick, RoutingPlan
from postroad.routing.routes import Explanation


class Undeliverable(Exception):
    """Ends a search without a route."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class Search:
    """One search: what explains it, and how long the answers that it got hold together. Every
    method may raise Undeliverable."""

    def __init__(self, plan: RoutingPlan, pick: Pick) -> None:
        self._plan = plan
        self._pick = pick
        self.explanations: list[Explanation] = []
        self.ttl: timedelta | None = None

    def addresses_of(
        self, hosts: Sequence[str]
    ) -> Asking[Mapping[str, Mapping[AddressFamily, Answer]]]:
        """Ask for the addresses of several hosts at once."""
        families = self._plan.families
        asked = [(host, family) for host in hosts for family in families]
        answers = yield from self.ask_all(
            [Question(host, family.record_type) for host, family in asked]
        )
        found: dict[str, dict[AddressFamily, Answer]] = {host: {} for host in hosts}
        for (host, family), answer in zip(asked, answers, strict=True):
            found[host][family] = answer
        return found

    def ask_all(self, questions: Sequence[Question]) -> Asking[tuple[Answer, ...]]:
        return (yield from self.ask(*questions)) if questions else ()

    def ask(self, *questions: Question) -> Asking[tuple[Answer, ...]]:
        answers = yield questions
        kept = [each.ttl for each in answers]
        self.ttl = min(kept) if self.ttl is None else min(self.ttl, *kept)
        return answers

    def note(self, subject: str, text: str) -> None:
        self.explanations.append(Explanation(subject, text))


def no_server(domain: str, *, is_uncertain: bool, is_own: bool) -> Undeliverable:
    """Return why none of a domain's servers can be tried."""
    if is_uncertain:
        return deferred("4.4.3", f"no name server answered for a server of {domain}")
    if is_own:
        return failed("554 5.4.6", f"mail for {domain} loops back to this server")
    return failed("550 5.4.4", f"no server of {domain} has an address that can be used")


def failed(codes: str, text: str) -> Undeliverable:
    return Undeliverable(Outcome.failed(f"{codes} {text}"))


def deferred(enhanced: str, text: str) -> Undeliverable:
    return Undeliverable(Outcome.deferred(f"451 {enhanced} {text}"))
