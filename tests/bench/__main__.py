"""`python -m bench ROOM`: prints a table and writes `build/bench/ROOM.json`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from bench.results import Result, show, write
from postroad.errors import PostroadError
from stack.errors import StackError

ROOMS = {
    "broker": "bench.broker_room",
    "console": "bench.console_room",
    "delivery": "bench.delivery_room",
    "library": "bench.library_room",
    "mta": "bench.mta_room",
    "operator": "bench.operator_room",
    "pipeline": "bench.pipeline_room",
    "queue": "bench.queue_room",
    "scheduler": "bench.scheduler_room",
}
"""Room → module with `measure() -> list of results`."""


SERVERS = """\
If no variable names the servers: cd tests; python3 -m stack up rabbitmq cassandra s3
                                  eval "$(python3 -m stack env)"; cd .."""


def main(arguments: list[str]) -> int:
    """Measure one room."""
    if len(arguments) != 1 or arguments[0] not in ROOMS:
        print(f"usage: python -m bench {'|'.join(ROOMS)}", file=sys.stderr)
        return 2
    room = arguments[0]
    measure: Callable[[], Sequence[Result]] = import_module(ROOMS[room]).measure
    try:
        results = measure()
    except StackError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except PostroadError as error:
        print(f"bench: {error.explain()}\n{SERVERS}", file=sys.stderr)
        return 1
    print(show(results))
    print(f"written to {write(room, results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
