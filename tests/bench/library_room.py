"""The library over a directory beside dramatiq, huey and procrastinate, in alternation: payloads of
2 kB, in one process each that queues them, then handles them with ten at a time.

`BENCH_PEERS` is a directory with `bin/python` that has the libraries of `locks/peers.txt`. Redis
and PostgreSQL are those of Debian, started here on sockets. Redis syncs each write (`appendfsync
always`), PostgreSQL each commit, SQLite each commit (`fsync=True`), so that all are durable before
a call returns. `file` appends to a file with a sync for each payload, or for a hundred: a bound.
Latency is from the call that queues a payload to the begin of its handler, one at a time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import library_peer
from bench.results import Result, compared

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
COUNT = int(os.environ.get("BENCH_COUNT", "1000"))
MEASURES = {
    "enqueue": ("one by one", "/s"),
    "import": ("many at once", "/s"),
    "consume": ("consume", "/s"),
    "latency": ("latency, median", "ms"),
    "latency_most": ("latency, at most", "ms"),
    "memory": ("memory at most", "MiB"),
}
LESS_IS_BETTER = {"latency", "latency_most", "memory"}


def measure() -> list[Result]:
    """Measure all. Needs root, BENCH_PEERS, and redis-server and postgres on the PATH."""
    peers = Path(os.environ.get("BENCH_PEERS", "")) / "bin/python"
    missing = [each for each in ("redis-server", "postgres", "initdb") if not shutil.which(each)]
    if missing or not peers.exists():
        sys.exit(
            f"needs {', '.join(missing) or 'the libraries'}:"
            " apt-get install redis-server postgresql; python3 -m venv DIR;"
            " DIR/bin/pip install --require-hashes -r locks/peers.txt; BENCH_PEERS=DIR"
        )
    found: dict[str, list[dict[str, float]]] = {}
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="postroad-bench-")))
        base.chmod(0o755)
        redis = stack.enter_context(_redis(base / "redis"))
        postgres = stack.enter_context(_postgresql(base / "postgresql"))
        for number in range(ROUNDS):
            folder = base / str(number)
            folder.mkdir()
            for name, place in (
                ("postroad", str(folder)),
                ("file", str(folder)),
                ("dramatiq redis", redis),
                ("huey redis", redis),
                ("huey sqlite", str(folder)),
                ("procrastinate postgresql", postgres),
            ):
                python = sys.executable if name == "postroad" else str(peers)
                found.setdefault(name, []).append(_run(python, name.split()[0], place))
    return list(_results(found))


def _run(python: str, name: str, place: str) -> dict[str, float]:
    command = [python, library_peer.__file__, name, place, str(COUNT)]
    done = subprocess.run(command, check=True, capture_output=True, timeout=600)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def _results(found: dict[str, list[dict[str, float]]]) -> Iterator[Result]:
    ours = found.pop("postroad")
    for key, (measure, unit) in MEASURES.items():
        for peer, rounds in found.items():
            # What a library has no call for, it does one by one.
            theirs = [each.get(key, each["enqueue"] if key == "import" else 0) for each in rounds]
            if any(theirs):
                mine = [each[key] for each in ours]
                less = key in LESS_IS_BETTER
                yield compared(
                    measure, f"{COUNT} of 2 kB", unit, mine, peer, theirs, less_is_better=less
                )


@contextmanager
def _redis(folder: Path) -> Iterator[str]:
    folder.mkdir()
    path = folder / "socket"
    command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--dir", str(folder)]
    with _server([*command, "--appendonly", "yes", "--appendfsync", "always", "--save", ""], path):
        yield f"unix://{path}"


@contextmanager
def _postgresql(folder: Path) -> Iterator[str]:
    folder.mkdir()
    shutil.chown(folder, "postgres")
    as_user = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"]
    data = folder / "data"
    make = [*as_user, "initdb", "-A", "trust", "-D", str(data)]
    subprocess.run(make, check=True, capture_output=True, cwd=folder)
    serve = [*as_user, "postgres", "-D", str(data), "-k", str(folder), "-c", "listen_addresses="]
    with _server(serve, folder / ".s.PGSQL.5432"):
        yield f"host={folder} user=postgres dbname=postgres"


@contextmanager
def _server(command: list[str], socket: Path) -> Iterator[None]:
    """Run a server until the block ends; begin when it has its socket."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while not socket.exists():
            if server.poll() is not None or time.monotonic() > until:
                sys.exit(f"{command} does not start")
            time.sleep(0.1)
        time.sleep(1)  # PostgreSQL has its socket before it takes connections
        yield
    finally:
        server.terminate()
        server.wait(60)
