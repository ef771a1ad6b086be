"""A program that fills, changes or reads an embedded store, with any release of postroad: it may
import only the standard library and postroad's public names. Each run ends as a crash does."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import timedelta
from typing import Any

import postroad
from postroad import Mail, Outcome, Selector, open_queue

HOUR = timedelta(hours=1)
CONTENT = b"Subject: x\r\n\r\n.\xc3\xa9\r\n" * 30


async def fill(queue: Any) -> None:
    """Leave a mail in every state that a store keeps, before and behind a checkpoint."""
    for name in ("done", "partly", "retried", "dead"):
        await queue.enqueue(_mail(name))
    consumer = queue.dequeue()
    items = {item.mail.name: item for item in [await anext(consumer) for _ in range(4)]}
    await items["done"].done(**_heard())
    await items["retried"].retry(HOUR, error="451 later", **_heard())
    await queue.maintain()
    await items["dead"].reject("550 no", **_heard())
    await _record(items["partly"], "a@x.example", Outcome.delivered("250 ok"))
    await queue.enqueue(_mail("held"), delay=HOUR)
    await queue.hold(Selector(name="held"))
    await queue.enqueue(_mail("later"), delay=HOUR)
    await queue.enqueue(_mail("waits"))


async def fill_anew(queue: Any) -> None:
    """Leave what releases since the older one have: a priority, an expired mail."""
    await queue.enqueue(_mail("urgent", priority=50))
    await queue.enqueue(_mail("expired", priority=-100))
    await queue.expire(Selector(name="expired"))


async def put_off(queue: Any) -> None:
    """Put a mail off, before a checkpoint."""
    await queue.enqueue(_mail("rests"))
    await (await anext(queue.dequeue())).put_off(HOUR, reason="451 rests", **_heard())
    await queue.maintain()


async def keyed(queue: Any) -> None:
    """Queue a mail with an enqueue key, unless that stands for it; let it wait."""
    await queue.enqueue(_mail("keyed"), HOUR, key="one")
    await queue.maintain()


async def requeue(queue: Any) -> None:
    """Queue dead letters again, and replace the entry of each mail."""
    await queue.requeue(Selector.all())
    await queue.hold(Selector.all())
    await queue.release(Selector.all())


async def read(queue: Any) -> None:
    """Print the state of each mail, and the content of those that are due."""
    found = {view.mail.name: _state(view) async for view in queue.browse()}
    found |= {view.mail.name: _state(view) async for view in queue.dead_letters()}
    consumer = queue.dequeue()
    for _ in range(sum(not each["delayed"] and not each["reason"] for each in found.values())):
        item = await anext(consumer)
        found[item.mail.name]["content"] = (await item.content()) == CONTENT
    print(json.dumps(found))


async def priorities(queue: Any) -> None:
    """Print the priority of each mail that waits."""
    print(json.dumps({view.mail.name: view.mail.priority async for view in queue.browse()}))


async def _record(item: Any, recipient: str, outcome: Outcome) -> None:
    try:
        await item.record({recipient: outcome})
    except TypeError:  # the older release takes the recipients of one outcome
        await item.record((recipient,), outcome)


def _heard() -> dict[str, Any]:
    """What is kept of an attempt, by a release that keeps it."""
    kept: Any = getattr(postroad, "AttemptOutcomes", None)
    outcomes = {"a@x.example": Outcome.failed("550 5.1.1 no such user")}
    return {} if kept is None else {"outcomes": kept.of(outcomes, 0.5)}


def _mail(name: str, **fields: Any) -> Mail:
    recipients = ("a@x.example", "b@y.example")
    return Mail("s@x.example", recipients, CONTENT, name, {"key": "\u00e9"}, **fields)


def _state(view: Any) -> dict[str, Any]:
    return {
        "recipients": list(view.mail.recipients),
        "attributes": dict(view.mail.attributes),
        "held": view.held,
        "delayed": view.due_at is not None,
        "attempt": view.attempt,
        "error": view.last_error,
        "reason": view.reason,
    }


async def main(command: str, root: str) -> None:
    queue: Any = await open_queue(f"embedded://{root}", create=True)
    commands = (fill, fill_anew, put_off, keyed, requeue, read, priorities)
    await {each.__name__: each for each in commands}[command](queue)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
