"""Server processes: started apart from the shell, found again and signalled one by one.

Every process of a server has the server's folder in its environment (`MARKER`), and its children
inherit it. So the stack finds a server's processes without a pid file, even when `up` was cut short
or the server forked daemons of its own. It can hit no other process: it matches no name, and sends
a signal through a file descriptor of exactly the process that it examined.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARKER = "POSTROAD_STACK_MEMBER"
"""The environment variable with the folder of the server that a process belongs to."""

KERNEL_THREAD = 0x00200000
"""PF_KTHREAD among the flags of `/proc/PID/stat`."""
EXEC_SECONDS, EXEC_LOOKS = 0.2, 20
"""How long, and how often, the stack examines a process that shows no environment."""
_always_blank: dict[int, int] = {}
"""Processes that showed none all that time, with their start: the stack waits for each only
once."""

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Process:
    """One process as it was when examined; `started` distinguishes it from a later one of the same
    pid."""

    pid: int
    parent: int
    session: int
    started: int
    stopped: bool
    memory_bytes: int

    @property
    def leads_session(self) -> bool:
        """Whether it was started first, apart from the shell."""
        return self.pid == self.session


def start(
    member: Path,
    command: Sequence[str | Path],
    log: Path,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> None:
    """Start a command in a session of its own, marked as a member of a server.

    Returns when the process exists; the caller has to watch whether it lives on.
    """
    with log.open("ab") as output:
        subprocess.run(
            ["setsid", "--fork", *map(str, command)],
            env={**os.environ, **(environment or {}), MARKER: str(member)},
            cwd=directory or member,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=True,
        )


def look(pid: int) -> Process | None:
    """Return a process by pid, None when there is none (or it has ended and waits to be reaped)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] in "ZX":
        return None
    return Process(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        started=int(fields[19]),
        stopped=fields[0] in "Tt",
        memory_bytes=int(fields[21]) * PAGE_BYTES,
    )


def pids() -> list[int]:
    """Return the pids of all processes."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def members(member: Path, *, below: bool = False) -> list[Process]:
    """Return the living processes of a server, the oldest first; or of all in a folder."""
    mark = f"{MARKER}={member}{'/' if below else ''}".encode()
    marked, blank = [], [pid for pid in pids() if pid != os.getpid() and not _is_always_blank(pid)]
    for again in range(EXEC_LOOKS):
        if again:  # during an exec, a living process shows no environment for a moment
            time.sleep(EXEC_SECONDS / EXEC_LOOKS)
        environments = {pid: _environment(pid) for pid in blank}
        marked += [pid for pid, variables in environments.items() if _bears(variables, mark)]
        blank = [pid for pid in blank if environments[pid] == [b""] and _may_exec(pid)]
        if not blank:
            break
    _always_blank.update({pid: process.started for pid in blank if (process := look(pid))})
    found = [process for process in map(look, marked) if process is not None]
    return sorted(found, key=lambda process: (process.started, process.pid))


def _bears(variables: list[bytes], mark: bytes) -> bool:
    if mark.endswith(b"/"):
        return any(variable.startswith(mark) for variable in variables)
    return mark in variables


def _is_always_blank(pid: int) -> bool:
    started = _always_blank.get(pid)
    if started is None:
        return False
    process = look(pid)
    return process is not None and process.started == started


def _environment(pid: int) -> list[bytes]:
    """Return a process' environment: one empty entry when it shows none, an empty list when it is
    gone or not ours to read."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _may_exec(pid: int) -> bool:
    """Return whether a pid is a program, and neither a thread of the kernel nor a process that has
    ended: those never exec."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and not int(fields[6]) & KERNEL_THREAD


def descendants(roots: Iterable[int]) -> list[Process]:
    """Return the living processes below the given pids, whatever their environment, with them."""
    everything = [look(pid) for pid in pids()]
    children: dict[int, list[Process]] = {}
    living: dict[int, Process] = {}
    for process in everything:
        if process is not None:
            living[process.pid] = process
            children.setdefault(process.parent, []).append(process)
    waiting, found = [living[pid] for pid in roots if pid in living], {}
    while waiting:
        process = waiting.pop()
        if process.pid not in found:
            found[process.pid] = process
            waiting.extend(children.get(process.pid, ()))
    return list(found.values())


def send(process: Process, number: signal.Signals) -> bool:
    """Signal exactly this process; False when it is gone, even if another process has its pid."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        now = look(process.pid)
        if now is None or now.started != process.started:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def freeze(roots: Iterable[int], timeout_seconds: float = 20) -> None:
    """Stop the given processes with all below them, and wait until each of their threads stands.

    SIGSTOP takes effect when a thread next runs: on a busy machine others of the process answer
    requests until then, and may fork. Raises: TimeoutError.
    """
    deadline, roots = time.monotonic() + timeout_seconds, list(roots)
    while moving := [each for each in descendants(roots) if not _stands(each.pid)]:
        for process in moving:
            send(process, signal.SIGSTOP)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes do not stop: {moving}")
        time.sleep(0.002)


def _stands(pid: int) -> bool:
    try:
        threads = [each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread ended meanwhile
        return False
    return all(each.rpartition(")")[2].split()[0] in "TtZX" for each in threads)


def kill_members(member: Path, timeout_seconds: float = 20, *, below: bool = False) -> None:
    """Kill every process of a server (or of all in a folder) and wait until they are gone, however
    often they fork."""
    deadline = time.monotonic() + timeout_seconds
    killed: list[Process] = []
    while remaining := members(member, below=below) or [each for each in killed if _lingers(each)]:
        for process in remaining:
            if send(process, signal.SIGKILL):
                killed.append(process)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes of {member} do not end: {remaining}")
        time.sleep(0.02)


def _lingers(process: Process) -> bool:
    """Return whether other threads of a killed process have not ended yet: they keep its ports."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        threads = len(list(Path(f"/proc/{process.pid}/task").iterdir()))
    except OSError:
        return False
    return int(fields[19]) == process.started and threads > 1
