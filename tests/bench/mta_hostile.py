"""50 honest clients, alone and beside 10,000 hostile ones; and a million fuzzed command lines.

An honest client hands in a mail of 10 kB a second, each in a session of its own; what counts is the
time from the connection to its 250. The intake allows all sessions that the hostile ones want, so
that it has to bear them: by default it would have 500, and of one address at most half of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import resource
import sys
import time
from asyncio.subprocess import PIPE
from contextlib import suppress
from pathlib import Path

from bench.hostile_clients import CLIENTS, ENVELOPE, SHARE, Client
from bench.results import Result, compared, percentile
from postroad.intake.clients import Rights
from postroad.intake.dialogue import Dialogue, NextStep, Offer
from support.ports import free_port
from support.programs import Program

HONEST, SECONDS, QUIET_SECONDS = 50, float(os.environ.get("BENCH_SECONDS", "60")), 20.0
CONTENT = b"Subject: honest\r\n\r\n" + (b"0123456789abcdef" * 4 + b"\r\n") * 150 + b".\r\n"
MAX_MEGABYTES = 300
MAX_SECONDS = 30.0
"""After which an honest mail counts as refused."""

GREEDY = 2 * SHARE
"""Sessions that one address tries to open, beside all others."""

LINES, MAX_MILLISECONDS = int(os.environ.get("BENCH_LINES", "1000000")), 5.0


async def measure(base: Path) -> list[Result]:
    """Measure an MTA whose next hop is away."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the program inherits it
    program = await Program.start(
        base,
        *("mta", "--queue", f"embedded://{base}/hostile", "--listen", "127.0.0.1:0"),
        *("--relay", f"127.0.0.1:{free_port()}", "--tls", "none"),
        environment={
            "POSTROAD_RETRY_LANES": "1h",
            "POSTROAD_INTAKE_MAX_SESSIONS": str(2 * CLIENTS),
            "POSTROAD_INTAKE_CLIENT_SESSIONS": str(SHARE),
        },
    )
    try:
        port = await program.port("listening")
        before = await _honest(port, QUIET_SECONDS)
        beside, hostile, greedy = await asyncio.gather(
            _honest(port, SECONDS), _hostile(port, SECONDS), _greedy(port)
        )
        after = await _honest(port, QUIET_SECONDS)
        megabytes = _peak_megabytes(program.pid)
    finally:
        await program.kill()
    print(json.dumps(hostile, indent=1), file=sys.stderr)
    case = f"{HONEST} honest clients beside {CLIENTS} hostile ones"
    alone = [*before, *after]
    return [
        *(
            compared(
                f"p{share:g} from connection to 250", case, "ms", [percentile(beside, share / 100)],
                "without the hostile ones", [percentile(alone, share / 100)], less_is_better=True,
            )
            for share in (50, 99)
        ),
        compared("honest mails refused", case, "", [_missing(beside)], "alone", [_missing(alone)],
                 less_is_better=True),
        compared("memory at most", case, "MB", [megabytes], "goal", [MAX_MEGABYTES],
                 less_is_better=True),
        compared("sessions of a greedy address", case, "", [greedy], "its share", [SHARE],
                 less_is_better=True),
        compared("hostile sessions greeted", case, "", [sum(hostile["greeted"].values())],
                 "came", [CLIENTS]),
    ]  # fmt: skip


def fuzz() -> list[Result]:
    """Give command lines that are drawn at random to the dialogue; an exception ends the run."""
    randomness, offer = random.Random(1), Offer("intake.example", 10**6, tls=True)
    dialogue, longest = Dialogue(offer, INSIDE), 0.0
    for _ in range(LINES):
        line = _line(randomness)
        began = time.thread_time()
        _, step = dialogue.answer(line)
        longest = max(longest, 1000 * (time.thread_time() - began))
        if step is not NextStep.NEXT_COMMAND or not randomness.randrange(50):
            dialogue = Dialogue(offer, INSIDE)
            dialogue.answer(b"EHLO fuzz.example")
    case = f"{LINES:,} command lines, up to 4,096 octets"
    return [
        compared("longest answer, CPU", case, "ms", [longest], "goal", [MAX_MILLISECONDS],
                 less_is_better=True)
    ]  # fmt: skip


