"""Records what Prometheus would have scraped in a scene: `python -m alerts.record [SCENE...]`.

A file holds the series of the metrics that rules of the chart use, a value for each minute, in the
notation of promtool: `0x3` is 0 four times, `_x1` a scrape without the series, twice.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import yaml
from prometheus_client import REGISTRY

from support.chart import CHART
from support.manual_loop import ManualLoop
from support.memory.clock import START

FOLDER = Path(__file__).parent / "recorded"
RULES = CHART / "files" / "alerts.yaml"
OF_THE_OPERATOR = re.compile(
    "postroad_(operator|reconcile|workqueue|resource|queue|pipeline|scheduled|repairs|server|kubernetes)_"
)


def used() -> set[str]:
    """Return the names of the metrics that the rules use."""
    return set(re.findall(r"postroad_\w+", re.sub(r"runbook_url.*", "", RULES.read_text())))


class Recording:
    """Scrapes this process as if it were all targets."""

    def __init__(self) -> None:
        self._names = used()
        self._scrapes: list[dict[str, float]] = []
        self._began: float | None = None

    def sample(self) -> None:
        """Scrape once. The first scrape is at 1970, where promtool begins."""
        now = START.timestamp() + asyncio.get_running_loop().time()
        self._began = self._began or now
        self._scrapes.append(
            {
                series(sample.name, sample.labels): sample.value
                - (self._began if sample.name.endswith("_timestamp_seconds") else 0)
                for family in REGISTRY.collect()
                for sample in family.samples
                if sample.name in self._names
            }
        )

    def written(self) -> str:
        """Return the series as YAML."""
        known = sorted({each for scrape in self._scrapes for each in scrape})
        found = [
            {"series": each, "values": " ".join(notation([s.get(each) for s in self._scrapes]))}
            for each in known
        ]
        text = {"minutes": len(self._scrapes), "input_series": found}
        return yaml.safe_dump(text, sort_keys=False, width=1000)


def series(name: str, labels: dict[str, str]) -> str:
    """Return a series with the labels that Prometheus gives it: those of the target too."""
    if OF_THE_OPERATOR.match(name):
        target = {"job": "postroad-operator", "namespace": "postroad-system", "pod": "operator-1"}
        labels = target | labels
    else:
        labels = labels | {"job": "mail/postroad-operator", "namespace": "mail", "pod": "worker-1"}
    pairs = (f'{key}="{labels[key]}"' for key in sorted(labels))
    return f"{name}{{{','.join(pairs)}}}"


def notation(values: Sequence[float | None]) -> Iterator[str]:
    """Return values as promtool reads them.

    >>> list(notation([None, 0.0, 0.0, 1.5]))
    ['_x1', '0x1', '1.5x0']
    """
    for value, group in groupby(values):
        count = len(list(group))
        yield f"_x{count}" if value is None else f"{value!r}x{count - 1}"


def record(name: str) -> str:
    """Run a scene; return what was scraped."""
    from alerts.scenes import SCENES

    recording = Recording()
    with asyncio.Runner(loop_factory=ManualLoop) as runner:
        runner.run(SCENES[name](recording.sample))
    return recording.written()


def main(names: Sequence[str]) -> int:
    """Record scenes, all by default, each in a process of its own; return the exit code."""
    if len(names) == 1:
        (FOLDER / f"{names[0]}.yaml").write_text(record(names[0]))
        return 0
    FOLDER.mkdir(exist_ok=True)
    if not names:
        from alerts.scenes import SCENES

        names = [*SCENES]
    codes = [
        subprocess.run([sys.executable, "-m", "alerts.record", each]).returncode for each in names
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
