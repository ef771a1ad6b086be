"""`postroad task`: the command of the pods of a MailQueueTask. It carries out one operation, or
counts the mails that it is for, and writes what it counted into a file as it goes on."""

import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from postroad.adapters.clocks import MachineClock
from postroad.cli.options import say, with_queue
from postroad.distributed.engine.timing import Timing, on_change
from postroad.distributed.mail_queue import DistributedQueue
from postroad.domain.queues.documents import MailView, selector_of
from postroad.domain.queues.selection import Selector
from postroad.errors import InvalidInput, PostroadError
from postroad.ports.clock import Clock
from postroad.ports.mail_queue import MailQueue, Operation

PURGE, REPUBLISH, MAINTAIN = "purge", "republish", "maintain"

OPERATIONS = [*(each.value for each in Operation), PURGE, REPUBLISH, MAINTAIN]

MINUTE = re.compile(r"-([0-9]{8})\Z")
"""End of the name of a CronJob's Job: the minutes from 1970 to the time of the run."""

MAX_RUN_AGE = timedelta(days=2)
"""A run that is older has ended: such a number is none of a run's time."""

WIDTH = 64
"""Octets of a count in the file: a later one takes the place of the whole of an earlier one."""

MAX_ERROR = 500
"""Characters of an error there; Kubernetes keeps 4096 bytes."""


@click.command()
@with_queue
@click.argument("operation", type=click.Choice(OPERATIONS))
@click.option(
    "--selector",
    "document",
    envvar="POSTROAD_TASK_SELECTOR",
    help="The selected mails, as the operator wrote them (or POSTROAD_TASK_SELECTOR).",
)
@click.option("--count", "is_count", is_flag=True, help="Only count the selected mails.")
@click.option(
    "--job",
    envvar="POSTROAD_TASK_JOB",
    help="The Job of a run of a schedule, which is named after the run's time (or "
    "POSTROAD_TASK_JOB).",
)
@click.option("--summary", type=click.Path(path_type=Path), help="A file for what was counted.")
async def task(
    queue: MailQueue,
    operation: str,
    document: str | None,
    is_count: bool,
    job: str | None,
    summary: Path | None,
) -> None:
    """Carry out the operation of a MailQueueTask: the command of its pod.

    A selector holds for mails that were accepted before a moment, so that a repetition changes
    nothing that came since."""
    if not isinstance(queue, DistributedQueue):
        raise InvalidInput("a task is for the queue of a MailQueue: use the command of its name")
    selector = until_run(_selector(document), job, MachineClock().now())
    with counted_in(summary) as counted:
        if is_count:
            counted["matched"] = await count_selected(queue, operation, selector)
        else:
            done = await carry_out(queue, operation, selector, MachineClock())
            counted.update({} if operation == MAINTAIN else {"done": done})
    _write(summary, json.dumps(counted))
    say(counted, as_json=True, text="")


def _selector(document: str | None) -> Selector | None:
    """Raises: InvalidInput."""
    try:
        return None if document is None else selector_of(json.loads(document))
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidInput(
            "the selector is not one that the operator of this release wrote"
        ) from error


def until_run(selector: Selector | None, job: str | None, now: datetime) -> Selector | None:
    """Return the selector of a run, of mails that were accepted before the run's time: each pod of
    the run has the same, however late it starts. A Job that a user made from the CronJob has a name
    without a time, and its pods take their own starts."""
    if selector is None or job is None or selector.accepted_before is not None:
        return selector
    found = MINUTE.search(job)
    moment = None if found is None else datetime.fromtimestamp(int(found[1]) * 60, UTC)
    if moment is None or not now - MAX_RUN_AGE <= moment <= now + MAX_RUN_AGE:
        return selector
    return replace(selector, accepted_before=moment)


async def carry_out(
    queue: DistributedQueue, operation: str, selector: Selector | None, clock: Clock
) -> int:
    """Do an operation; return how many mails it changed. Raises: as those of the queue."""
    if operation == MAINTAIN:
        await queue.maintain()
        return 0
    if selector is None:
        raise InvalidInput(f"{operation} needs --selector")
    if operation == PURGE:
        return await queue.purge(selector.accepted_before)
    if operation == REPUBLISH:
        if selector.older_than is None:
            raise InvalidInput("republish needs an age")
        return await queue.republish(selector.older_than)
    wanted = Operation(operation)
    began = clock.now()
    done = await queue.change(wanted, selector)
    if not wanted.of_dead_letters:
        return done
    # One that was requeued and refused again has a later id, and does not count as left.
    left = [
        each.enqueue_id async for each in queue.dead_letters(selector) if each.enqueued_at <= began
    ]
    if left:
        # A process that was killed amid a dead letter keeps others from it until its claim lapses.
        await clock.sleep(Timing().claim)
        for each in left:
            done += await queue.change(wanted, replace(selector, enqueue_id=each))
    return done


async def count_selected(queue: DistributedQueue, operation: str, selector: Selector | None) -> int:
    """Count the mails that an operation is for; nothing is changed."""
    if selector is None:
        raise InvalidInput(f"{operation} has no mails that could be counted")
    is_dead = operation != PURGE and Operation(operation).of_dead_letters
    views: AsyncIterator[MailView]
    views = queue.dead_letters(selector) if is_dead else queue.browse(selector)
    count = 0
    async for _ in views:
        count += 1
    return count


@contextmanager
def counted_in(summary: Path | None) -> Iterator[dict[str, int]]:
    """Write how many mails are changed into a file while a block changes them: of a process that is
    killed, the container leaves what it wrote last. `repeated`: those of `done` that the process
    after a killed one counts once more."""
    counted: dict[str, int] = {}

    def add(changed: int, is_repeated: bool) -> None:
        if not changed:
            return
        counted["done"] = counted.get("done", 0) + changed
        if is_repeated:
            counted["repeated"] = counted.get("repeated", 0) + changed
        _write(summary, json.dumps(counted))

    token = on_change.set(add)
    try:
        yield counted
    except Exception as error:
        text = error.explain() if isinstance(error, PostroadError) else type(error).__name__
        _write(summary, json.dumps({"done": 0} | counted | {"error": text[:MAX_ERROR]}))
        raise
    finally:
        on_change.reset(token)


def _write(summary: Path | None, text: str) -> None:
    """Overwrite the file in one call, so that a reader finds one count or the other."""
    if summary is None:
        return
    descriptor = os.open(summary, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, text.ljust(WIDTH).encode(), 0)
    finally:
        os.close(descriptor)
