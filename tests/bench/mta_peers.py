"""`postroad mta` beside five mail servers: accepted and relayed mails a second, CPU, syncs.

All run at once on the same disk and alternate: smtp-source sends mails of 10 kB to one
recipient, each in a session of its own, and smtp-sink takes what they relay. CPU is that of a
control group, so it counts what a server forks and forgets. Each server runs as Debian configures
it but for limits that would refuse this load; Postfix does not hold clients back, Haraka has a
process for each core. How many mails share a sync, and whether one comes before the 250, strace
counts in a pass of its own, because it slows what it watches.

BENCH_PEERS chooses servers, comma separated; BENCH_PEER_MAILS scales the number of mails.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import sys
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from bench.results import Result, compared, progress
from peers.exim import Exim
from peers.haraka import Haraka
from peers.maddy import Maddy
from peers.opensmtpd import OpenSmtpd
from peers.postfix import UNTHROTTLED, Postfix, SmtpSink, smtp_source
from peers.server import Peer, Road, end
from support.cpu_time import ControlGroup
from support.programs import Program

SCALE = float(os.environ.get("BENCH_PEER_MAILS", "1"))
SESSIONS = {1: 200, 16: 1000, 64: 1000}
"""Mails sent for each number of sessions."""

SIZE, CONCURRENCY = 10_000, 20
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
RECEIVERS = int(os.environ.get("BENCH_RECEIVERS", "2"))
LONG_SECONDS = 180.0
SYNCED = {1: 20, 16: 200}
"""Mails sent for each number of sessions while strace counts."""

CALLS = "fsync,fdatasync,sync_file_range,syncfs,sync,openat,write,writev,sendto,sendmsg"
SYNC = re.compile(r" (fsync|fdatasync|sync_file_range|syncfs|sync)\(| openat\(.*O_D?SYNC")
SETTLE_SECONDS = 2.0


class Candidate(ABC):
    """A server that relays to the sink."""

    name: str
    port: int

    @abstractmethod
    async def start(self, before: Sequence[str]) -> None:
        """Start it behind the command `before`."""

    @abstractmethod
    async def stop(self) -> None:
        """End it."""


class Ours(Candidate):
    """`postroad mta` with receivers."""

    name = "postroad"

    def __init__(self, base: Path, relay: int) -> None:
        self._base, self._relay = base / "postroad", relay
        self._program: Program | None = None

    async def start(self, before: Sequence[str]) -> None:
        self._base.mkdir()
        self._program = await Program.start(
            self._base,
            *("mta", "--queue", f"embedded://{self._base}/store", "--listen", "127.0.0.1:0"),
            *("--relay", f"127.0.0.1:{self._relay}", "--tls", "none"),
            *("--concurrency", str(CONCURRENCY), "--receivers", str(RECEIVERS)),
            before=before,
        )
        self.port = await self._program.port("listening")

    async def stop(self) -> None:
        if self._program is not None:
            await end(self._program.process)


class Other(Candidate):
    """Another server."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        peer.prepare()  # the title has its version
        self.name, self.port = peer.title, peer.port

    async def start(self, before: Sequence[str]) -> None:
        await self._peer.start(*before)

    async def stop(self) -> None:
        await self._peer.stop()


def _postfix(base: Path, road: Road) -> Peer:
    return Postfix(base, road, UNTHROTTLED)


def _haraka(base: Path, road: Road) -> Peer:
    peer = Haraka(base, road)
    peer.nodes = os.cpu_count() or 1
    return peer


PEERS: dict[str, Callable[[Path, Road], Peer]] = {
    "postfix": _postfix,
    "exim": Exim,
    "opensmtpd": OpenSmtpd,
    "haraka": _haraka,
    "maddy": Maddy,
}


async def measure(base: Path) -> list[Result]:
    """Measure speed in alternation, then syncs one server after the other."""
    chosen = os.environ.get("BENCH_PEERS", ",".join(PEERS)).split(",")
    sink = await SmtpSink.start(base)
    try:
        results = await _speed(base / "speed", sink, chosen)
        progress(results)
        return [*results, *await _all_syncs(base / "syncs", sink, chosen)]
    finally:
        await sink.stop()


def _candidates(base: Path, sink: SmtpSink, chosen: Sequence[str]) -> list[Candidate]:
    base.mkdir(mode=0o755)
    road = Road(sink.port, concurrency=CONCURRENCY)
    others = [Other(PEERS[name](base / name, road)) for name in chosen]
    return [Ours(base, sink.port), *others]


async def _speed(base: Path, sink: SmtpSink, chosen: Sequence[str]) -> list[Result]:
    candidates = _candidates(base, sink, chosen)
    async with AsyncExitStack() as running:
        groups = {}
        for each in candidates:
            group = groups[each.name] = ControlGroup(each.name.split()[0].lower())
            running.callback(group.remove)
            running.push_async_callback(each.stop)
            await each.start(group.around())
        results = []
        for sessions, mails in SESSIONS.items():
            found = await _entries(candidates, groups, sink, sessions, round(mails * SCALE), base)
            results += _compared(found, sessions)
        return results


