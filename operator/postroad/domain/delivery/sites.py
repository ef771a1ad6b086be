"""Entries about sites that processes of a queue share. Pure.

They are suspensions, by an administrator or by a site's own replies; requests to flush a site, and
what workers acknowledge; the state of sites in workers; reroutes, by which mail goes elsewhere
for a time."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import chain, islice
from typing import Any

from postroad.domain.delivery.attempts import reason_of
from postroad.domain.mail.mail import Outcome, OutcomeKind
from postroad.domain.smtp.bounces import Bounce, BounceClass, bounce_of, is_about_mailbox
from postroad.domain.smtp.next_hops import NextHop, TlsMode, parse_host_port
from postroad.domain.values.domain_patterns import DomainPatterns, server_name
from postroad.domain.values.instants import rfc3339
from postroad.errors import InvalidInput

MAX_SUSPENSION = timedelta(days=30)

READ_EVERY = timedelta(seconds=5)
"""After which every worker obeys what an administrator publishes."""

MAX_DEFERRAL = timedelta(minutes=30)
"""Of mail for a suspended site: after a resumption, none waits for longer."""

MAX_SITES = 10_000
"""Whose last replies are counted."""


class SuspendedBy(StrEnum):
    """Cause that suspended a site. The values are stored."""

    ADMINISTRATOR = "administrator"
    REPLIES = "replies"


@dataclass(frozen=True, slots=True)
class Suspension:
    """One site, with why and until when."""

    site: str
    until: datetime
    reason: str
    by: SuspendedBy

    def text(self) -> str:
        """Return the form in which it is published."""
        return json.dumps({"until": rfc3339(self.until), "reason": self.reason, "by": self.by})

    @classmethod
    def of(cls, site: str, text: str) -> Suspension:
        """Read the published form. Raises: InvalidInput."""
        try:
            found = json.loads(text)
            # One that a later release knows is ended by an administrator at least.
            by = found.get("by")
            known = by if by in {*SuspendedBy} else SuspendedBy.ADMINISTRATOR
            until = datetime.fromisoformat(found["until"]).astimezone(UTC)
            reason = str(found["reason"])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise InvalidInput(f"the suspension of {site} cannot be read") from error
        return cls(site, until, reason, SuspendedBy(known))


@dataclass(frozen=True, slots=True)
class ReplyRule:
    """So many replies of this reason in succession, with no delivery between them, suspend a site
    for so long, or never where that is zero. `code`: those with this basic code alone; 0: with any.
    `servers`: those of these alone; None: of any."""

    code: int
    reason: BounceClass
    replies: int
    duration: timedelta
    servers: DomainPatterns | None = None

    def fits(self, bounce: Bounce, server: str) -> bool:
        """Return whether a reply of a server is one of these."""
        if self.reason is not bounce.reason or self.code not in (0, bounce.code):
            return False
        return self.servers is None or self.servers.match(server) is not None


ANSWER_RULES = (
    ReplyRule(421, BounceClass.RATE, 1, timedelta(minutes=10)),
    ReplyRule(421, BounceClass.POLICY, 2, timedelta(minutes=10)),
    ReplyRule(421, BounceClass.BLOCKED, 2, timedelta(minutes=30)),
    ReplyRule(0, BounceClass.RATE, 5, timedelta(minutes=15)),
    ReplyRule(0, BounceClass.BLOCKED, 3, timedelta(minutes=30)),
)
"""The first row that fits decides. `421 4.7.0` is how large sites ask for less; a block list
refuses whatever comes next, and counts it. The longest delays are those after which a site is
likely to have changed its mind (`retries.MIN_DELAYS`)."""


class ReplyCounts:
    """Counts the replies of sites that a rule is about. `rules`: an administrator's, which come
    before those of this release."""

    def __init__(self) -> None:
        self.rules: Sequence[ReplyRule] = ()
        self._counts: OrderedDict[str, dict[ReplyRule, int]] = OrderedDict()

    def on_outcomes(
        self, site: str, outcomes: Iterable[Outcome], now: datetime
    ) -> Suspension | None:
        """Count what one transmission came to; return the suspension that it leads to. What a
        server of the site did not send itself, and what is about one mailbox, does not count."""
        found = [(each, each.responder) for each in outcomes]
        replied = [(each, by.host) for each, by in found if by is not None]
        if any(each.kind is OutcomeKind.DELIVERED for each, _ in replied):
            self._counts.pop(site, None)
            return None
        rules = dict[ReplyRule, Bounce]()
        for text, server in {(each.text, host) for each, host in replied}:
            if is_about_mailbox(text):
                continue
            bounce, name = bounce_of(text), server_name(server)
            of_all = chain(self.rules, ANSWER_RULES)
            rule = next((each for each in of_all if each.fits(bounce, name)), None)
            if rule is not None and rule.duration:
                rules.setdefault(rule, bounce)
        for rule, bounce in rules.items():
            counts = self._counts.setdefault(site, {})
            self._counts.move_to_end(site)
            counts[rule] = counts.get(rule, 0) + 1
            if counts[rule] >= rule.replies:
                del self._counts[site]
                until, reason = now + rule.duration, reason_of(bounce)
                return Suspension(site, until, reason, SuspendedBy.REPLIES)
        while len(self._counts) > MAX_SITES:
            self._counts.popitem(last=False)
        return None


MAX_DOMAINS = 2000
"""In one acknowledgement."""


@dataclass(frozen=True, slots=True)
class FlushAck:
    """A worker tries a site now. `number`: of the request. `domains`: those whose mail goes to the
    site, as far as the worker knows, `more`: how many of them are left out. `is_all`: all mail
    of the worker does."""

    worker: str
    site: str
    number: str
    domains: Sequence[str] = ()
    more: int = 0
    is_all: bool = False

    @property
    def name(self) -> str:
        return f"{self.worker} {self.site}"

    def text(self) -> str:
        """Return the form in which it is published."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> FlushAck:
        """Read the published form, which may be of another release. Raises: InvalidInput."""
        try:
            found = json.loads(text)
            domains = tuple(str(each).lower() for each in found["domains"])
            return cls(
                str(found["worker"]),
                str(found["site"]),
                str(found["number"]),
                domains,
                int(found["more"]),
                bool(found["is_all"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise InvalidInput("the acknowledgement of a worker cannot be read") from error


MAX_SHOWN = 100
"""Sites of one worker in an entry, which is written again and again."""


class SiteState(StrEnum):
    """State of a site. The values are stored; the first ones are shown first."""

    SUSPENDED = "suspended"
    BACKING_OFF = "backoff"
    ACTIVE = "active"
    WAITING = "waiting"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class SiteView:
    """One site of one worker. `waiting`, `at_work`: its jobs without and with a connection.
    `until`: of a suspension or a backoff, RFC 3339. `reply`: the codes and the masked words of the
    last reply, or why the last connection ended. `reason`: of a suspension."""

    site: str
    state: SiteState
    connections: int = 0
    waiting: int = 0
    at_work: int = 0
    until: str | None = None
    reply: str | None = None
    replied_at: str | None = None
    reason: str | None = None


def published_views(
    views: Iterable[SiteView],
    rules: Iterable[str] = (),
    *,
    has_program: bool = False,
    left: int = 0,
) -> str:
    """Return the entry of a worker: the sites with the most to show, if there are too many, the
    first rules of its routing, whether all its mail goes to a program, and how many mails have left
    the queue by it."""
    order = list(SiteState)
    ranked = sorted(
        views, key=lambda each: (order.index(each.state), -each.waiting - each.at_work, each.site)
    )
    shown = [_short(asdict(each)) for each in ranked[:MAX_SHOWN]]
    more = max(0, len(ranked) - MAX_SHOWN)
    names = list(islice(rules, MAX_SHOWN + 1))
    entry = {"sites": shown, "more": more, "rules": names, "left": left}
    return json.dumps(entry | ({"program": True} if has_program else {}))


def has_program(text: str) -> bool:
    """True if the entry of a worker shows that all its mail goes to a program, whatever is
    rerouted. Not so where it is of the release before."""
    try:
        return json.loads(text)["program"] is True
    except (ValueError, KeyError, TypeError):
        return False


def has_no_rule(name: str, text: str) -> bool:
    """True if the entry of a worker shows that it has no rule of a name. Not so where it is of the
    release before, or has more rules than are shown."""
    try:
        rules = json.loads(text)["rules"]
        return name not in rules and len(rules) <= MAX_SHOWN
    except (ValueError, KeyError, TypeError):
        return False


def mails_left(text: str) -> int | None:
    """Return how many mails have left the queue by a worker since it began, by its entry; None
    where it is of the release before."""
    try:
        found = json.loads(text)["left"]
        return found if isinstance(found, int) and found >= 0 else None
    except (ValueError, KeyError, TypeError):
        return None


def _short(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, 0)}


def read_views(text: str) -> tuple[Sequence[SiteView], int]:
    """Read the entry of a worker, which may be of another release: its sites, and how many more it
    has. Raises: InvalidInput."""
    known = SiteView.__dataclass_fields__.keys()
    try:
        found = json.loads(text)
        views = [
            SiteView(
                **{
                    **{name: value for name, value in each.items() if name in known},
                    "state": SiteState(each["state"]),
                }
            )
            for each in found["sites"]
        ]
        return views, int(found["more"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InvalidInput("the entry of a worker cannot be read") from error


RULE_NAME_PATTERN = r"^[A-Za-z0-9][-A-Za-z0-9_.]*$"
"""Of a rule of routing."""

MAX_REROUTES = 1000
"""At a time, since each worker reads all of them every five seconds."""


class RerouteOf(StrEnum):
    """Whose mail is rerouted. The values are stored."""

    SITE = "site"
    DOMAIN = "domain"


@dataclass(frozen=True, slots=True)
class Reroute:
    """The mail for a site or a domain goes by `hop`, or as the rule of routing named `rule` has it.
    A domain is written in A-labels."""

    of: RerouteOf
    name: str
    until: datetime
    reason: str
    rule: str | None = None
    hop: NextHop | None = None

    @property
    def key(self) -> str:
        """The name of its entry."""
        return key_of(self.of, self.name)

    @property
    def target(self) -> str:
        return f"rule {self.rule}" if self.hop is None else f"{self.hop} (tls {self.hop.tls})"

    def text(self) -> str:
        """Return the form in which it is published."""
        hop = self.hop
        target = {"rule": self.rule} if hop is None else {"hop": str(hop), "tls": hop.tls}
        about = {"of": self.of, "name": self.name, "until": rfc3339(self.until)}
        return json.dumps({**about, "reason": self.reason, **target})

    @classmethod
    def read(cls, text: str) -> Reroute:
        """Read the published form. Raises: InvalidInput."""
        try:
            found = json.loads(text)
            rule, hop = found.get("rule"), None
            if rule is None:
                tls = TlsMode(found["tls"])
                hop = NextHop(*parse_host_port(found["hop"], tls.default_port), tls)
            return cls(
                RerouteOf(found["of"]),
                str(found["name"]),
                datetime.fromisoformat(found["until"]).astimezone(UTC),
                str(found["reason"]),
                None if rule is None else str(rule),
                hop,
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise InvalidInput("a reroute cannot be read") from error


def key_of(of: RerouteOf, name: str) -> str:
    """Return the name of the entry that reroutes a site or a domain."""
    return f"{of} {name}"


def is_rule_name(text: str) -> bool:
    """True if a target is written as the name of a rule; a host is written with its port.

    >>> is_rule_name("smart-host.2"), is_rule_name("relay.example.org:25")
    (True, False)
    """
    return re.fullmatch(RULE_NAME_PATTERN, text) is not None


@dataclass(frozen=True, slots=True)
class RerouteTable:
    """The reroutes that hold at one instant."""

    by_key: Mapping[str, Reroute] = field(default_factory=dict)

    @classmethod
    def of(cls, reroutes: Iterable[Reroute]) -> RerouteTable:
        return cls({each.key: each for each in reroutes})

    @property
    def is_empty(self) -> bool:
        """True if all mail goes by its own route."""
        return not self.by_key

    def of_domain(self, domain: str) -> Reroute | None:
        """Return the reroute of a domain in A-labels and lower case."""
        return self.by_key.get(key_of(RerouteOf.DOMAIN, domain))

    def of_site(self, site: str) -> Reroute | None:
        return self.by_key.get(key_of(RerouteOf.SITE, site))


def reroutes_in(entries: Mapping[str, str], now: datetime) -> list[Reroute]:
    """Return the reroutes that hold now, without those that this release cannot read."""
    found = []
    for text in entries.values():
        with suppress(InvalidInput):
            read = Reroute.read(text)
            if read.until > now:
                found.append(read)
    return found
