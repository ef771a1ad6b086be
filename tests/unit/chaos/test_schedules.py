"""Schedules of faults: what is drawn, and what a run notes of it."""

from __future__ import annotations

from datetime import timedelta
from itertools import combinations

from chaos import nemesis
from chaos.history import Event, ListRecorder, Phase
from chaos.nemesis import Fault, Means, Menu
from chaos.pace import QUICK
from chaos.report import costs

MENU: Menu = {
    "kill": Means(1, ("a", "b"), control="life"),
    "pause": Means(1, ("a", "b"), control="life"),
    "cut": Means(1, ("halves", "ring"), spans=True),
}


def _overlap(one: Fault, other: Fault) -> bool:
    return one.at < other.at + other.lasts and other.at < one.at + one.lasts


def test_the_end_of_one_fault_never_ends_another() -> None:
    for seed in range(20):
        drawn = [each for each in nemesis.draw(seed, 900, MENU, QUICK) if each.kind in MENU]
        for one, other in combinations(drawn, 2):
            both = {one.kind, other.kind}
            shares = both == {"cut"} or ("cut" not in both and one.target == other.target)
            assert not (shares and _overlap(one, other)), (str(one), str(other))


class _Slow:
    """A back end whose faults take time to begin and to end, and of which one cannot be done."""

    menu = MENU

    def __init__(self, clock: _MovedClock) -> None:
        self._clock = clock

    async def begin(self, fault: Fault) -> None:
        self._clock.seconds += 20
        if fault.kind == "pause":
            raise OSError("no such node")

    async def end(self, fault: Fault) -> None:
        self._clock.seconds += 30


class _MovedClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def elapsed(self) -> timedelta:
        return timedelta(seconds=self.seconds)

    async def sleep(self, duration: timedelta) -> None:
        self.seconds += max(duration.total_seconds(), 0)


async def test_an_interruption_counts_from_a_faults_first_step_to_its_last() -> None:
    clock = _MovedClock()
    events: list[Event] = []
    recorder = ListRecorder(events, "nemesis", lambda: clock.seconds)
    schedule = [Fault(1, 10, 5, "kill", "a"), Fault(2, 100, 5, "pause", "b")]

    for fault in schedule:
        await nemesis.carry_out([fault], _Slow(clock), clock, recorder)  # type: ignore[arg-type]
    for at in (5, 29, 64, 66, 300):  # 29 to 64: while the node was started again
        events.append(Event(at, "producer-1#1", "enqueue", Phase.OK, f"call-{at}"))
    events.append(Event(400, "drain#1", "open"))

    (cost,) = costs(sorted(events, key=lambda each: each.at))
    assert (cost.kind, cost.count, cost.enqueue) == ("kill", 1, 35)
