"""Holds jobs until their limits let them go, with a share of each limit for this worker.

Every worker publishes the limits that it has mail for; those that name a limit share it evenly. A
worker that begins to name one sends nothing under it until the others have read that, and one that
cannot reach the shared state sends nothing once its entry is over: the limit holds while pods come
and go. Source: ADR 0064."""

import json
from collections import OrderedDict
from collections.abc import Sequence
from datetime import timedelta
from hashlib import sha256

from postroad.domain.delivery.paces import LimitedMail, LimitRule, Paces, Rate, limits_of
from postroad.errors import PostroadError
from postroad.ports.clock import Clock
from postroad.ports.delivery import SharedState, Topic
from postroad.telemetry.logs import logger

_log = logger("worker")

EXCHANGE_EVERY = timedelta(seconds=5)
ENTRY_LIFETIME = timedelta(seconds=20)
SETTLE = timedelta(seconds=6)
"""After an entry has named a limit: every other worker has read it."""

WANTED_FOR = timedelta(seconds=30)
"""After the last job under a limit, it is named for so long."""

TICK_SECONDS = 1.0
"""Between two looks at what is held."""

MAX_NAMED = 1000
"""Limits in an entry, besides those of jobs that are held."""

MAX_LIMIT_NAME = 24
"""Characters of a limit's name in an entry; a digest stands for a longer one, since each worker
reads a thousand names of every other one every five seconds, and senders choose the domains."""

MAX_HOLD = timedelta(minutes=30)

NamedLimits = tuple[tuple[str, LimitRule], ...]


