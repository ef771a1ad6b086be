"""A conversation with the WebAdmin of a real James on his mail queues, recorded once:
`python -m support.james_conversation` (as root, needs Maven) writes `james_conversation.json`.

A step queues mail, or is a request. Ids of tasks, dates and names of hosts differ each time, and
stand in the record as `TASK`, `DATE` and `HOST`."""

from __future__ import annotations

import asyncio
import json
import platform
import re
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from peers.james import James
from peers.server import Road

RECORD = Path(__file__).parents[1] / "unit/console/james_conversation.json"

_TASK = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+0000)")


@dataclass(frozen=True)
class QueuedMail:
    """A mail to be queued; `delay` in seconds."""

    name: str
    sender: str | None = None
    recipients: tuple[str, ...] = ("b@dest.example",)
    delay: int | None = None


@dataclass(frozen=True)
class Asked:
    """A request; `TASK` in its path is the last task that was begun."""

    method: str
    path: str
    body: str | None = None


@dataclass(frozen=True)
class Answered:
    """An answer, as it is compared."""

    status: int
    location: str | None
    body: Any


QUEUE = "/mailQueues/outgoing"
MAILS = f"{QUEUE}/mails"
NO_TASK = "/tasks/5b6e3f0c-4d0f-4a6e-9a52-0a3f6f1f6d11"


def _mails() -> list[QueuedMail]:
    return [
        QueuedMail("m1", "a@orig.example", ("b@dest.example", "c@dest.example")),
        QueuedMail("m2", "a@orig.example", ("d@dest.example",)),
        QueuedMail("m3", "e@orig.example", ("b@dest.example",)),
        QueuedMail("m4", None, ("B@dest.example",)),
        QueuedMail("m5", "e@orig.example", ("f@dest.example",), delay=3600),
        QueuedMail("m6", "e@orig.example", ("g@dest.example",), delay=7200),
    ]


def _to_the_end(method: str, path: str) -> list[Asked]:
    return [Asked(method, path), Asked("GET", "/tasks/TASK/await"), Asked("GET", "/tasks/TASK")]


def _get(*paths: str) -> list[Asked]:
    return [Asked("GET", each) for each in paths]


