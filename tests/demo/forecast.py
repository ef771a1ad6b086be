"""How long a demo will take on this machine, and why: what is missing, and what each part costs.

The costs were measured on two cores, on the machine of README's times. A build takes all cores, so
its time shrinks with them, and grows with other work. The rest waits for network or servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BUILDS: Mapping[str, float] = {
    "kube": 1150,
    "versitygw": 150,
    "pause": 1,
}
"""Seconds of CPU that the cache's entries cost which Go or a compiler makes."""

FETCHES: Mapping[str, float] = {
    "packages": 40,
    "go": 60,
    "cassandra": 15,
    "debian/trixie-rabbitmq-server": 45,
    "base image": 75,
    "container images": 60,
}
"""Seconds that are spent on the network and the disk."""

IMAGE_SECONDS = 45.0
START_SECONDS = 15.0
"""Seconds until all servers answer that were not up."""

WORK: Mapping[str, float] = {"operator": 9, "resources": 11, "mail": 2, "delivery": 9}
"""Seconds of the demo's own steps."""


@dataclass(frozen=True)
class Machine:
    """What the estimate depends on."""

    cores: int
    load: float
    """Processes of other work that compute, on average."""

    missing: Sequence[str]
    """What has to be made or fetched first: names of BUILDS and FETCHES, and `image`."""

    servers_run: bool


@dataclass(frozen=True)
class Forecast:
    """The seconds of each step, in order, and what makes them many."""

    steps: Mapping[str, float]
    reasons: Sequence[str]

    @property
    def seconds(self) -> float:
        """The whole demo."""
        return sum(self.steps.values())

    def __str__(self) -> str:
        return f"about {spoken(self.seconds)}: {'; '.join(self.reasons)}"


def forecast(machine: Machine) -> Forecast:
    """Estimate each step.

    >>> print(forecast(Machine(2, 0.5, (), servers_run=True)))
    about 30 s: nothing is missing, and the servers run
    >>> print(forecast(Machine(4, 2.0, ("kube", "go"), servers_run=False)))
    about 7 min: to be built: kube; to be fetched: go; the servers start
    """
    builds = [name for name in machine.missing if name in BUILDS]
    fetches = [name for name in machine.missing if name in FETCHES]
    slowness = min(4.0, max(1.0, (machine.load + machine.cores) / machine.cores / 1.5))
    cpu = sum(BUILDS[name] for name in builds) * slowness
    servers = cpu / max(1, machine.cores) + sum(
        FETCHES[name] for name in fetches if name != "base image"
    )
    image = IMAGE_SECONDS * slowness if "image" in machine.missing else 0.0
    if "base image" in fetches:
        image += FETCHES["base image"]
    start = 0.0 if machine.servers_run else START_SECONDS * slowness
    reasons = [f"to be built: {', '.join(builds)}"] if builds else []
    reasons += [f"to be fetched: {', '.join(fetches)}"] if fetches else []
    reasons += [] if machine.servers_run else ["the servers start"]
    reasons += ["the image of this source is built"] if "image" in machine.missing else []
    if slowness > 1:
        reasons.append(f"other work shares the {machine.cores} cores")
    work = {name: seconds * slowness for name, seconds in WORK.items()}
    return Forecast(
        {"servers": servers + start, "image": image, **work},
        reasons or ["nothing is missing, and the servers run"],
    )


def spoken(seconds: float) -> str:
    """Return a duration as a person would give it.

    >>> spoken(3), spoken(34), spoken(95), spoken(1010)
    ('5 s', '35 s', '2 min', '17 min')
    """
    if seconds < 60:
        return f"{max(5, round(seconds / 5) * 5)} s"
    return f"{round(seconds / 60)} min"


class Bar:
    """How far a demo is, by its forecast."""

    def __init__(self, expected: Forecast) -> None:
        """Take the forecast. No step runs yet."""
        self._steps = dict(expected.steps)
        self._total = expected.seconds or 1.0
        self._done = 0.0
        self._current = 0.0
        self._begun = 0.0

    def begin(self, step: str, now: float) -> None:
        """Note that a step runs: all before it have ended."""
        self._done += self._current
        self._current = self._steps.pop(step, 0.0)
        self._begun = now

    def text(self, now: float) -> str:
        """Return the bar, and the time that is left by the forecast. A step that takes longer than
        expected stands at its end."""
        passed = self._done + min(now - self._begun, self._current * 0.97)
        part = min(1.0, passed / self._total)
        filled = round(part * 20)
        left = spoken(self._total - passed)
        return f"[{'#' * filled}{'.' * (20 - filled)}] {part:4.0%}, {left} left"
