"""`kubectl mailqueue migrate james`: a Job moves what waits at James into a MailQueue."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support.james import Place, fresh_place
from support.james_recording import WrittenQueue, written
from support.kubectl import eventually, secret
from support.sandbox import Sandbox

pytestmark = [
    pytest.mark.needs("rabbitmq", "cassandra", "s3", "kubernetes"),
    pytest.mark.timeout(600, func_only=True),
]

MAILS = 50


@pytest.fixture
async def james(sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[WrittenQueue]:
    """Mails at James, with his property files as a Secret that names servers as pods reach them."""
    async with fresh_place(tmp_path) as place, written(place, MAILS) as found:
        place.write(**as_pods_reach_them(place))
        files = {each.name: each.read_text() for each in place.folder.iterdir()}
        sandbox.apply(secret("james", sandbox.namespace, files))
        yield found


def as_pods_reach_them(place: Place) -> dict[str, str]:
    given = place.environment
    login, _, _ = urlsplit(given["POSTROAD_RABBITMQ_URI"]).netloc.rpartition("@")
    return {
        "cassandra_nodes": "cassandra:9042",
        "cassandra_password": given["POSTROAD_CASSANDRA_PASSWORD"],
        "uri": f"amqp://{login}@rabbitmq:5672/%2F",
        "objectstorage_s3_endPoint": "http://s3:9000",
        "objectstorage_s3_secretKey": given["POSTROAD_S3_SECRET_KEY"],
    }


async def test_job_moves_each_mail_of_james_once_and_completes(
    sandbox: Sandbox, james: WrittenQueue
) -> None:
    sandbox.apply(sandbox.mail_queue(workers=sandbox.workers(0)))
    await asyncio.to_thread(sandbox.wait_ready)

    for expected in (f"moved {MAILS} mails", "moved 0 mails"):
        words = ("migrate", "james", "outgoing", james.place.name, "--secret", "james")
        done = await asyncio.to_thread(sandbox.plugin, *words)
        assert done.returncode == 0, done.stderr
        found = re.match(r"Job (\S+) begins", done.stdout)
        assert found, done.stdout
        log = await asyncio.to_thread(log_of_completed, sandbox, found[1])
        assert expected in log

    moved = await asyncio.to_thread(sandbox.browse)
    assert sorted(each["name"] for each in moved) == sorted(james.rows)


def log_of_completed(sandbox: Sandbox, job: str) -> str:
    """Return what a Job printed, once it is complete."""

    def completed() -> bool:
        status = sandbox.kubectl.get("job", job, sandbox.namespace).get("status", {})
        ends = {each["type"] for each in status.get("conditions", ()) if each["status"] == "True"}
        assert "Failed" not in ends, sandbox.kubectl("logs", "-n", sandbox.namespace, f"job/{job}")
        return "Complete" in ends

    eventually(completed, within_seconds=180)
    return sandbox.kubectl("logs", "-n", sandbox.namespace, f"job/{job}")
