"""Syncs for a mail that comes in and goes out, counted by strace around the whole MTA.

Without sharing they would be three: one of the mail's file, one of its place in the log, one of
its delivery.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from bench.results import Result, compared
from support.disk_calls import trace

CLIENTS = (1, 16, 64)
MAILS = 192
UNSHARED = 3
PEER = "no sync is shared"


def measure(base: Path) -> list[Result]:
    """Count with each number of clients. Needs strace."""
    results = []
    for clients in CLIENTS:
        folder = base / f"syncs{clients}"
        folder.mkdir()
        found = Counter(trace(folder, clients, MAILS)["both"])
        case = f"{clients} client{'s' * (clients > 1)}"
        spool, log = found["sync spool"] / MAILS, found["sync log"] / MAILS
        rows = (("syncs", spool + log, UNSHARED), ("syncs of the log", log, UNSHARED - 1))
        results += [
            compared(name, case, "a mail", [ours], PEER, [theirs], less_is_better=True)
            for name, ours, theirs in rows
        ]
    return results
