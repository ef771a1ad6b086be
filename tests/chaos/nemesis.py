"""The nemesis: draws a schedule of faults by a seed, and carries it out on a back end.

A schedule is plain data, so that it can be printed, repeated and made smaller.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from chaos.history import Phase, Recorder
from chaos.pace import Pace
from postroad.ports.clock import Clock

STEPS = (0.5, -0.5, 1.4, -1.4, 5, -5, 60, -60, 600, -600, 3600, -3600, 7200, -7200)
"""Seconds by which a clock is set wrong: tolerated values included, and up to two hours."""

RATES = (0.999, 1.001, 0.9, 1.1)
"""Seconds of a drifting clock per true second."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `at` and `lasts` are seconds from the run's beginning; the unit of `amount`
    depends on the kind: seconds, a rate, or a share of calls."""

    number: int
    at: float
    lasts: float
    kind: str
    target: str
    amount: float = 0.0

    def __str__(self) -> str:
        amount = f" by {self.amount:g}" if self.amount else ""
        return f"{self.at:8.1f} s  +{self.lasts:6.1f} s  {self.kind} {self.target}{amount}"


@dataclass(frozen=True, slots=True)
class Means:
    """One kind of fault: how often it is drawn, on which targets, with which amounts. Kinds of one
    `control` share a switch of their target, so the end of one would end the other. `spans`: all
    targets share one switch."""

    weight: float
    targets: Sequence[str]
    amounts: Sequence[float] = (0.0,)
    control: str = ""
    spans: bool = False


Menu = Mapping[str, Means]

ROUNDED = 0.2
"""Seconds by which the rounded end of a fault may come after the rounded begin of the next."""


class Backend(Protocol):
    """A back end, on which faults begin and end."""

    @property
    def menu(self) -> Menu:
        """The faults that this back end has."""
        ...

    async def begin(self, fault: Fault) -> None:
        """Begin a fault. Raises: any error of a fault that cannot be done; the nemesis records it,
        and the run goes on."""
        ...

    async def end(self, fault: Fault) -> None:
        """Undo a fault."""
        ...


BIRTH = "creation by a wrong clock"


def birth_offset(schedule: Sequence[Fault]) -> float:
    """Return by how many seconds the clock of the process that creates the queues is wrong."""
    return next((each.amount for each in schedule if each.kind == BIRTH), 0.0)


def draw(seed: int, seconds: float, menu: Menu, pace: Pace) -> tuple[Fault, ...]:
    """Draw the faults of a run. Two of one control on one target do not overlap; all end within the
    run."""
    randomness = random.Random(seed)
    kinds = sorted(menu)
    weights = [menu[each].weight for each in kinds]
    faults: list[Fault] = []
    if randomness.random() < 0.5:
        faults.append(Fault(0, 0.0, 0.0, BIRTH, "creator", randomness.choice(STEPS)))
    busy: dict[tuple[str, str], float] = {}
    at = 0.0
    while True:
        at += randomness.expovariate(1 / pace.fault_every)
        if at >= seconds:
            return tuple(faults)
        kind = randomness.choices(kinds, weights)[0]
        means = menu[kind]
        target, amount = randomness.choice(means.targets), randomness.choice(means.amounts)
        shortest, longest = pace.fault_lasts
        lasts = min(shortest * (longest / shortest) ** randomness.random(), seconds - at)
        switch = means.control or kind, "" if means.spans else target
        if busy.get(switch, 0.0) + ROUNDED < at:
            busy[switch] = at + lasts
            faults.append(Fault(len(faults), round(at, 1), round(lasts, 1), kind, target, amount))


async def carry_out(
    schedule: Sequence[Fault], backend: Backend, clock: Clock, recorder: Recorder
) -> None:
    """Begin and end each fault at its time. When this is cancelled, the faults that last end
    then."""
    begun = clock.elapsed()
    under_way: list[Fault] = []

    async def one(fault: Fault) -> None:
        await clock.sleep(begun + timedelta(seconds=fault.at) - clock.elapsed())
        under_way.append(fault)
        await _step(fault, backend, recorder, begins=True)
        await clock.sleep(timedelta(seconds=fault.lasts))
        await _step(fault, backend, recorder, begins=False)
        under_way.remove(fault)

    try:
        async with asyncio.TaskGroup() as group:
            for fault in schedule:
                group.create_task(one(fault))
    finally:
        # together, because a node can start only after the end of the partition that it is in
        ends = (_step(each, backend, recorder, begins=False) for each in under_way)
        await asyncio.gather(*ends)


async def _step(fault: Fault, backend: Backend, recorder: Recorder, *, begins: bool) -> None:
    """Record a fault from before it begins until after its end, because starting a node takes
    long."""
    call = f"fault-{fault.number}"
    if begins:
        recorder.note("nemesis", Phase.INVOKE, call, kind=fault.kind, target=fault.target)
    try:
        await (backend.begin(fault) if begins else backend.end(fault))
    except Exception as error:  # a fault that could not be done has no effect; the run goes on
        recorder.note("nemesis", Phase.FAIL, call, fault=str(fault), error=repr(error)[:300])
    else:
        if not begins:
            recorder.note("nemesis", Phase.OK, call, kind=fault.kind, target=fault.target)
