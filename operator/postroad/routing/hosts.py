"""Judges the addresses of one host: is it this server, and which ones are tried.

One search for a route: what it asks, what explains it, and how it ends without one."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from itertools import zip_longest
from typing import NamedTuple, TypeVar

from postroad.domain.mail.mail import Outcome
from postroad.routing.answers import Answer, Asking, Question, is_host_name
from postroad.routing.routes import NOT_UNICAST, AddressFamily, Explanation, Pick, RoutingPlan

T = TypeVar("T")

MAX_ADDRESSES = 16
"""Addresses of one host that are kept."""


class HostAddresses(NamedTuple):
    """The addresses of a host, in the order in which they are tried, and in words where they come
    from or why there is none. Uncertain: DNS may know more than it answered."""

    addresses: tuple[str, ...]
    words: str
    is_own: bool = False
    is_uncertain: bool = False


class ExaminedHost(NamedTuple):
    """A host of a domain with its preference and what DNS answered about its addresses."""

    rank: int
    host: str
    addresses: HostAddresses
    answers: tuple[Answer, ...]

    @property
    def is_validated(self) -> bool:
        """True if all that DNS answered is validated."""
        return all(each.is_validated for each in self.answers if not each.is_unavailable)

    @property
    def tlsa_names(self) -> list[str]:
        """The names that may have its TLSA records: where its CNAME records lead to, and its own.
        Source: RFC 7672 2.2.3."""
        aliases = next((each.aliases for each in self.answers if each.aliases), ())
        return [*filter(is_host_name, aliases[-1:]), self.host]


def of_answers(
    answers: Mapping[AddressFamily, Answer], plan: RoutingPlan, pick: Pick
) -> HostAddresses:
    """Return the addresses of a host that MX records or a domain name."""
    found = _checked([_plain(text) for each in answers.values() for text in each.addresses], plan)
    return _explained(answers, found, plan, pick)


def of_smart_host(
    answers: Mapping[AddressFamily, Answer], plan: RoutingPlan, pick: Pick
) -> HostAddresses:
    """Return the addresses of a host that a rule names: it may be this machine, at another port, or
    lie in a network that MX records must not lead to."""
    found = HostAddresses(tuple(text for each in answers.values() for text in each.addresses), "")
    return _explained(answers, found, plan, pick)


def of_literal(address: str, plan: RoutingPlan) -> HostAddresses:
    found = _checked([_plain(address)], plan)
    if not found.addresses or _family(found.addresses[0]) in plan.families:
        return found._replace(words=found.words or "is an address literal")
    return HostAddresses((), "addresses of its family are not used")


def shuffled(items: Iterable[T], pick: Pick) -> list[T]:
    """Return the items in random order, each order as likely as any other."""
    left = list(items)
    for last in range(len(left) - 1, 0, -1):
        other = pick(last + 1)
        left[last], left[other] = left[other], left[last]
    return left


def alternating(families: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return addresses of several families in turns, the first family first, so that a family that
    this machine cannot reach costs few attempts. Source: RFC 8305 4.

    >>> alternating([["192.0.2.1", "192.0.2.2"], ["2001:db8::1"]])
    ('192.0.2.1', '2001:db8::1', '192.0.2.2')
    """
    rounds = zip_longest(*families)
    return tuple(address for each in rounds for address in each if address is not None)


def _checked(addresses: Sequence[str], plan: RoutingPlan) -> HostAddresses:
    own = [each for each in addresses if plan.own.has_address(each)]
    if own:
        return HostAddresses((), f"is this server ({own[0]})", is_own=True)
    kept, words = [], []
    for each in addresses:
        if NOT_UNICAST.may_be_reached_by(each):
            words.append(f"not {each}: no server can have it")
        elif plan.skipped.may_be_reached_by(each):
            words.append(f"not {each}: its network is skipped")
        else:
            kept.append(each)
    return HostAddresses(tuple(kept), "; ".join(words))


def _explained(
    answers: Mapping[AddressFamily, Answer], found: HostAddresses, plan: RoutingPlan, pick: Pick
) -> HostAddresses:
    """Put addresses in order, and write down what is missing."""
    if found.is_own:
        return found
    kept = [
        shuffled((each for each in found.addresses if _family(each) is family), pick)
        for family in plan.families
    ]
    addresses = alternating(kept)[:MAX_ADDRESSES]
    unanswered = [
        f"{family.record_type}: {answer.reason}"
        for family, answer in answers.items()
        if answer.is_unavailable
    ]
    aliases = next((each.aliases for each in answers.values() if each.aliases), ())
    words = [
        ", ".join(addresses) or "no address",
        f"by way of {', '.join(aliases)}" if aliases else "",
        found.words,
        *unanswered,
    ]
    text = "; ".join(filter(None, words))
    return HostAddresses(addresses, text, is_uncertain=bool(unanswered))


def _family(address: str) -> AddressFamily:
    return AddressFamily.IPV6 if ":" in address else AddressFamily.IPV4


@lru_cache(maxsize=4096)
def _plain(address: str) -> str:
    """Return the IPv4 address that an IPv6 address maps, as a connection to it would reach it.
    Source: RFC 4291 2.5.5.2."""
    found = ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found)


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
