"""`python -m bench ROOM`: prints a table and writes `build/bench/ROOM.json`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from bench.results import Result, show, write

ROOMS = {
    "broker": "bench.broker_room",
    "mta": "bench.mta_room",
    "operator": "bench.operator_room",
    "queue": "bench.queue_room",
    "scheduler": "bench.scheduler_room",
}
"""Room → module with `measure() -> list of results`."""


def main(arguments: list[str]) -> int:
    """Measure one room."""
    if len(arguments) != 1 or arguments[0] not in ROOMS:
        print(f"usage: python -m bench {'|'.join(ROOMS)}", file=sys.stderr)
        return 2
    room = arguments[0]
    measure: Callable[[], Sequence[Result]] = import_module(ROOMS[room]).measure
    results = measure()
    print(show(results))
    print(f"written to {write(room, results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
