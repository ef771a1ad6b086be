"""Ports on loopback: chosen once per server, free, and below those that the kernel chooses itself.

A killed server must come back on the same port. Any outgoing connection could take a port of the
kernel's own range while its server is down.
"""

import random
import socket
from collections.abc import Sequence

FIRST, LAST = 18000, 32000
"""Below Linux's ephemeral ports (32768 and up), above the well-known servers' usual ones."""

_given: set[int] = set()


def choose(seed: str, names: Sequence[str]) -> dict[str, int]:
    """Return a free port for each name; the same seed tries the same ports first."""
    candidates = random.Random(seed)
    chosen: dict[str, int] = {}
    for name in names:
        for _ in range(1000):
            port = candidates.randrange(FIRST, LAST)
            if port not in _given and is_free(port):
                break
        else:
            raise OSError(f"no free port between {FIRST} and {LAST}")
        _given.add(port)
        chosen[name] = port
    return chosen


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a server could listen on this port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def answers(port: int, host: str = "127.0.0.1", timeout_seconds: float = 0.5) -> bool:
    """Tell whether something accepts connections on this port."""
    try:
        with socket.create_connection((host, port), timeout_seconds):
            return True
    except OSError:
        return False
