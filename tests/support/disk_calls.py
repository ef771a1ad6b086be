"""The calls that a process makes on the files of a store, traced by strace, in phases.

`traced_mta.py` is the process. It opens a file that does not exist where a phase begins, because
strace records that like any other call.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CALLS = "openat,pread64,preadv2,fsync,fdatasync,rename,unlink,mkdir,sendto,write"
VERBS = {"fsync": "sync", "fdatasync": "sync", "pread64": "read", "preadv2": "read"}
PHASE = "phase-"
_BEGUN = re.compile(r"^(\d+) +(\w+)\((.*)$")
_RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)$")
_NAMED = re.compile(r'"(/[^"]*)"')
_OPEN = re.compile(r"<(/[^>]*)>")


def trace(folder: Path, clients: int, mails: int, front: str = "owner") -> dict[str, list[str]]:
    """Run `traced_mta.py` under strace; return its calls by phase, in order (see `_event`). A phase
    that began is there, also without calls."""
    store, out = folder / "store", folder / "trace"
    subprocess.run(
        (
            *("strace", "-f", "-qq", "--seccomp-bpf", "-y", "-s", "16", "-e", f"trace={CALLS}"),
            *("-o", str(out), sys.executable, "-m", "support.traced_mta"),
            *(str(store), str(clients), str(mails), front),
        ),
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'tests'}"},
        check=True,
    )
    return _phases(out, store)


def _phases(out: Path, store: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    phase = "start"
    begun: dict[tuple[str, str], str] = {}
    with out.open() as lines:
        for line in lines:
            if (resumed := _RESUMED.match(line)) is not None:
                process, call, rest = resumed.groups()
                text = begun.pop((process, call), "") + rest
            elif (match := _BEGUN.match(line)) is not None:
                process, call, text = match.groups()
                if "<unfinished" in text:
                    begun[process, call] = text
                    continue
            else:
                continue
            if PHASE in text:
                phase = text.partition(PHASE)[2].partition('"')[0]
                found.setdefault(phase, [])
            elif event := _event(call, text, store):
                found.setdefault(phase, []).append(event)
    return found


def _event(call: str, text: str, store: Path) -> str | None:
    """Return `answer` for a 250 that a client gets, otherwise the call and what it was made on:
    `sync spool`, `read log`, `create log`, `unlink spool`; None for what is not the store's."""
    if call in ("sendto", "write"):
        return "answer" if '"250 2.0.0 queued' in text else None
    match = (_OPEN if call in VERBS else _NAMED).search(text)
    path = match[1] if match else ""
    if not path.startswith(f"{store}/"):
        return None
    room = {"mail": "spool", "log": "log"}.get(path[len(f"{store}/") :].partition("/")[0], "other")
    if call == "openat":
        if "O_DIRECTORY" in text:
            return None
        return f"create {room}" if "O_CREAT" in text else f"open {room}"
    return f"{VERBS.get(call, call)} {room}"
