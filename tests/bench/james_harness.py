"""James' mail queue as a process that does what it is asked: the Java part is in `james/`.

Jars and classes are kept in the stack's cache. What James and the harness have to say goes into
`build/bench/james.log`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.queue_setup import BenchServers
from bench.results import FOLDER
from stack import cache, maven
from stack.cache import Entry
from stack.cassandra import java
from stack.errors import MissingRequirement
from stack.progress import Progress

SOURCES = Path(__file__).parent / "james"
POM = SOURCES / "pom.xml"
MAIN = "org.apache.james.queue.rabbitmq.Harness"
MAILS = "org.apache.james.queue.rabbitmq.Mails"
"""The program for tests, which tells one mail from another."""

OPTIONS = (
    *("-Xms256m", "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
    # A browse that ends early leaves mails behind that James has fetched and does not dispose of.
    "-Dorg.slf4j.simpleLogger.log.org.apache.james.lifecycle=off",
)
MAX_ANSWER = 1 << 26
ANSWER_SECONDS, END_SECONDS = 1800.0, 30.0


class James:
    """The running harness, with one queue open at a time."""

    def __init__(self, process: Process, log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def ask(self, *words: object) -> Any:
        """Return the answer to a command: `count`, `seconds` and `nanoseconds`, one of each mail.

        Raises:
            AssertionError: it failed, or has ended.
            TimeoutError: it hangs, as it does when a mail that it waits for got lost.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{' '.join(map(str, words))}\n".encode())
        await self._process.stdin.drain()
        line = await asyncio.wait_for(self._process.stdout.readline(), ANSWER_SECONDS)
        assert line, f"James ended, see {self._log}"
        answer = json.loads(line)
        assert "error" not in answer, f"{answer['error']}, see {self._log}"
        return answer

    @asynccontextmanager
    async def queue(self, name: object, in_flight: int) -> AsyncIterator[None]:
        """Open a queue that hands out so many mails at a time; the broker forgets it at the end."""
        await self.ask("open", name, in_flight)
        try:
            yield
        finally:
            await self.ask("drop")


@asynccontextmanager
async def running(
    where: BenchServers, main: str = MAIN, environment: Mapping[str, str] | None = None
) -> AsyncIterator[James]:
    """Start James in this place, on the servers that the POSTROAD_* variables name. `main`: the
    program, `environment`: what it gets beside them."""
    progress = Progress()
    jars = await asyncio.to_thread(_jars().ensure, progress)
    classes = await asyncio.to_thread(_classes(jars).ensure, progress)
    FOLDER.mkdir(parents=True, exist_ok=True)
    log = FOLDER / "james.log"
    place = {
        "POSTROAD_CASSANDRA_KEYSPACE": where.keyspace,
        "POSTROAD_S3_BUCKET": where.bucket,
    }
    with log.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            *(java(), *OPTIONS, "-cp", f"{classes}:{jars}/*", main),
            stdin=PIPE,
            stdout=PIPE,
            stderr=stream,
            env={**os.environ, **place, **(environment or {})},
            limit=MAX_ANSWER,
        )
    try:
        yield James(process, log)
    finally:
        await _end(process)


async def _end(process: Process) -> None:
    """It ends when nothing more can be asked."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), END_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


def _jars() -> Entry:
    return Entry(
        "james",
        cache.key_of(POM),
        "James: download (about a minute)",
        lambda folder, log: maven.copy_jars(POM, folder, log),
    )


def _classes(jars: Path) -> Entry:
    def make(folder: Path, log: Path) -> None:
        compiler = java().with_name("javac")
        if not compiler.exists():
            raise MissingRequirement("the harness of James needs package openjdk-17-jdk-headless")
        sources = sorted(SOURCES.glob("*.java"))
        cache.run([compiler, "-cp", f"{jars}/*", "-d", folder, *sources], log)
        shutil.copy(SOURCES / "application.conf", folder)

    return Entry("james-harness", cache.key_of(SOURCES), "James: compile the harness", make)