Round = tuple[float, float, float, float]
"""Mails accepted a second, relayed a second, milliseconds of CPU a mail, processes."""


async def _entries(
    candidates: Sequence[Candidate],
    groups: dict[str, ControlGroup],
    sink: SmtpSink,
    sessions: int,
    mails: int,
    base: Path,
) -> dict[str, list[Round]]:
    found: dict[str, list[Round]] = defaultdict(list)
    for _ in range(ROUNDS):
        for each in candidates:
            group = groups[each.name]
            before, spent = sink.received, group.cpu_seconds
            try:
                accepted, relayed = await _pass(each, sink, sessions, mails, base)
            except (RuntimeError, TimeoutError) as error:
                shown = f"{each.name}, {sessions} sessions: {type(error).__name__} {error}"
                relayed_mails = sink.received - before
                print(f"no result: {shown} ({relayed_mails} relayed)", file=sys.stderr, flush=True)
                continue
            cpu = 1000 * (group.cpu_seconds - spent) / mails
            found[each.name].append((accepted, relayed, cpu, group.processes))
            print(f"{each.name}, {sessions}: {found[each.name][-1]}", file=sys.stderr, flush=True)
    return found


async def _pass(
    each: Candidate, sink: SmtpSink, sessions: int, mails: int, base: Path
) -> tuple[float, float]:
    """Send mails and wait until all were relayed; return mails a second of both."""
    before = sink.received
    began = time.perf_counter()
    async with asyncio.timeout(LONG_SECONDS):
        await smtp_source(base, each.port, mails, sessions, SIZE)
        accepted = time.perf_counter() - began
        while sink.received < before + mails:
            await asyncio.sleep(0.01)
    return mails / accepted, mails / (time.perf_counter() - began)


def _compared(found: dict[str, list[Round]], sessions: int) -> list[Result]:
    case = f"10 kB, {sessions} session{'s' * (sessions > 1)}"
    mine = list(zip(*found.pop("postroad"), strict=True))
    results = []
    for name, rounds in found.items():
        other = list(zip(*rounds, strict=True))
        results += [
            compared("accepted with 250", case, "mails/s", mine[0], name, other[0]),
            compared("relayed", case, "mails/s", mine[1], name, other[1]),
            compared("CPU", case, "ms/mail", mine[2], name, other[2], less_is_better=True),
            compared("processes", case, "", mine[3], name, other[3], less_is_better=True),
        ]
    return results


async def _all_syncs(base: Path, sink: SmtpSink, chosen: Sequence[str]) -> list[Result]:
    found: dict[str, list[float]] = {}
    for each in _candidates(base, sink, chosen):
        found[each.name] = await _syncs(each, sink, base)
    mine = found.pop("postroad")
    results = []
    for name, theirs in found.items():
        for at, case in enumerate(("1 session", "16 sessions")):
            results.append(
                compared(
                    "syncs", case, "a mail", [mine[at]], name, [theirs[at]], less_is_better=True
                )
            )
        results.append(compared("syncs before a 250", "least", "", [mine[2]], name, [theirs[2]]))
    return results


async def _syncs(each: Candidate, sink: SmtpSink, base: Path) -> list[float]:
    """Return syncs a mail with one session and with 16, and the fewest syncs that lay between the
    354 and the 250 of a mail when there was one session."""
    out = base / "trace"
    strace = ("strace", "-f", "-qq", "-ttt", "-s", "8", "-e", f"trace={CALLS}", "-o", str(out))
    await each.start(strace)
    spans = []
    try:
        for sessions, mails in SYNCED.items():
            began = time.time()
            await _pass(each, sink, sessions, mails, base)
            await asyncio.sleep(SETTLE_SECONDS)  # for what it writes about a mail that has left
            spans.append((began, time.time(), mails))
    finally:
        await each.stop()
    lines = [
        (float(found[1]), found[2])
        for line in out.read_text(errors="replace").splitlines()
        if (found := re.match(r"\d+ +(\d+\.\d+)(.*)", line))
    ]
    counts = [
        sum(begin <= at <= end and bool(SYNC.search(text)) for at, text in lines) / mails
        for begin, end, mails in spans
    ]
    begin, end, _ = spans[0]
    return [*counts, _least_before_answer([text for at, text in lines if begin <= at <= end])]


def _least_before_answer(calls: Sequence[str]) -> float:
    counted, seen = [], None
    for text in calls:
        if '"354' in text:
            seen = 0
        elif seen is not None and SYNC.search(text):
            seen += 1
        elif seen is not None and '"250' in text:
            counted.append(seen)
            seen = None
    return float(min(counted)) if counted else math.nan
