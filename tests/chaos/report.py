"""The report of a run: the life of a mail line by line, and the cost of each kind of fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from chaos.checker import Violation
from chaos.history import Event, Phase

LISTED, SHOWN = 40, 3
"""The number of violations that are printed, and of mails whose lives are."""


def life_of(events: Sequence[Event], mail: str) -> list[str]:
    """Return all events of a mail, and of the processes that had it in flight."""
    entries: set[str] = set()
    mine: list[Event] = []
    calls: set[str] = set()
    for event in events:
        names = {each.get("mail") for each in event.data.get("mails", ())}
        selector = event.data.get("selector", {})
        if event.call in calls or event.data.get("mail") == mail or selector.get("name") == mail:
            calls.add(event.call) if event.call else None
            entries.add(str(event.data.get("entry", "")))
            mine.append(event)
        elif mail in names or (event.op == "redelivery" and event.data["entry"] in entries - {""}):
            mine.append(event)
    if not mine:
        return []
    first, last = mine[0].at, mine[-1].at
    lives = {each.by for each in mine}
    for event in events:
        if not first <= event.at <= last:
            continue
        is_wide = "all" in event.data.get("selector", {}) and event.phase is Phase.INVOKE
        is_change = is_wide and event.op in ("purge", "republish", "remove")
        is_about_us = event.op == "process" and event.data["process"] in lives
        if is_about_us or is_change or event.op == "nemesis":
            mine.append(event)
    return [_told(each) for each in sorted(mine, key=lambda each: each.at)]


def _told(event: Event) -> str:
    hidden = ("mail", "mails", "intact", "sender", "attempt")
    rest = " ".join(f"{key}={value}" for key, value in event.data.items() if key not in hidden)
    return f"{event.at:12.3f} {event.by:16} {event.op} {event.phase.value} {rest}"


def told(events: Sequence[Event], violations: Sequence[Violation]) -> str:
    """Return the violations, and the lives of the first mails that they concern."""
    counted = Counter(each.kind.value for each in violations)
    lines = [f"{count} {kind}" for kind, count in sorted(counted.items())]
    lines += [str(each)[:300] for each in violations[:LISTED]]
    for mail in list(dict.fromkeys(each.mail for each in violations if each.mail))[:SHOWN]:
        lines += ["", f"the life of {mail}:", *life_of(events, mail)]
    return "\n".join(lines)


@dataclass(slots=True)
class Cost:
    """The effect of a kind of fault: the longest times, in seconds, without an acknowledged enqueue
    or ending while one of these faults lasted or had just ended."""

    kind: str
    count: int = 0
    enqueue: float = 0.0
    deliveries: float = 0.0

    def merge(self, other: Cost) -> None:
        self.count += other.count
        self.enqueue = max(self.enqueue, other.enqueue)
        self.deliveries = max(self.deliveries, other.deliveries)


def costs(events: Sequence[Event]) -> list[Cost]:
    """Return the cost of each kind of fault. An interruption counts for every fault that it
    overlaps, so several faults may share one."""
    work_over = min((each.at for each in events if each.by.startswith("drain#")), default=0.0)
    acknowledged = [
        [each.at for each in events if each.op in ops and each.phase is Phase.OK]
        for ops in (("enqueue",), ("done", "retry", "reject"))
    ]
    gaps = [[(a, b) for a, b in pairwise(times) if b <= work_over] for times in acknowledged]
    begun: dict[str, Event] = {}
    found: dict[str, Cost] = {}
    for event in events:
        if event.op != "nemesis":
            continue
        if event.phase is Phase.INVOKE:
            begun[event.call] = event
        elif event.phase is Phase.FAIL:
            begun.pop(event.call, None)
        elif event.call in begun:
            cost = found.setdefault(event.data["kind"], Cost(event.data["kind"]))
            since = begun.pop(event.call).at
            longest = [_longest(each, since, event.at) for each in gaps]
            cost.merge(Cost(cost.kind, 1, *longest))
    return sorted(found.values(), key=lambda each: each.kind)


def _longest(gaps: Iterable[tuple[float, float]], since: float, until: float) -> float:
    return max((b - a for a, b in gaps if a < until and b > since), default=0.0)


@dataclass(slots=True)
class Totals:
    """Numbers of one run or several."""

    runs: int = 0
    mails: int = 0
    acknowledged: int = 0
    transmissions: int = 0
    second_copies: int = 0
    removed: int = 0
    faults: int = 0
    crashes: int = 0

    def add(self, other: Totals) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)

    def __str__(self) -> str:
        return ", ".join(
            f"{value} {name.replace('_', ' ')}" for name, value in asdict(self).items()
        )


def totals(events: Sequence[Event]) -> Totals:
    """Count the events of one run."""
    counted = Counter((each.op, each.phase) for each in events)
    copies: Counter[tuple[str, str]] = Counter()
    for event in events:
        if event.op == "transmit":
            copies.update((event.data["mail"], each) for each in event.data["recipients"])
    removed = sum(
        event.data["count"]
        for event in events
        if event.op in ("remove", "purge") and event.phase is Phase.OK
    )
    return Totals(
        runs=1,
        mails=counted["enqueue", Phase.INVOKE],
        acknowledged=counted["enqueue", Phase.OK],
        transmissions=copies.total(),
        second_copies=copies.total() - len(copies),
        removed=removed,
        faults=sum(each.count for each in costs(events)),
        crashes=sum(each.op == "process" and each.data["what"] == "crashed" for each in events),
    )


def table(found: Iterable[Cost]) -> str:
    """Return the costs as a table of Markdown."""
    lines = ["| fault | count | enqueue, s | deliveries, s |", "|---|---|---|---|"]
    lines += [
        f"| {each.kind} | {each.count} | {each.enqueue:.1f} | {each.deliveries:.1f} |"
        for each in found
    ]
    return "\n".join(lines)


ADMINISTRATION = ("remove", "purge", "hold", "release", "flush", "requeue", "republish", "set_up")
"""The operations of an administrator."""


class Summary:
    """The report of several runs together."""

    def __init__(self) -> None:
        self.found: list[Violation] = []
        self._totals = Totals()
        self._costs: dict[str, Cost] = {}
        self._changes: Counter[str] = Counter()
        self._seconds = 0.0

    def add(self, events: Sequence[Event], violations: Sequence[Violation]) -> None:
        """Count a run."""
        self.found += violations
        self._totals.add(totals(events))
        for cost in costs(events):
            self._costs.setdefault(cost.kind, Cost(cost.kind)).merge(cost)
        self._changes.update(
            each.op
            for each in events
            if each.op in ADMINISTRATION
            and each.phase is Phase.OK
            and each.by.startswith("administrator")
        )
        load = [each.at for each in events if each.op == "enqueue"]
        self._seconds += max(load) - min(load) if load else 0.0

    def text(self) -> str:
        """Return the totals, the administrators' successful calls and the table of the faults."""
        changes = ", ".join(f"{self._changes[each]} {each}" for each in ADMINISTRATION)
        return "\n\n".join(
            [
                f"{self._totals}, {self._seconds:.0f} s of load, {len(self.found)} violations",
                f"administrators: {changes}",
                table(sorted(self._costs.values(), key=lambda each: each.kind)),
            ]
        )
