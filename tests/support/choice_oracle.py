"""The choice of connection as source 004 tells it, over plain lists, and states to try it on.

This follows the text and knows nothing of `postroad.scheduling.choosing`: an answer is the set of
what the text allows, as it leaves some picks to chance.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from postroad.scheduling.choosing import Choice, NoneWorks, OpenTo, Take, Wait
from postroad.scheduling.destination_records import ConnectionRecord
from postroad.scheduling.destinations import Destinations
from postroad.scheduling.events import Precedence
from postroad.scheduling.ranking import SchedulerRules

Answer = tuple[str, object]
NOW = 10_000.0


@dataclass
class Link:
    """A connection. `idle` is 0 while it has jobs, else larger the later it became idle."""

    number: int
    host: str
    jobs: int
    idle: int = 0
    is_retiring: bool = False
    is_established: bool = True
    precedence: Precedence = Precedence.BULK
    own_longest: int = 0

    def is_long(self, rules: SchedulerRules) -> bool:
        """Our own addition: whether nothing rides on it any more (AMB-23)."""
        return rules.longest_queue is not None and self.jobs >= max(
            rules.longest_queue, self.own_longest
        )


@dataclass
class World:
    """What the table of destinations holds."""

    links: list[Link] = field(default_factory=list)
    retry_at: dict[str, float] = field(default_factory=dict)
    last_made: dict[str, int] = field(default_factory=dict)
    workers: int = 0

    def of(self, host: str) -> list[Link]:
        return [each for each in self.links if each.host == host]

    @property
    def free_workers(self) -> int:
        free = self.workers - len(self.links) + sum(each.idle > 0 for each in self.links)
        return max(0, free)  # those that counted apart can make it too few (AMB-27)

    def doubt(self, host: str) -> int:
        """0 where a host answered, 1 where that is not known, 2 where it failed (AMB-27)."""
        if host in self.retry_at:
            return 2
        links = self.of(host)
        return int(
            not any(each.is_established for each in links) if links else host not in self.last_made
        )

    def allows(self, host: str, rules: SchedulerRules) -> bool:
        """Our own addition: whether hosts as doubtful as this one may use one more (AMB-27)."""
        doubt = self.doubt(host)
        least = (1.0, rules.least_for_new, rules.least_for_failing)[doubt]
        scale = (0, 10, 3)[doubt]
        used = sum(each.jobs > 0 and self.doubt(each.host) >= doubt for each in self.links)
        kept = max(1, int(least * self.workers))
        return not doubt or used < kept or used < scale * self.free_workers


def seed_choice(
    world: World,
    tiers: list[list[str]],
    rules: SchedulerRules,
    precedence: Precedence,
    *,
    allowed: bool,
) -> tuple[str, set[Answer]]:
    """Return the branch of the text that decides, and the answers that it allows."""
    for number, tier in enumerate(tiers):
        omitted = [
            host
            for host in tier
            if world.retry_at.get(host, 0) > NOW
            and not any(not each.is_retiring for each in world.of(host))
        ]
        if len(omitted) < len(tier):
            rest = [host for host in tier if host not in omitted]
            branch, answers = _in_tier(world, rest, rules, precedence, allowed)
            return f"{branch}, fallback" if number else branch, answers or {("wait", number)}
    return "SC-21 deferred", {("deferred", min(world.retry_at[h] for tier in tiers for h in tier))}


def _in_tier(
    world: World, hosts: list[str], rules: SchedulerRules, precedence: Precedence, allowed: bool
) -> tuple[str, set[Answer]]:
    links = [each for host in hosts for each in world.of(host)]
    busy = {each.host for each in links if each.jobs and not each.is_retiring}
    active = [
        each
        for each in links
        if each.jobs and not each.is_retiring and each.precedence >= precedence  # our own: AMB-26
    ]
    active.sort(key=lambda each: each.number, reverse=True)
    idle = [each for each in links if each.idle and world.allows(each.host, rules)]
    for each in active:
        if each.jobs < rules.backlog:
            return "SC-14 short queue", {("use", each.number)}
    if not allowed:
        return _ride("SC-15", active, rules)
    if world.free_workers == 0:  # our own: else there is no idle one, which counts as free
        return _ride("SC-17", active, rules)
    if idle:
        return "SC-16 idle", {("use", max(idle, key=lambda each: each.idle).number)}
    return _open(world, hosts, rules, active, busy)


def _open(
    world: World, hosts: list[str], rules: SchedulerRules, active: list[Link], busy: set[str]
) -> tuple[str, set[Answer]]:
    hosts = [host for host in hosts if world.allows(host, rules)]
    others = [host for host in hosts if host not in busy]
    if unused := [h for h in others if h not in world.retry_at and h not in world.last_made]:
        return "SC-18 unused", {("open", host) for host in unused}
    others = [host for host in others if _below_limit(world, host, rules)]
    if closed := [host for host in others if host not in world.retry_at]:
        oldest = min(closed, key=lambda host: world.last_made[host])
        return "SC-18 closed", {("open", oldest)}
    if retry := [host for host in others if host in world.retry_at]:
        return "SC-18 retry", {("open", host) for host in retry}
    further = [
        host
        for host in hosts
        if host in busy
        if world.retry_at.get(host, 0) <= NOW and _below_limit(world, host, rules)
    ]
    if not further:
        return _ride("SC-20 at the limit:", active, rules)
    fewest = min(len(world.of(host)) for host in further)
    return "SC-20 further", {("open", host) for host in further if len(world.of(host)) == fewest}


def _below_limit(world: World, host: str, rules: SchedulerRules) -> bool:
    """Our own addition: as many again as have answered (AMB-24)."""
    answered = sum(each.is_established for each in world.of(host))
    return len(world.of(host)) < min(rules.per_destination, max(1, 2 * answered))


def _ride(why: str, active: list[Link], rules: SchedulerRules) -> tuple[str, set[Answer]]:
    if not active:
        return f"{why} waits", set()
    short = [each for each in active if not each.is_long(rules)]
    if not short:
        return f"{why} waits, all long", set()
    fewer = [each for each in short if each.jobs < active[0].jobs]
    chosen = (fewer or short)[0]
    return f"{why} rides, {'fewer' if fewer else 'newest'}", {("use", chosen.number)}


def draw(chance: random.Random) -> tuple[World, list[list[str]], SchedulerRules]:
    """Draw a state in which every branch is likely enough."""
    hosts = [f"h{number}" for number in range(chance.randint(1, 6))]
    world = World()
    rules = SchedulerRules(
        backlog=chance.randint(1, 3), longest_queue=chance.choice([3, 4, None]),
        per_destination=chance.randint(1, 4), connections=100,
        least_for_failing=chance.choice([0.0, 0.2]), least_for_new=chance.choice([0.2, 1.0]),
    )  # fmt: skip
    likely = chance.choice(["busy", "idle", "closed", "unused", "failed", "mixed"])
    links = []
    for host in hosts:
        kind = likely if chance.random() < 0.8 and likely != "mixed" else chance.choice(KINDS)
        if kind in {"busy", "idle"}:
            for _ in range(chance.randint(1, 4)):
                is_idle = kind == "idle" and chance.random() < 0.8
                link = Link(0, host, 0 if is_idle else chance.randint(1, 5), int(is_idle))
                link.is_retiring = not is_idle and chance.random() < 0.1
                link.is_established = is_idle or chance.random() < 0.7
                link.precedence = chance.choice(list(Precedence))
                link.own_longest = chance.choice([0, 0, 5])
                links.append(link)
        if kind == "closed":
            links.append(Link(0, host, -1))
        if kind == "failed" or (kind == "busy" and chance.random() < 0.2):
            world.retry_at[host] = NOW + chance.choice([-1.0, 5.0, 9.0, 50.0])
    chance.shuffle(links)
    for number, link in enumerate(links, 1):
        link.number = world.last_made[link.host] = number
        link.idle = link.idle and chance.randint(1, 1000) * 100 + number
    world.links = [each for each in links if each.jobs >= 0]
    cut = chance.randint(1, len(hosts))
    spare = chance.choice([-1, 0, 0, 3])
    world.workers = max(1, len(world.links) + spare)
    tiers = [each for each in (hosts[:cut], hosts[cut:]) if each]
    return world, tiers, rules


KINDS = ["busy", "busy", "idle", "closed", "unused", "failed"]


def build(world: World, rules: SchedulerRules) -> Destinations:
    """Return a table of destinations that went through what leads to this state."""
    table = Destinations(rules)
    jobs = iter(range(1, 10_000))
    made: list[tuple[Link, ConnectionRecord]] = []
    open_links = {each.number: each for each in world.links}
    names = {number: host for host, number in world.last_made.items()}
    for number in range(1, max([*open_links, *names, 0]) + 1):
        link = open_links.get(number)
        retiring = link is not None and link.is_retiring
        name = link.host if link is not None else names[number]
        connection = table.open(name, NOW - rules.age - 1 if retiring else NOW)
        served = link.precedence if link else Precedence.BULK
        table.assign(connection, job := next(jobs), served, NOW)
        if link is None:
            table.finish(connection, job, NOW)
            table.close(connection, NOW)
            continue
        made.append((link, connection))
        for _ in range(link.jobs - 1):
            table.assign(connection, next(jobs), Precedence.VERIFICATION, NOW)
        if link.is_established:
            table.establish(connection, NOW)
        connection.lengthen(link.own_longest)
    for link, connection in sorted(made, key=lambda each: each[0].idle):
        if link.idle:
            table.finish(connection, next(iter(connection.jobs)), NOW)
    assert all(each.is_retiring for each in table.aged(NOW))
    for host, moment in world.retry_at.items():
        table.back_off(host, moment)
    table.end_backoffs(NOW)
    return table


def answer_of(choice: Choice) -> Answer:
    """Return a choice in the form of the answers."""
    match choice:
        case Take(connection):
            return "use", connection.number
        case OpenTo(name):
            return "open", name
        case Wait(tier):
            return "wait", tier
        case NoneWorks(until):
            return "deferred", until
