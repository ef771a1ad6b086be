"""`postroad task`, the command of a MailQueueTask's pods, over a queue in memory: killed at each of
its steps and run again, it has the effect of one run, on the mails of before the task alone."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from postroad import open_queue
from postroad.adapters.memory import tables
from postroad.cli import main
from postroad.cli.mail.task import carry_out, count_selected, counted_in, until_run
from postroad.controller.spec.task import COUNTED, MailSelector
from postroad.distributed.mail_queue import DistributedQueue
from postroad.domain.queues.documents import selector_of, selector_value
from postroad.domain.queues.selection import Selector
from postroad.errors import InvalidInput, PostroadError
from postroad.ports.mail_queue import Operation
from support.in_memory_cluster import InMemoryCluster, Process
from support.memory.fault_injection import Fault, Stopped, at

MAX_STEPS = 200
BEFORE = ["one", "two", "three"]
OLD = timedelta(seconds=90)
"""Older than the youngest mails, which a purge removes one by one."""


async def started(cluster: InMemoryCluster, operation: str) -> tuple[Process, Selector]:
    """Queue mails, create a task, and queue one more mail; return a process, and the selector."""
    healthy = await cluster.start()
    if operation in ("requeue", "discard"):
        await cluster.give_up(healthy, *BEFORE)
    else:
        await cluster.enqueue(healthy, *BEFORE[:2], delay=600 if operation == "flush" else 0)
        await cluster.pass_time(OLD)
        await cluster.enqueue(healthy, *BEFORE[2:], delay=600 if operation == "flush" else 0)
    if operation == "release":
        await healthy.queue.hold(Selector.all())
    await cluster.pass_time(timedelta(seconds=1))
    selector = Selector(everything=True, accepted_before=cluster.clock.now())
    await cluster.enqueue(healthy, "later")
    if operation in ("requeue", "discard"):
        await healthy.queue.remove(Selector(name="later"))
        await cluster.give_up(healthy, "later")
    return healthy, selector


async def state(queue: DistributedQueue) -> dict[str, Any]:
    waiting = sorted([(each.mail.name or "", each.held) async for each in queue.browse()])
    dead = sorted([each.mail.name or "" async for each in queue.dead_letters()])
    return {"waiting": waiting, "dead": dead}


async def end_of(operation: str, kill_at: int | None) -> tuple[bool, int, dict[str, Any]]:
    """Run an operation in a process that is killed at a step, then in another one; return whether
    there was such a step, the count of the last run, and what is left."""
    cluster = InMemoryCluster(seed=kill_at or 0)
    _, selector = await started(cluster, operation)
    victim = await cluster.start()
    first = len(victim.faults.steps)
    if kill_at is not None:
        victim.fail(at(kill_at, Fault.STOP_AFTER))
        work = asyncio.ensure_future(carry_out(victim.queue, operation, selector, cluster.clock))
        try:
            await cluster.outcome(work, timedelta(minutes=3))
            work.cancel()
            await work
        except (PostroadError, Stopped, asyncio.CancelledError):
            pass
    reached = len(victim.faults.steps) - first > (kill_at or 0)
    victim.faults.stop()
    again = await cluster.start()
    work = asyncio.ensure_future(carry_out(again.queue, operation, selector, cluster.clock))
    await cluster.outcome(work, timedelta(minutes=3))
    count = await work
    left = await state(again.queue)
    await cluster.close()
    return reached, count, left


NOW = datetime(2026, 1, 1, 10, 7, 30, tzinfo=UTC)
SCHEDULED = datetime(2026, 1, 1, 10, tzinfo=UTC)
RUN = f"spam-1a2b3c4d-{int(SCHEDULED.timestamp()) // 60}"


@pytest.mark.parametrize(
    ("job", "before"),
    [
        (RUN, SCHEDULED),
        (None, None),
        ("by-hand", None),
        ("by-hand-1", None),
        ("by-hand-20260101", None),
        ("by-hand-99999999", None),
        (f"{RUN}-1", None),
    ],
)
def test_a_run_is_for_mail_of_before_the_time_in_the_name_of_its_job(
    job: str | None, before: datetime | None
) -> None:
    found = until_run(Selector.all(), job, NOW)

    assert found is not None
    assert found.accepted_before == before


def test_a_task_without_a_schedule_keeps_its_own_moment() -> None:
    selector = Selector(everything=True, accepted_before=NOW)

    assert until_run(selector, RUN, NOW) == selector
    assert until_run(None, RUN, NOW) is None


async def test_a_pod_of_a_run_that_is_made_again_leaves_mail_that_came_since() -> None:
    cluster = InMemoryCluster()
    process = await cluster.start()
    await cluster.enqueue(process, "before")
    await cluster.pass_time(timedelta(minutes=2))
    run = f"purge-1a2b3c4d-{int(cluster.clock.now().timestamp()) // 60}"
    await cluster.pass_time(timedelta(minutes=2))
    await cluster.enqueue(process, "since")
    selector = until_run(Selector.all(), run, cluster.clock.now())

    await carry_out(process.queue, "purge", selector, cluster.clock)

    assert (await state(process.queue))["waiting"] == [("since", False)]
    await cluster.close()


@pytest.mark.parametrize(
    "operation", ["purge", "remove", "expire", "hold", "release", "flush", "requeue", "discard"]
)
async def test_killed_at_any_step_and_run_again_it_has_the_effect_of_once(operation: str) -> None:
    _, count, whole = await end_of(operation, None)
    assert count == len(BEFORE)
    assert "later" in str(whole)

    for step in range(MAX_STEPS):
        reached, _, left = await end_of(operation, step)
        assert left == whole, f"killed at step {step}"
        if not reached:
            break
    assert step > 3


async def test_a_purge_that_is_run_again_counts_all_that_the_watermark_removed() -> None:
    cluster = InMemoryCluster()
    healthy = await cluster.start()
    await cluster.enqueue(healthy, *BEFORE)
    await cluster.pass_time(OLD)
    selector = Selector(everything=True, accepted_before=cluster.clock.now())

    first = await carry_out(healthy.queue, "purge", selector, cluster.clock)
    second = await carry_out(healthy.queue, "purge", selector, cluster.clock)

    assert (first, second) == (3, 3)
    await cluster.close()


async def test_twenty_thousand_mails_are_purged_while_mail_comes_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "PAGE", 1000)
    cluster = InMemoryCluster()
    healthy = await cluster.start()
    await cluster.enqueue(healthy, *map(str, range(20_000)))
    await cluster.pass_time(OLD)
    selector = Selector(everything=True, accepted_before=cluster.clock.now())
    assert await count_selected(healthy.queue, "purge", selector) == 20_000

    count, later = await asyncio.gather(
        carry_out(healthy.queue, "purge", selector, cluster.clock),
        cluster.enqueue(healthy, *(f"later {each}" for each in range(50))),
    )

    assert count == 20_000
    assert [each.enqueue_id async for each in healthy.queue.browse()] == sorted(later)
    await cluster.close()


async def test_a_count_is_of_dead_letters_where_they_are_selected_and_changes_nothing() -> None:
    cluster = InMemoryCluster()
    healthy = await cluster.start()
    await cluster.give_up(healthy, "dead")
    await cluster.enqueue(healthy, *BEFORE)
    before = await state(healthy.queue)

    counts = {
        each: await count_selected(healthy.queue, each.lower(), Selector.all()) for each in COUNTED
    }

    assert counts == {each: 1 if each in ("Requeue", "Discard") else 3 for each in COUNTED}
    assert await state(healthy.queue) == before
    with pytest.raises(InvalidInput):
        await count_selected(healthy.queue, "maintain", None)
    await cluster.close()


async def test_the_file_has_what_was_changed_so_far_and_why_it_ended(tmp_path: Path) -> None:
    cluster = InMemoryCluster()
    healthy, file = await cluster.start(), tmp_path / "summary"
    await cluster.give_up(healthy, "dead", "more")
    await cluster.enqueue(healthy, *BEFORE)

    with counted_in(file):
        await carry_out(healthy.queue, "hold", Selector.all(), cluster.clock)
    held = json.loads(file.read_text())
    with counted_in(file):
        await carry_out(healthy.queue, "discard", Selector.all(), cluster.clock)
    discarded = json.loads(file.read_text())
    victim = await cluster.start()
    victim.fail(lambda step: Fault.AWAY)
    with pytest.raises(PostroadError), counted_in(file):
        await carry_out(victim.queue, "remove", Selector.all(), cluster.clock)

    assert (held, discarded) == ({"done": 3}, {"done": 2})
    assert json.loads(file.read_text())["error"]
    await cluster.close()


async def test_the_file_of_a_purge_has_what_a_repetition_counts_once_more(tmp_path: Path) -> None:
    cluster = InMemoryCluster()
    healthy, selector = await started(cluster, "purge")
    file = tmp_path / "summary"

    with counted_in(file) as counted:
        await carry_out(healthy.queue, "purge", selector, cluster.clock)

    assert counted == json.loads(file.read_text()) == {"done": 3, "repeated": 2}
    await cluster.close()


async def test_maintenance_of_old_mails_counts_none_that_a_task_changed(tmp_path: Path) -> None:
    cluster = InMemoryCluster()
    healthy, file = await cluster.start(), tmp_path / "summary"
    cluster.tables.row_lifetime = timedelta(days=14)
    await cluster.enqueue(healthy, *BEFORE)
    rows = {each.key for each in cluster.tables.live()}
    await cluster.pass_time(timedelta(days=8))

    with counted_in(file) as counted:
        await carry_out(healthy.queue, "maintain", None, cluster.clock)

    assert rows.isdisjoint(each.key for each in cluster.tables.live()), "none was rolled forward"
    assert counted == {}
    assert not file.exists()
    await cluster.close()


@pytest.mark.parametrize(
    "given",
    [
        {"all": True},
        {"sender": "<>"},
        {"sender": "a@example.org", "recipient": "b@example.net", "olderThan": "4h"},
        {"id": "0" * 8 + "-0000-0000-0000-" + "0" * 12, "name": "$(HOME)"},
        {"attribute": {"name": "a", "value": ""}, "domain": "example.net"},
    ],
)
def test_every_selector_of_a_task_reaches_its_pod_as_it_is(given: dict[str, Any]) -> None:
    before = InMemoryCluster().clock.now()
    selector = MailSelector.model_validate(given).selector(before)

    assert selector_of(json.loads(json.dumps(selector_value(selector)))) == selector
    assert selector.accepted_before == before
    assert not selector.is_empty


async def opened(url: str) -> None:
    async with open_queue(url, create=True):
        pass


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["remove"], "a task is for the queue of a MailQueue"),
        (["remove", "--selector", "{"], "a task is for the queue of a MailQueue"),
        (["rotate"], "'rotate' is not one of"),
    ],
)
def test_what_is_no_task_is_refused_with_what_to_do(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    queue = f"embedded://{tmp_path}/queue"
    asyncio.run(opened(queue))
    done = CliRunner().invoke(main, ["task", *arguments, "--queue", queue])

    assert done.exit_code != 0
    assert said in done.output


def test_the_fields_of_a_selector_are_those_of_the_commands() -> None:
    options = {
        name.removeprefix("--").replace("-", "_")
        for each in main.get_command(None, "remove").params  # type: ignore[arg-type, union-attr]
        for name in each.opts
    }

    assert options - {"queue", "json", "spark", "master", "yes"} == set(MailSelector.model_fields)
    assert {*COUNTED} == {"Purge", *(each.value.capitalize() for each in Operation)}