INSIDE = Rights(may_relay=True)
STARTS = [b"MAIL FROM:<", b"RCPT TO:<", b"EHLO ", b"MAIL ", b"RCPT ", b"DATA", b"VRFY ", b"NOOP "]
PIECES = [bytes((octet,)) for octet in range(256)]
PIECES += [b"@", b'"', b"\\", b"<", b">", b":", b" ", b"=", b".", b"[", b"]", b"+", b"\t"] * 20
PIECES += [b"SIZE=", b"BODY=8BITMIME", b"SMTPUTF8", b"ORCPT=rfc822;", b"NOTIFY=NEVER,", b"ENVID="]
PIECES += [b"a@b.example>", b"@a,@b:", b'"a"@', b"xn--", b"\xc3\xbc", b"[IPv6:", b"AUTH=<>"]


def _line(randomness: random.Random) -> bytes:
    """Return pieces of commands in any order; some of them repeated up to the longest line."""
    parts = [randomness.choice(STARTS)] if randomness.random() < 0.9 else []
    for _ in range(randomness.randrange(1, 12)):
        repeated = randomness.choice((1, 1, 1, 1, 1, 1, 10, 100, 4096))
        parts.append(randomness.choice(PIECES) * repeated)
    return b"".join(parts)[:4096].replace(b"\r\n", b"")


async def _honest(port: int, seconds: float) -> list[float]:
    """Return the milliseconds that each mail took; without end for one that was refused."""
    took: list[float] = []
    ends = time.perf_counter() + seconds

    async def client(number: int) -> None:
        await asyncio.sleep(number / HONEST)
        while time.perf_counter() < ends:
            began = time.perf_counter()
            took.append(await _hand_in(port, f"127.0.2.{1 + number}"))
            await asyncio.sleep(max(0.0, began + 1 - time.perf_counter()))

    await asyncio.gather(*map(client, range(HONEST)))
    return took


async def _hand_in(port: int, address: str) -> float:
    began = time.perf_counter()
    try:
        async with asyncio.timeout(MAX_SECONDS):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(address, 0)
            )
            client = Client(reader, writer)
            await client.reply()
            for octets in (b"EHLO honest.example\r\n", *ENVELOPE, CONTENT):
                await client.say(octets)
            took = 1000 * (time.perf_counter() - began)
            writer.write(b"QUIT\r\n")
            await client.reply()
            writer.close()
    except OSError:  # a time-out is one, too
        return float("inf")
    return took


async def _hostile(port: int, seconds: float) -> dict[str, dict[str, int]]:
    crowd = await asyncio.create_subprocess_exec(
        # Hostile clients have machines of their own: theirs is the time that is left.
        *("nice", "-n", "19", sys.executable, "-m", "bench.hostile_clients"),
        *(str(port), str(seconds)),
        stdout=PIPE,
    )
    out, _ = await crowd.communicate()
    found: dict[str, dict[str, int]] = json.loads(out)
    return found


async def _greedy(port: int) -> int:
    """Return how many sessions one address gets at the same time."""
    writers, greeted = [], 0
    for _ in range(GREEDY):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, local_addr=("127.0.3.1", 0)
        )
        writers.append(writer)
        with suppress(OSError):
            async with asyncio.timeout(MAX_SECONDS):
                greeted += (await reader.readline()).startswith(b"220")
    for each in writers:
        each.transport.abort()
    return greeted


def _missing(took: list[float]) -> int:
    return sum(each == float("inf") for each in took)


def _peak_megabytes(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1000
