"""`postroad mta` over a directory beside Debian's Postfix: same machine, same disk, in alternation.

`CASE` chooses among the cases, comma separated; all but `peers` by default. `beside`: both relay to
one smtp-sink while smtp-source sends mails of 10 kB, each in a session of its own. Accepted means
that 250 was answered, and both answer it only after a sync; end to end means that the sink has the
mail.
`waiting`: the next hop is away, so that acceptance has the machine for itself. Ours is a process or
as many more as BENCH_RECEIVERS says, Postfix some dozens; CPU is theirs, without source and sink.
Postfix holds back those who send faster than it delivers, by default (`in_flow_delay`);
BENCH_POSTFIX=unthrottled lets it accept as fast as it can, as it always does in `waiting`.
With BENCH_OTHER=/path:/path, the code of other checkouts takes its turn beside both.
The other cases are the embedded engine's own: syncs a mail, a slow sender, lanes, a restart with a
long queue, a long suppression list. `ways`: logins under TLS, a milter, HTTP, beside Postfix.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

from bench import (
    mta_hostile,
    mta_instructions,
    mta_lanes,
    mta_peers,
    mta_recovery,
    mta_slow,
    mta_suppression,
    mta_syncs,
    mta_ways_in,
)
from bench.results import Result, compared
from peers.postfix import UNTHROTTLED, Postfix, SmtpSink, smtp_source
from peers.server import Road
from support.cpu_time import cpu_seconds, family
from support.ports import free_port
from support.programs import Program

SESSIONS = {1: 400, 16: 2000, 64: 2000}
"""Mails sent for each number of sessions."""

SIZE = 10_000
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
RECEIVERS = int(os.environ.get("BENCH_RECEIVERS", "0"))
PEER = "postfix (Debian)"
OTHERS = [Path(each) for each in os.environ.get("BENCH_OTHER", "").split(":") if each]
IS_UNTHROTTLED = os.environ.get("BENCH_POSTFIX", "") == "unthrottled"
SETTLE_SECONDS = 5.0
CONCURRENCY = 20
"""Sessions with the next hop, of either."""


def measure() -> list[Result]:
    """Measure the chosen cases. Needs root."""
    chosen = os.environ.get("CASE", ",".join(CASES_BY_DEFAULT)).split(",")
    unknown = [each for each in chosen if each not in CASES]
    if unknown:
        sys.exit(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    return asyncio.run(_measure(chosen))


async def _measure(chosen: list[str]) -> list[Result]:
    results: list[Result] = []
    for case in chosen:
        # Postfix' own users must reach its files, so they cannot lie in a private directory.
        base = Path(tempfile.mkdtemp(prefix="postroad-bench-"))
        base.chmod(0o755)
        try:
            results += await CASES[case](base)
        finally:
            shutil.rmtree(base, ignore_errors=True)
    return results


async def _beside(base: Path) -> list[Result]:
    sink = await SmtpSink.start(base)
    try:
        return await _compare_all(base / "through", sink.port, sink)
    finally:
        await sink.stop()


async def _waiting(base: Path) -> list[Result]:
    return await _compare_all(base / "waiting", free_port(), None)


async def _compare_all(base: Path, relay: int, sink: SmtpSink | None) -> list[Result]:
    """Compare with every number of sessions. Without a sink the next hop does not listen, and
    all accepted mail waits for an hour."""
    base.mkdir(mode=0o755)
    settings = UNTHROTTLED if IS_UNTHROTTLED or sink is None else ""
    road = Road(relay, concurrency=CONCURRENCY, retry_seconds=3600)
    postfix = Postfix(base / "postfix", road, settings)
    await postfix.start()
    programs = {"": await _mta(base / "ours", relay, os.environ["PYTHONPATH"])}
    for each in OTHERS:
        programs[f", {each.name}"] = await _mta(base / each.name, relay, f"{each}/operator")
    try:
        ours = {
            name: Candidate(base, await each.port("listening"), partial(family, each.pid), sink)
            for name, each in programs.items()
        }
        theirs = Candidate(base, postfix.port, postfix.process_ids, sink)
        return [
            result
            for sessions, mails in SESSIONS.items()
            for result in await _compare(ours, theirs, sessions, mails)
        ]
    finally:
        for program in programs.values():
            await program.kill()
        await postfix.stop()


async def _mta(base: Path, relay: int, code: str) -> Program:
    base.mkdir(mode=0o755)
    return await Program.start(
        base,
        *("mta", "--queue", f"embedded://{base}/store", "--listen", "127.0.0.1:0"),
        *("--relay", f"127.0.0.1:{relay}", "--tls", "none"),
        *("--concurrency", str(CONCURRENCY), "--receivers", str(RECEIVERS)),
        environment={"POSTROAD_RETRY_LANES": "1h", "PYTHONPATH": code},
    )


class Candidate:
    """One of the two. `processes` gives the ids whose CPU counts."""

    def __init__(
        self, base: Path, port: int, processes: Callable[[], list[int]], sink: SmtpSink | None
    ) -> None:
        self._base, self._port, self._processes, self.sink = base, port, processes, sink

    @property
    def count(self) -> int:
        """How many processes it is now."""
        return len(self._processes())

    async def round(self, sessions: int, mails: int) -> tuple[float, float, float]:
        """Return mails accepted and delivered a second, and milliseconds of CPU a mail. Without a
        sink its own pause lets either write down that all of them wait."""
        before, spent = self.sink.received if self.sink else 0, cpu_seconds(self._processes())
        began = time.perf_counter()
        await smtp_source(self._base, self._port, mails, sessions, SIZE)
        accepted = time.perf_counter() - began
        if self.sink is None:
            await asyncio.sleep(SETTLE_SECONDS)
        while self.sink is not None and self.sink.received < before + mails:
            await asyncio.sleep(0.01)
        delivered = time.perf_counter() - began
        cpu = cpu_seconds(self._processes()) - spent
        return mails / accepted, mails / delivered, 1000 * cpu / mails


async def _compare(
    ours: Mapping[str, Candidate], theirs: Candidate, sessions: int, mails: int
) -> list[Result]:
    """`ours`: by what their cases are called behind the number of sessions."""
    found: dict[Candidate, list[tuple[float, float, float, int]]] = defaultdict(list)
    for _ in range(ROUNDS):
        for each in (theirs, *ours.values()):
            found[each].append((*await each.round(sessions, mails), each.count))
    other = list(zip(*found[theirs], strict=True))
    results: list[Result] = []
    for name, candidate in ours.items():
        case = f"10 kB, {sessions} session{'s' * (sessions > 1)}"
        case += ("" if candidate.sink else ", next hop away") + name
        mine = list(zip(*found[candidate], strict=True))
        results.append(compared("accepted with 250", case, "mails/s", mine[0], PEER, other[0]))
        if candidate.sink:
            results.append(compared("end to end", case, "mails/s", mine[1], PEER, other[1]))
        results += [
            compared("CPU", case, "ms/mail", mine[2], PEER, other[2], less_is_better=True),
            compared("processes", case, "", mine[3], PEER, other[3], less_is_better=True),
        ]
    return results


CASES: dict[str, Callable[[Path], Awaitable[list[Result]]]] = {
    "beside": _beside,
    "waiting": _waiting,
    "peers": mta_peers.measure,
    "syncs": lambda base: asyncio.to_thread(mta_syncs.measure, base),
    "slow": mta_slow.measure,
    "hostile": mta_hostile.measure,
    "fuzz": lambda _: asyncio.to_thread(mta_hostile.fuzz),
    "lanes": lambda _: mta_lanes.measure(),
    "recovery": mta_recovery.measure,
    "suppressed": mta_suppression.measure,
    "ways": mta_ways_in.measure,
    "instructions": mta_instructions.measure,
}
"""`beside`, `waiting`, `recovery` and `ways` compare with Postfix, `peers` with five servers."""
CASES_BY_DEFAULT = tuple(name for name in CASES if name not in ("peers", "instructions"))
