"""A queue of a real James beside queues of postroad: his property files, what he lists, and what
`postroad migrate james` makes of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import servers
from bench.james_harness import MAILS, James, running
from bench.queue_setup import BenchServers, fresh_servers
from postroad import open_queue
from postroad.adapters.cassandra.session import Session
from postroad.adapters.rabbitmq.connection import RabbitMQConnection
from postroad.domain.queues.documents import MailView
from postroad.james.migration import TAKEN_QUEUE, WORK_QUEUE
from postroad.settings import Settings, from_environment

KILLED, AWAY, REPEATED = -9, 75, 5
Ended = tuple[int, list[dict[str, Any]], str]


@dataclass
class Place:
    """Servers of one test, a queue's name at James, and the folder of his property files."""

    where: BenchServers
    folder: Path
    name: str = field(default_factory=servers.fresh)

    @property
    def environment(self) -> dict[str, str]:
        own = {
            "POSTROAD_CASSANDRA_KEYSPACE": self.where.keyspace,
            "POSTROAD_S3_BUCKET": self.where.bucket,
        }
        return {**os.environ, **own}

    @property
    def settings(self) -> Settings:
        return from_environment(self.environment)

    def write(self, **changed: str) -> Path:
        """Write the property files, some properties otherwise, by `_` in place of `.`."""
        given = self.environment
        hosts = given["POSTROAD_CASSANDRA_CONTACT_POINTS"].split(",")
        port = given["POSTROAD_CASSANDRA_PORT"]
        files = {
            "cassandra": {
                "cassandra.nodes": ",".join(f"{host}:{port}" for host in hosts),
                "cassandra.local.dc": given["POSTROAD_CASSANDRA_LOCAL_DATACENTER"],
                "cassandra.keyspace": self.where.keyspace,
                "cassandra.user": given["POSTROAD_CASSANDRA_USERNAME"],
                "cassandra.password": "${env:POSTROAD_CASSANDRA_PASSWORD}",
            },
            "rabbitmq": {"uri": given["POSTROAD_RABBITMQ_URI"]},
            "blob": {
                "implementation": "s3",
                "deduplication.enable": "false",
                "objectstorage.namespace": self.where.bucket,
                "objectstorage.s3.endPoint": given["POSTROAD_S3_ENDPOINT"],
                "objectstorage.s3.region": given["POSTROAD_S3_REGION"],
                "objectstorage.s3.accessKeyId": given["POSTROAD_S3_ACCESS_KEY"],
                "objectstorage.s3.secretKey": "${env:POSTROAD_S3_SECRET_KEY}",
            },
        }
        self.folder.mkdir(exist_ok=True)
        for name, properties in files.items():
            changes = {key.replace("_", "."): value for key, value in changed.items()}
            lines = [f"{key}={changes.get(key, value)}" for key, value in properties.items()]
            lines += [f"{key}={value}" for key, value in changes.items() if key not in properties]
            (self.folder / f"{name}.properties").write_text("\n".join(lines))
        return self.folder

    @asynccontextmanager
    async def james(self, prefetch: int = 10, **environment: str) -> AsyncIterator[James]:
        """Run James with the queue open."""
        async with running(self.where, MAILS, environment) as james:
            await james.ask("open", self.name, prefetch)
            yield james

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A session on James' keyspace."""
        session = servers.session(self.where.keyspace)
        try:
            yield session
        finally:
            await session.close()

    async def target(self, url: str) -> None:
        """Create the queue to migrate to."""
        async with open_queue(url, create=True, settings=self.settings):
            pass

    async def run(self, *words: str, killed_at: int | None = None) -> Ended:
        """Run a command with James' property files; return its exit code, its lines, and what it
        wrote to standard error. `killed_at`: the step at which a migration kills itself."""
        program = ["-m", "postroad"]
        if killed_at is not None:
            program = [str(Path(__file__).with_name("killed_migration.py")), str(killed_at)]
        options = ("--conf", str(self.folder), "--json")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *program,
            *words,
            *options,
            env=self.environment,
            stdout=PIPE,
            stderr=PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, list(map(json.loads, out.splitlines())), err.decode()

    async def migrate(self, url: str, *options: str, killed_at: int | None = None) -> Ended:
        """Run a migration as `run` does, again while a server is away, up to REPEATED times."""
        words = ("migrate", "james", self.name, "--queue", url, *options)
        for _ in range(REPEATED):
            ended = await self.run(*words, killed_at=killed_at)
            if ended[0] != AWAY:
                break
            print("again, a server was away:", ended[2][-2000:], file=sys.stderr)
        return ended

    async def moved(self, url: str) -> list[dict[str, Any]]:
        """Return what waits in a queue, as `listed` of James describes it."""
        async with open_queue(url, settings=self.settings) as queue:
            few = asyncio.Semaphore(16)

            async def described_one(view: MailView) -> dict[str, Any]:
                async with few:
                    parts = [part async for part in queue.content(view.enqueue_id)]
                return described(view.mail, b"".join(parts))

            views = [view async for view in queue.browse()]
            found = await asyncio.gather(*map(described_one, views))
        return sorted(found, key=lambda each: str(each["name"]))


def listed(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the mails of James' own browse."""
    return sorted(answer["answer"], key=lambda each: each["name"])


def described(mail: Any, content: bytes) -> dict[str, Any]:
    kept = mail.attributes
    updated = kept.get("james.last-updated")
    return {
        "name": mail.name,
        "sender": mail.sender,
        "recipients": list(mail.recipients),
        "state": kept.get("james.state"),
        "error": kept.get("james.error"),
        "updated": updated and _milliseconds(updated),
        "host": mail.origin.host,
        "address": mail.origin.address,
        "sha256": hashlib.sha256(content).hexdigest(),
        "attributes": {
            name.removeprefix("james.attribute."): value
            for name, value in kept.items()
            if name.startswith("james.attribute.")
        },
        "headers": json.loads(kept.get("james.per-recipient-headers", "[]")),
    }


def _milliseconds(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


@asynccontextmanager
async def fresh_place(folder: Path) -> AsyncIterator[Place]:
    """Make servers' names for a test, with the property files."""
    async with fresh_servers() as where:
        place = Place(where, folder / "conf")
        place.write()
        try:
            yield place
        finally:
            connection = RabbitMQConnection(servers.rabbitmq(), "test")
            channel = await connection.channel()
            for prefix in (TAKEN_QUEUE, WORK_QUEUE):
                await channel.call(channel.driver.queue_delete, prefix + place.name)
            await connection.close()