STEPS: Sequence[QueuedMail | Asked] = [
    *_get("/mailQueues", QUEUE, MAILS, "/tasks"),
    *_mails(),
    *_get("/mailQueues", QUEUE, f"{QUEUE}/", "/mailQueues/absent", "/mailQueues/absent/mails"),
    *_get(MAILS, *(f"{MAILS}?delayed={each}" for each in ("true", "false", "TRUE", "x"))),
    *_get(*(f"{MAILS}?limit={each}" for each in ("1", "2", "100", "0", "-1", "x", "1.5", ""))),
    *_get(
        f"{MAILS}?limit=2&delayed=true", f"{MAILS}?unknown=1", "/mailQueues/absent/mails?limit=0"
    ),
    Asked("PATCH", MAILS, '{"delayed": false}'),
    Asked("PATCH", f"{MAILS}?delayed=false", '{"delayed": false}'),
    Asked("PATCH", f"{MAILS}?delayed=true", '{"delayed": true}'),
    Asked("PATCH", f"{MAILS}?delayed=true", "{}"),
    Asked("PATCH", f"{MAILS}?delayed=true"),
    Asked("PATCH", f"{MAILS}?delayed=true", "{"),
    Asked("PATCH", f"{MAILS}?delayed=true", '{"delayed": false, "other": 1}'),
    Asked("PATCH", f"{MAILS}?delayed=true", '{"delayed": "later"}'),
    Asked("PATCH", "/mailQueues/absent/mails?delayed=true", '{"delayed": false}'),
    *_get(f"{MAILS}?delayed=true"),
    *_to_the_end("DELETE", f"{MAILS}?name=m6"),
    Asked("PATCH", f"{MAILS}?delayed=true", '{"delayed": false}'),
    *_get(f"{MAILS}?delayed=true"),
    *(
        Asked("DELETE", f"{MAILS}?{each}")
        for each in (
            "sender=x",
            "recipient=x",
            "sender=",
            "sender=a@orig.example&name=m1",
            "sender=a@orig.example&recipient=b@dest.example",
            "sender=a@orig.example&recipient=b@dest.example&name=m1",
        )
    ),
    Asked("DELETE", "/mailQueues/absent/mails"),
    *_to_the_end("DELETE", f"{MAILS}?recipient=c@dest.example"),
    *_to_the_end("DELETE", f"{MAILS}?sender=a@orig.example"),
    *_to_the_end("DELETE", f"{MAILS}?recipient=absent@dest.example"),
    *_to_the_end("DELETE", f"{MAILS}?name="),
    *_get(QUEUE, MAILS),
    *_to_the_end("DELETE", MAILS),
    *_get(QUEUE, MAILS, "/tasks"),
    *_get("/tasks?status=completed", "/tasks?status=failed", "/tasks?status=nothing"),
    *_get("/tasks?type=clear-mail-queue", "/tasks?limit=2", "/tasks?offset=5", "/tasks?limit=-1"),
    *_get("/tasks?submittedBefore=2020-01-01T00:00:00Z", "/tasks?completedAfter=yesterday"),
    *_get("/tasks?startedAfter=2020-01-01T00:00:00Z&limit=1", "/tasks?type=absent"),
    *_get("/tasks/TASK/await?timeout=1s", "/tasks/TASK/await?timeout=400d"),
    *_get("/tasks/x", NO_TASK, f"{NO_TASK}/await", f"{NO_TASK}/await?timeout=x"),
    Asked("DELETE", "/tasks/TASK"),
    Asked("DELETE", NO_TASK),
    Asked("DELETE", "/tasks/x"),
    *_get("/tasks/TASK", "/mailQueues/", "/nothing"),
    Asked("PUT", QUEUE),
    Asked("DELETE", QUEUE),
    Asked("POST", MAILS),
]


async def talk(
    client: httpx.AsyncClient, enqueue: Callable[[QueuedMail], Awaitable[None]], base: str = ""
) -> list[tuple[Asked, Answered]]:
    """Make the steps; return the requests with their answers."""
    found, task = [], ""
    for step in STEPS:
        if isinstance(step, QueuedMail):
            await enqueue(step)
            continue
        path = base + step.path.replace("TASK", task)
        answer = await client.request(step.method, path, content=step.body)
        if answer.status_code == 201:
            task = answer.json()["taskId"]
        found.append((step, answered(answer, base, path)))
    return found


def answered(answer: httpx.Response, base: str, path: str) -> Answered:
    """Return an answer without what differs each time. An id that was asked for stays."""
    text = _DATE.sub("DATE", answer.text).replace(f'"{platform.node()}"', '"HOST"')
    if (asked := _TASK.search(path)) is None or asked[0] not in NO_TASK:
        text = _TASK.sub("TASK", text)
    location = answer.headers.get("Location")
    if location is not None:
        location = _TASK.sub("TASK", location.removeprefix(base))
    return Answered(answer.status_code, location, json.loads(text) if text else None)


async def record(base: Path) -> None:
    james = James(base, Road(0))
    james.relays = False
    await james.start()
    try:
        async with httpx.AsyncClient(base_url=james.web, timeout=60) as client:

            async def enqueue(mail: QueuedMail) -> None:
                values = {**asdict(mail), "recipients": ",".join(mail.recipients)}
                query = {name: value for name, value in values.items() if value is not None}
                (await client.put("/filling/outgoing", params=query)).raise_for_status()

            for name in ("outgoing", "spool"):
                (await client.put(f"/filling/{name}")).raise_for_status()
            told = await talk(client, enqueue)
    finally:
        await james.stop()
    rows = [{"asked": asdict(asked), "answered": asdict(answer)} for asked, answer in told]
    RECORD.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{len(rows)} answers in {RECORD}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(record(Path(folder)))