def held_of(window: int) -> int:
    """Return how many jobs may be held where so many mails may be in flight: a quarter, so that
    mail under a slow limit leaves places to the others."""
    return max(1, window // 4)


class RateLimiter:
    """Jobs under limits. `name`: this worker's on the shared state; `most_held`: jobs at most."""

    def __init__(
        self,
        rules: Sequence[LimitRule],
        shared_state: SharedState,
        clock: Clock,
        name: str,
        most_held: int,
    ) -> None:
        self._rules, self._shared, self._clock, self._name = rules, shared_state, clock, name
        self._most_held = most_held
        self._paces = Paces(TICK_SECONDS)
        self._held: OrderedDict[str, dict[int, NamedLimits]] = OrderedDict()
        """By the first limit of a job, in the order in which they came."""
        self._first: dict[int, str] = {}
        """The first limit of each job that is held."""
        self._booked: dict[str, float] = {}
        """Until when the jobs that were deferred take a limit up."""
        self._wanted: dict[str, float] = {}
        """By limit, when a job was under it last."""
        self._others: dict[str, int] = {}
        """Workers that share a limit, besides this one."""
        self._settled: dict[str, float] = {}
        """By limit that this worker's entry names, from when on it may send."""
        self._good_until = 0.0
        self.is_away = False
        """True if the shared state could not be reached last."""

    def replace(self, rules: Sequence[LimitRule]) -> bool:
        """Take jobs under other limits from now on; return whether they differ. What is held has to
        be dropped and taken again. A limit that stays keeps its pace; one that changes begins
        anew, since the burst of the former may be due for hours."""
        if tuple(rules) == tuple(self._rules):
            return False
        same = {each.name for each in rules if each in self._rules}
        self._paces.keep(lambda name: name.partition(" ")[0] in same)
        self._booked.clear()
        self._rules = rules
        return True

    def admit(self, number: int, mail: LimitedMail) -> timedelta | None:
        """Take a job under its limits. None: it is held, and `due` names it when it may go. No
        duration: it goes now, as it is under none. Else it is to come again after that."""
        limits = limits_of(mail, self._rules)
        if not limits:
            return timedelta(0)
        now = self._now
        for name, _ in limits:
            self._wanted[name] = now
        first, rule = limits[0]
        if len(self._first) >= self._most_held:
            rate = self._rate(first, rule)
            ahead = len(self._held.get(first, ()))
            booked = max(self._booked.get(first, 0.0), now + ahead * rate.interval)
            self._booked[first] = booked + rate.interval
            return min(timedelta(seconds=booked - now + TICK_SECONDS), MAX_HOLD)
        self._held.setdefault(first, {})[number] = limits
        self._first[number] = first
        return None

    def drop(self, number: int) -> None:
        """Hold a job no longer. Idempotent."""
        if (first := self._first.pop(number, None)) is None:
            return
        del self._held[first][number]
        if not self._held[first]:
            del self._held[first]

    def due(self) -> list[int]:
        """Return the jobs that may go now; they are held no longer."""
        now, going = self._now, list[int]()
        for first in list(self._held):
            self._held.move_to_end(first)  # limits that they share with others serve all
            for number, limits in list(self._held[first].items()):
                if not all(self._may_go(name, rule, now) for name, rule in limits):
                    break
                for name, rule in limits:
                    self._paces.take(name, self._rate(name, rule), now)
                self.drop(number)
                going.append(number)
        return going

    @property
    def _now(self) -> float:
        return self._clock.elapsed().total_seconds()

    def _rate(self, name: str, rule: LimitRule) -> Rate:
        return Rate(rule.per_minute, rule.burst).shared_by(1 + self._others.get(name, 0))

    def _may_go(self, name: str, rule: LimitRule, now: float) -> bool:
        if now >= self._good_until or now < self._settled.get(name, float("inf")):
            return False
        return self._paces.wait(name, self._rate(name, rule), now) <= 0

    async def run(self) -> None:
        """Exchange entries, until cancelled."""
        while True:
            await self.exchange()
            await self._clock.sleep(EXCHANGE_EVERY)

    async def exchange(self) -> None:
        """Publish what this worker has mail for, then read what others have. Without limits,
        nothing is published."""
        if not self._rules:
            return
        begun = self._now
        oldest = begun - WANTED_FOR.total_seconds()
        self._wanted = {name: at for name, at in self._wanted.items() if at >= oldest}
        latest = sorted(self._wanted, key=self._wanted.__getitem__)[-MAX_NAMED:]
        names = sorted({*latest, *self._held})
        entry = json.dumps([limit_key(each) for each in names])
        try:
            # Posted before it reads: of two that begin at once each would see no other, and both
            # would send at the whole rate.
            await self._shared.publish(Topic.LIMITS, self._name, entry, ENTRY_LIFETIME)
            found = await self._shared.published(Topic.LIMITS)
        except Exception as error:  # a driver's bug must not end the loop
            if not self.is_away:
                text = error.explain() if isinstance(error, PostroadError) else repr(error)
                _log.warning("limits cannot be shared", error=text)
            self.is_away = True
            return
        self.is_away = False
        self._read(names, {name: text for name, text in found.items() if name != self._name})
        # From before the publishing: others must not take the share while this one still sends by
        # it.
        self._good_until = begun + ENTRY_LIFETIME.total_seconds()
        self._paces.forget(self._now)
        self._booked = {name: at for name, at in self._booked.items() if at > begun}

    def _read(self, names: Sequence[str], entries: dict[str, str]) -> None:
        others: dict[str, int] = {}
        for text in entries.values():
            for name in _named(text):
                others[name] = others.get(name, 0) + 1
        now = self._now
        settle = now + SETTLE.total_seconds()
        sharing = {name: others.get(limit_key(name), 0) for name in names}
        self._settled = {
            name: self._settled.get(name, settle if sharing[name] else now) for name in names
        }
        self._others = sharing

    async def close(self) -> None:
        """Take this worker's entry down."""
        try:
            await self._shared.take_down(Topic.LIMITS, self._name)
        except PostroadError:
            pass  # it ends by itself


def limit_key(name: str) -> str:
    if len(name) <= MAX_LIMIT_NAME:
        return name
    return sha256(name.encode()).hexdigest()[:MAX_LIMIT_NAME]


def _named(text: str) -> set[str]:
    try:
        found = json.loads(text)
    except ValueError:
        return set()
    return {str(each) for each in found} if isinstance(found, list) else set()
